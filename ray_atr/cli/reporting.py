"""What `pipelines/report.py` does: read run folders or an MLflow experiment, write the report, send it where asked."""

from __future__ import annotations

from collections.abc import Sequence

from ray_atr.report.write import summary_table, write_report
from ray_atr.run_folder import read_json
from ray_atr.runtime import home
from ray_atr.storage import Location, locate
from ray_atr.tracking import Tracker, fetch_experiment, mlflow_command, store_of, upload


def report_script(
    runs: Sequence[str | Location],
    *,
    out: str | Location | None = None,
    is_upload: bool = False,
    experiment: str | None = None,
    register: str | None = None,
) -> None:
    """Write a report, print its tables and where it is.

    `register` names the entry of MLflow's registry that each folder's best model becomes a version of. `experiment` names an
    MLflow experiment (of MLFLOW_TRACKING_URI, else of the runs folder) to read instead of `runs`. Raises ValueError if
    there is nothing to read, or where MLflow is asked for and away.
    """
    try:
        folders = _folders(runs, out, experiment, is_writing=is_upload or register is not None)
        _write(folders, out)
        if is_upload:
            _upload(folders)
        if register is not None:
            _register(folders, register)
    except ConnectionError as error:
        raise ValueError(str(error)) from None


def _folders(
    runs: Sequence[str | Location], out: str | Location | None, experiment: str | None, *, is_writing: bool
) -> list[Location]:
    folders = [locate(folder) for folder in runs]
    if experiment is None:
        if not folders:
            raise ValueError("runs: got none; give one or more run folders, or --experiment NAME")
        return folders
    if folders or is_writing:
        raise ValueError("--experiment: reads from MLflow; it takes no run folders, --upload or --register")
    store = store_of(home() / "runs" / "any")
    return fetch_experiment(experiment, store, locate(out or home() / "runs" / f"from_mlflow_{experiment}"))


def _write(folders: Sequence[Location], out: str | Location | None) -> None:
    paths = write_report(*folders, out=out)
    print(summary_table(*folders) + "\n")
    print(f"report: {paths.page}")
    for path in (paths.table_csv, paths.table_markdown, *paths.figures):
        print(f"        {path}")


def _upload(folders: Sequence[Location]) -> None:
    for folder in folders:
        settings = read_json(folder / "experiment.json")
        name = str(settings.get("tracking.experiment_name", "ray_atr"))
        run_id = upload(folder, experiment_name=name)
        print(f"MLflow run {run_id} holds everything of {folder}; compare with\n  {mlflow_command(folder)}")
        tracker = Tracker(folder, experiment_name=name, sample_seconds=None, is_patient=True)
        print(
            f"curves, best trial first:\n  {tracker.charts_url()}\ntrials side by side:\n  {tracker.comparison_url()}"
        )


def _register(folders: Sequence[Location], name: str) -> None:
    # MLflow's model format takes seconds to import, and few reports need it.
    from ray_atr.tracking.model import register_model

    for folder in folders:
        uri = register_model(folder, name=name)
        print(f"registered as {name}: load it with mlflow.pyfunc.load_model({uri!r})")
