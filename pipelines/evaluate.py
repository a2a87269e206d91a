"""Evaluate saved retrievers on a data set's split, in every language, and compare two.

    uv run python pipelines/evaluate.py --checkpoint runs/train-...
    uv run python pipelines/evaluate.py --checkpoint runs/sweep_noise-.../trials/TRIAL --data data/esc50 --split val
    uv run python pipelines/evaluate.py --checkpoint runs/a0 runs/a1 --baseline runs/b0 runs/b1 --out runs/a_against_b

A checkpoint is a trial's folder, a run of one trial, or a folder that `Retriever.save_pretrained` wrote; several are seeds of
one experiment. Folders may be URLs (`s3://...`). The results are a JSON, a Markdown and an HTML file, and every query's scores,
in one new folder.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Annotated

import tyro
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ray_atr.cli import parse, run_script
from ray_atr.evaluating import EvaluationOptions, evaluate
from ray_atr.evaluating.console import print_evaluation
from ray_atr.evaluating.encoding import Encoding


@dataclass(frozen=True, kw_only=True)
class Options:
    """Evaluate saved retrievers."""

    checkpoint: Annotated[tuple[str, ...], tyro.conf.arg(help="what to evaluate; several: seeds of one experiment")]
    options: tyro.conf.OmitArgPrefixes[EvaluationOptions] = field(default_factory=EvaluationOptions)
    encoding: tyro.conf.OmitArgPrefixes[Encoding] = field(default_factory=Encoding)
    baseline: Annotated[
        tuple[str, ...],
        tyro.conf.arg(help="what to compare it with: checkpoints, or the folder of an earlier evaluation"),
    ] = ()
    out: Annotated[str | None, tyro.conf.arg(help="folder or URL to make (default: runs/evaluate-<time>)")] = None


def main() -> None:
    given, _ = parse(Options)
    # Into a file, rows stay whole.
    console = Console(width=None if sys.stdout.isatty() else 140)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("clips and captions"))
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console) as bar:
        tasks = {}

        def advance(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(f"encoding by {name}", total=total)
            bar.update(tasks[name], completed=done)

        evaluated = evaluate(
            given.checkpoint,
            given.options,
            baseline=given.baseline,
            encoding=given.encoding,
            out=given.out,
            progress=advance,
            say=lambda message: bar.console.print(message, markup=False, highlight=False),
        )
    print_evaluation(evaluated, console)


if __name__ == "__main__":
    run_script(main)
