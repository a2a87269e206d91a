"""`ray-atr report`: tables, figures and one HTML page of one or several run folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tyro

from ray_atr.cli.parse import option, parse
from ray_atr.runtime import home
from ray_atr.storage import Location, locate


@dataclass(frozen=True)
class ReportCommand:
    """Write the report of run folders."""

    runs: tyro.conf.Positional[tuple[str, ...]] = option(
        (), "run folders or URLs (s3://...); read together", metavar="FOLDER ...", unset="what --experiment names"
    )
    out: str | None = option(None, "folder to write", metavar="FOLDER", unset="report/ in the first run folder")
    upload: bool = option(False, "also send the results of these runs that MLflow lacks")
    experiment: str | None = option(
        None, "read this MLflow experiment instead of run folders (MLFLOW_TRACKING_URI)", metavar="NAME", unset="none"
    )
    register: str | None = option(
        None, "also log the best trial's model to MLflow and register it under this name", metavar="NAME", unset="none"
    )


OPTIONS = ReportCommand


def run(arguments: Sequence[str], program: str) -> None:
    report_script(parse(ReportCommand, arguments, program))


def report_script(options: ReportCommand) -> None:
    """Write a report, print its tables and where it is. ValueError without anything to read, or where MLflow is away."""
    try:
        folders = _folders(options)
        _write(folders, options.out)
        if options.upload:
            _upload(folders)
        if options.register is not None:
            _register(folders, options.register)
    except ConnectionError as error:
        raise ValueError(str(error)) from None


def _folders(options: ReportCommand) -> list[Location]:
    if options.experiment is None:
        if not options.runs:
            raise ValueError("runs: got none; give one or more run folders, or --experiment NAME")
        return [locate(folder) for folder in options.runs]
    if options.runs or options.upload or options.register is not None:
        raise ValueError("--experiment: reads from MLflow; it takes no run folders, --upload or --register")
    from ray_atr.tracking import fetch_experiment, store_of

    out = options.out or home() / "runs" / f"from_mlflow_{options.experiment}"
    return fetch_experiment(options.experiment, store_of(home() / "runs" / "any"), locate(out))


def _write(folders: Sequence[Location], out: str | None) -> None:
    from ray_atr.report import write_report

    report = write_report(*folders, out=out)
    print(report.summary + "\n")
    print(f"report: {report.page}")
    for path in (report.table_csv, report.table_markdown, *report.figures):
        print(f"        {path}")


def _upload(folders: Sequence[Location]) -> None:
    from ray_atr.tracking import mlflow_command, upload

    for folder in folders:
        tracker = upload(folder)
        print(
            f"MLflow run {tracker.parent_run_id()} holds everything of {folder}; compare with\n  {mlflow_command(folder)}"
        )
        print(
            f"curves, best trial first:\n  {tracker.charts_url()}\ntrials side by side:\n  {tracker.comparison_url()}"
        )


def _register(folders: Sequence[Location], name: str) -> None:
    from ray_atr.tracking import loading_lines, store_of
    from ray_atr.tracking.model import register_model

    for folder in folders:
        uri = register_model(folder, name=name)
        print(f"registered as {name}; to load it in Python:\n{loading_lines(store_of(folder), uri)}")
