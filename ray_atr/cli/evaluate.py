"""`ray-atr evaluate`: evaluates saved retrievers on a data set's split, in every language, and compares two."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ray_atr.cli.parse import check_actors, counting, heartbeat, option, parse, print_plain
from ray_atr.common.runtime import STARTS_AGAIN, advising
from ray_atr.common.settings import refuse
from ray_atr.evaluation.options import Encoding, EvaluationOptions

if TYPE_CHECKING:
    from mteb.abstasks.abstask import AbsTask

    from ray_atr.evaluation.calibrate import CalibrationScore
    from ray_atr.evaluation.mteb_scoring import TaskScore
    from ray_atr.evaluation.run import Evaluated


@dataclass(frozen=True, kw_only=True)
class EvaluateCommand:
    """Evaluate saved retrievers.

    A checkpoint is a trial's folder, a run of one trial, a folder that `Retriever.save_pretrained` wrote, or the published
    weights of LAION-CLAP or ML-CLAP; several are seeds of one experiment. Folders may be URLs (s3://...). The results are a
    JSON, a Markdown and an HTML file, and every query's scores, in one new folder.
    """

    checkpoint: tuple[str, ...] = option(
        help="what to evaluate; several count as seeds of one experiment", metavar="FOLDER ..."
    )
    evaluation: tyro.conf.OmitArgPrefixes[EvaluationOptions] = field(default_factory=EvaluationOptions)
    encoding: tyro.conf.OmitArgPrefixes[Encoding] = field(default_factory=Encoding)
    baseline: tuple[str, ...] = option(
        (), "what to compare it with: checkpoints, or the folder of an earlier evaluation", "FOLDER ...", "nothing"
    )
    calibrate: bool = option(
        False, "also write calibration.json beside the (first) retriever: what its scores mean, by language"
    )
    prior: float | None = option(
        None, "with --calibrate: share of matching pairs where the retriever will be used", "SHARE", "the split's own"
    )
    false_nothing: float | None = option(
        None,
        "with --calibrate: share of texts for which --or-nothing may find nothing although a clip matches",
        "SHARE",
        "0.05",
    )
    card: bool = option(False, "also write the scores into the card (README.md) beside the (first) retriever")
    mteb: tuple[str, ...] = option(
        (),
        "also let MTEB score the (first) retriever: its tasks by name, or folders of prepared data sets",
        "TASK ...",
        "none",
    )
    out: str | None = option(None, "folder or URL to make", "FOLDER", "runs/evaluate-<time>")


OPTIONS = EvaluateCommand


def run(arguments: Sequence[str], program: str) -> None:
    command = parse(EvaluateCommand, arguments, program)
    check_actors(command.encoding)
    for name, share in (("--prior", command.prior), ("--false-nothing", command.false_nothing)):
        if share is not None and not (command.calibrate and 0 < share < 1):
            raise refuse(name, share, "a share above 0 and below 1, with --calibrate")
    from ray_atr.common.storage import require_writable
    from ray_atr.evaluation.checkpoints import find_checkpoint
    from ray_atr.evaluation.run import evaluate

    if command.card or command.calibrate:
        # They are written after everything else.
        require_writable(find_checkpoint(command.checkpoint[0]).folder)
    tasks = []
    if command.mteb:
        from ray_atr.evaluation.mteb_scoring import find_tasks

        # Before any encoding, to report a wrong name or a missing extra at once.
        tasks = find_tasks(command.mteb, command.evaluation, find_checkpoint(command.checkpoint[0]))
    # Rows are not wrapped in a file.
    console = Console(width=None if sys.stdout.isatty() else 140)
    # Ranking, TREC files and the rest may each take minutes.
    with heartbeat("evaluating", write=lambda line: print_plain(console, [line])) as echo:
        with advising(STARTS_AGAIN), counting("clips and captions", console, write=echo) as count:
            evaluated = evaluate(
                command.checkpoint,
                command.evaluation,
                baseline=command.baseline,
                encoding=command.encoding,
                out=command.out,
                progress=lambda name, done, total: count(f"encoding by {name}", done, total),
                echo=echo,
            )
        advice = f"the evaluation is complete in {evaluated.folder}"
        if extras := " ".join(f"--{name}" for name in ("card", "calibrate", "mteb") if getattr(command, name)):
            # They are made from vectors, which are not kept.
            advice += f"; for {extras} run the command again with a new --out"
        with advising(advice):
            print_evaluation(evaluated, console)
            if command.evaluation.trec:
                print_plain(console, [f"TREC:    {evaluated.folder}/run-<language>.trec, qrels-<language>.trec"])
            try:
                make_extras(command, evaluated, tasks, console)
            except ValueError as error:
                # A task's data set that is not in reach, or too few clips for a calibration.
                raise ValueError(f"{error}; {advice}") from None


def make_extras(command: EvaluateCommand, evaluated: Evaluated, tasks: Sequence[AbsTask], console: Console) -> None:
    """Write the card, the calibration and MTEB's scores, as far as they are asked for."""
    if command.card:
        from ray_atr.evaluation.card import write_card

        print_plain(console, [f"card:    {write_card(evaluated)}"])
    if command.calibrate:
        from ray_atr.evaluation.calibrate import calibrate
        from ray_atr.metrics.nothing import FALSE_SHARE

        share = FALSE_SHARE if command.false_nothing is None else command.false_nothing
        print_calibration(calibrate(evaluated, prior=command.prior, false_nothing=share), evaluated, console)
    if tasks:
        from ray_atr.evaluation.mteb_scoring import score_tasks

        print_tasks(
            score_tasks(evaluated, tasks, echo=lambda message: print_plain(console, [message])), evaluated, console
        )


def print_evaluation(evaluated: Evaluated, console: Console) -> None:
    """Print the page's tables and notes, then its files and the command that opens MLflow."""
    from ray_atr.evaluation.report.evaluation_tables import metric_tables
    from ray_atr.sweep.tracking import mlflow_command

    page = evaluated.page
    console.rule(Text(page.title))
    # A terminal is too narrow for the intervals, which the page has, so the note on them is left out.
    for notes, style in ((page.warnings, "bold"), (page.reading_without_brackets, "dim")):
        for note in notes:
            console.print(note, markup=False, highlight=False, style=style)
    tables = metric_tables(page.metrics, None, page.spreads, page.titles, page.trained)
    print_plain(console, [table.to_text(console.width) for table in tables])
    if page.comparison:
        console.rule(Text(f"{page.compared[1]} against {page.compared[0]}"))
        print_plain(console, [page.comparisons[0].to_text(console.width)])
    print_plain(console, [f"results: {evaluated.folder}", f"page:    {evaluated.folder / 'evaluation.html'}"])
    if evaluated.mlflow_run is not None:
        print_plain(console, [f"MLflow:  {mlflow_command(evaluated.folder)}"])


def print_calibration(scores: Mapping[str, CalibrationScore], evaluated: Evaluated, console: Console) -> None:
    """Print by language how well the calibration fits held-out clips, and its file."""
    from ray_atr.metrics.calibration import CALIBRATION_FILE, Calibration

    fitted = Calibration.read(evaluated.checkpoint.folder)
    assert fitted is not None
    console.rule(f"calibration on {fitted.clips:,} clips, measured on other clips than it was fitted on")
    for language, score in scores.items():
        best = f"of the best answer {score.error_of_best:.3f} ({score.chance:.3f} by chance)"
        numbers = f"error {score.error:.4f}, {best}; a cut for 90% holds {score.coverage:.1%}"
        print_plain(console, [f"{language}: {numbers}; prior {score.prior:.2g}"])
    if fitted.warning:
        print_plain(console, [f"note: {fitted.warning}"])
    print_plain(console, [f"calibration: {evaluated.checkpoint.folder / CALIBRATION_FILE}"])


def print_tasks(scores: Sequence[TaskScore], evaluated: Evaluated, console: Console) -> None:
    """Print MTEB's scores of each task by language, and the folder of its results."""
    from ray_atr.metrics.measures import RECALL_AT

    console.rule("MTEB")
    table = Table("task", "subset", *(f"R@{k}" for k in RECALL_AT), "main score")
    for score in scores:
        recall = (f"{100 * score.recall[k]:.1f}" if k in score.recall else "" for k in RECALL_AT)
        table.add_row(score.task, score.subset, *recall, f"{score.main_score} {100 * score.main:.1f}")
    console.print(table, markup=False)
    print_plain(console, [f"MTEB:    {evaluated.folder / 'mteb'}"])
