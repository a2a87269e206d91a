"""`ray-atr report`: tables, figures and one HTML page of one or several run folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from ray_atr.cli.parse import option, parse


@dataclass(frozen=True)
class ReportCommand:
    """Write the report of run folders."""

    runs: Annotated[
        tuple[str, ...],
        tyro.conf.Positional,
        option("run folders or URLs (s3://...); read together", metavar="FOLDER ...", unset="what --experiment names"),
    ] = ()
    out: Annotated[str | None, option("folder to write", metavar="FOLDER", unset="report/ in the first run folder")] = (
        None
    )
    upload: Annotated[bool, option("also send the results of these runs that MLflow lacks")] = False
    experiment: Annotated[
        str | None,
        option(
            "read this MLflow experiment instead of run folders (MLFLOW_TRACKING_URI)", metavar="NAME", unset="none"
        ),
    ] = None
    register: Annotated[
        str | None,
        option(
            "also log the best trial's model to MLflow and register it under this name",
            metavar="NAME",
            unset="none",
        ),
    ] = None


OPTIONS = ReportCommand


def run(arguments: Sequence[str], program: str) -> None:
    options = parse(ReportCommand, arguments, program)
    from ray_atr.cli.reporting import report_script

    report_script(
        options.runs,
        out=options.out,
        is_upload=options.upload,
        experiment=options.experiment,
        register=options.register,
    )
