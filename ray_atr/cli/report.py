"""`ray-atr report`: tables, figures and one HTML page of one or several run folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tyro

from ray_atr.cli.parse import option, parse
from ray_atr.common.runtime import home
from ray_atr.common.settings import refuse
from ray_atr.common.storage import Location, StorageError, entries_in, file_exists, locate, require_replaceable


@dataclass(frozen=True)
class ReportCommand:
    """Write the report of run folders."""

    runs: tyro.conf.Positional[tuple[str, ...]] = option(
        (), "run folders or URLs (s3://...); read together", "FOLDER ...", "what --experiment names"
    )
    out: str | None = option(
        None, "folder to write, new or with an earlier report", "FOLDER", "report/ in the first run folder"
    )
    figures: bool = option(True, "draw the figures")
    upload: bool = option(False, "also send MLflow the results that it lacks")
    experiment: str | None = option(
        None, "read this MLflow experiment instead of run folders (MLFLOW_TRACKING_URI)", "NAME", "none"
    )
    register: str | None = option(
        None, "also log the best trial's model to MLflow and register it under this name", "NAME", "none"
    )


OPTIONS = ReportCommand


def run(arguments: Sequence[str], program: str) -> None:
    report_script(parse(ReportCommand, arguments, program))


def report_script(options: ReportCommand) -> None:
    """Write a report, print its tables and its path. ValueError if there is no run folder, or MLflow does not answer."""
    from ray_atr.evaluation.report import write_report
    from ray_atr.training.run_folder import RunFolder

    if options.register is not None and (not options.register.strip() or set(options.register) & set("/:")):
        # MLflow would refuse the name only after a minute.
        raise refuse("--register", options.register, "a name without / and :")
    if options.out is not None and options.experiment is None:
        place = locate(options.out)
        # Files of the same names would be lost. Beside --experiment the folder has the runs that are fetched.
        if entries_in(place) and not file_exists(place / "report.html"):
            raise refuse("--out", options.out, "a new or empty folder, or one with an earlier report")
    try:
        folders = _folders(options)
        if options.out is None:
            try:
                require_replaceable(RunFolder.open(folders[0]).path / "report")
            except PermissionError as error:
                raise ValueError(f"{error.filename}: cannot be written; --out writes the report elsewhere") from None
        report = write_report(*folders, out=options.out, figures=options.figures)
        print(f"{report.summary}\n\nreport: {report.page}")
        for path in (report.table_csv, report.table_markdown, *report.figures):
            print(f"        {path}")
        if options.upload or options.register is not None:
            _send(folders, is_uploaded=options.upload, name=options.register)
    except StorageError:
        raise
    except ConnectionError as error:
        raise ValueError(str(error)) from None


def _folders(options: ReportCommand) -> list[Location]:
    if options.experiment is None:
        if not options.runs:
            raise ValueError("runs: got none; give one or more run folders, or --experiment NAME")
        return [locate(folder) for folder in options.runs]
    if options.runs or options.upload or options.register is not None:
        raise ValueError("--experiment: reads from MLflow; it takes no run folders, --upload or --register")
    from ray_atr.sweep.tracking import fetch_experiment, store_of

    out = options.out or home() / "runs" / f"from_mlflow_{options.experiment}"
    return fetch_experiment(options.experiment, store_of(home() / "runs" / "any"), locate(out))


def _send(folders: Sequence[Location], *, is_uploaded: bool, name: str | None) -> None:
    """Upload results, and register the best trials' models under a name if there is one."""
    from ray_atr.sweep.tracking import loading_lines, mlflow_command, store_of, upload
    from ray_atr.sweep.tracking.model import register_model

    for folder in folders if is_uploaded else ():
        tracker = upload(folder)
        print(f"MLflow run {tracker.parent_run_id()} holds everything of {folder}; compare with")
        print(f"  {mlflow_command(folder)}\ncurves, best trial first:\n  {tracker.charts_url()}")
        print(f"trials side by side:\n  {tracker.comparison_url()}")
    if name is not None:
        for folder in folders:
            uri = register_model(folder, name=name)
            print(f"registered as {name}; to load it in Python:\n{loading_lines(store_of(folder), uri)}")
