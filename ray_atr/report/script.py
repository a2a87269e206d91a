"""What `pipelines/report.py` does: read run folders or an MLflow experiment, write the report, send it where asked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ray_atr.report.write import summary_table, write_report
from ray_atr.run_folder import read_json
from ray_atr.runtime import home
from ray_atr.tracking import fetch_experiment, mlflow_command, store_of, upload


def report_script(
    runs: Sequence[Path],
    *,
    out: Path | None = None,
    is_upload: bool = False,
    experiment: str | None = None,
    register: str | None = None,
) -> None:
    """Write a report, print its tables and where it is.

    `register` names the entry of MLflow's registry that each folder's best model becomes a version of. `experiment` names an
    MLflow experiment (of MLFLOW_TRACKING_URI, else of the runs folder) to read instead of `runs`. Raises ValueError where
    there is nothing to read, ConnectionError where MLflow is away.
    """
    folders = [Path(folder) for folder in runs]
    if experiment is not None:
        if folders or is_upload or register:
            raise ValueError("--experiment: reads from MLflow; it takes no run folders, --upload or --register")
        out = out or home() / "runs" / f"from_mlflow_{experiment}"
        folders = fetch_experiment(experiment, store_of(home() / "runs" / "any"), out)
    if not folders:
        raise ValueError("runs: got none; give one or more run folders, or --experiment NAME")
    paths = write_report(*folders, out=out)
    for folder in folders:
        print(summary_table(folder) + "\n")
    print(f"report: {paths.page}")
    for path in (paths.table_csv, paths.table_markdown, *paths.figures):
        print(f"        {path}")
    if is_upload:
        for folder in folders:
            settings = read_json(folder / "experiment.json")
            name = str(settings.get("tracking.experiment_name", "ray_atr"))
            run_id = upload(folder, experiment_name=name)
            print(f"MLflow run {run_id} holds everything of {folder}; compare with\n  {mlflow_command(folder)}")
    if register is not None:
        from ray_atr.tracking.model import register_model

        for folder in folders:
            uri = register_model(folder, name=register)
            print(f"registered as {register}: load it with mlflow.pyfunc.load_model({uri!r})")
