"""Write the report of one or several run folders: tables, figures and one HTML page.

uv run python pipelines/report.py runs/sweep_noise-...
uv run python pipelines/report.py runs/first runs/second --out runs/both
uv run python pipelines/report.py s3://bucket/runs/sweep_noise --out report
uv run python pipelines/report.py runs/sweep_noise-... --upload
uv run python pipelines/report.py --experiment ray_atr --out runs/from_mlflow
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from ray_atr.cli import parse, run_script
from ray_atr.report import report_script


@dataclass(frozen=True)
class Options:
    """Write the report of run folders."""

    runs: Annotated[
        tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(help="run folders or URLs (s3://...); read together")
    ] = ()
    out: Annotated[str | None, tyro.conf.arg(help="folder to write (default: report/ in the first run folder)")] = None
    upload: Annotated[bool, tyro.conf.arg(help="also send to MLflow what it lacks of these runs")] = False
    experiment: Annotated[
        str | None, tyro.conf.arg(help="read this MLflow experiment instead of run folders (MLFLOW_TRACKING_URI)")
    ] = None
    register: Annotated[
        str | None, tyro.conf.arg(help="also log the best trial's model to MLflow and enter it in the registry as this")
    ] = None


def main() -> None:
    options, _ = parse(Options)
    report_script(
        options.runs,
        out=options.out,
        is_upload=options.upload,
        experiment=options.experiment,
        register=options.register,
    )


if __name__ == "__main__":
    run_script(main)
