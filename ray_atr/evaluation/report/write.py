"""The report of a run folder: tables, figures and the page, written into its `report/`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Number
from pathlib import Path
from typing import Any

import pandas as pd

from ray_atr.common.settings import wing
from ray_atr.common.storage import Location, locate, sent
from ray_atr.common.table import Table
from ray_atr.evaluation.report.aggregate import aggregate
from ray_atr.evaluation.report.curves import curves_of, draw_curve
from ray_atr.evaluation.report.figures import draw_languages, draw_pareto, draw_time_shares
from ray_atr.evaluation.report.read import NOISE, Runs, read_runs
from ray_atr.evaluation.report.sweep_page import Picture, sweep_page
from ray_atr.evaluation.report.tables import language_groups, learnt_nothing, paired_table, race_table, recall_table
from ray_atr.metrics.epoch_report import TASKS

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First characters of a text that a spreadsheet takes for a formula."""


@dataclass(frozen=True)
class ReportPaths:
    """The files of a report, and its summary for a terminal."""

    page: Location
    table_csv: Location
    table_markdown: Location
    figures: tuple[Location, ...]
    summary: str


@dataclass(frozen=True)
class Added:
    """A section's additions to a report: tables before the main ones, layouts after them, pictures before the figures; and a line
    for each part of the runs that is in none of its tables, with the reason.
    """

    tables: list[Table] = field(default_factory=list)
    layouts: list[Table] = field(default_factory=list)
    pictures: list[Picture] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def write_report(
    run_folder: Location | str, *more: Location | str, out: Location | str | None = None, figures: bool = True
) -> ReportPaths:
    """Read one or several run folders and write report.html, table.csv, trials.csv, table.md and, if wanted, the figures.

    They go to `out`, by default `report/` in the first folder. A sweep that is still running, or that has failed trials, is
    reported as far as it is. Raises ValueError if a folder is no run folder or holds no trial.
    """
    runs = read_runs([run_folder, *more])
    place = locate(out) if out is not None else runs.folders[0] / "report"
    tables = main_tables(runs)
    with sent(place) as folder:
        added = [section(runs, folder, figures) for section in wing("papers.sections").SECTIONS]
        of_sections = [table for added_section in added for table in added_section.tables]
        summary = _summary(runs, tables, of_sections)
        tables = [*of_sections, *tables]
        if (of_race := race_table(runs.dropped)) is not None:
            tables.append(of_race)
        if left_out := [line for added_section in added for line in added_section.left_out]:
            summary += "\nnot in the joint table:\n  " + "\n  ".join(left_out)
        layouts = [layout for added_section in added for layout in added_section.layouts]
        pictures = [picture for added_section in added for picture in added_section.pictures]
        if figures:
            pictures += _figures(runs, folder)
        write_csv(_named_by_split(aggregate(runs), runs), folder / "table.csv")
        # A trial without a best epoch would make the others' a 5.0.
        integer_columns = {"best_epoch": "Int64"} if "best_epoch" in runs.trials else {}
        write_csv(runs.trials.astype(integer_columns), folder / "trials.csv")
        (folder / "table.md").write_text(
            "\n".join(table.to_markdown() for table in (*tables, *layouts)), encoding="utf-8"
        )
        (folder / "report.html").write_text(sweep_page(runs, tables, layouts, pictures), encoding="utf-8")
    return ReportPaths(
        page=place / "report.html",
        table_csv=place / "table.csv",
        table_markdown=place / "table.md",
        figures=tuple(place / picture.path.name for picture in pictures),
        summary=summary,
    )


def _named_by_split(points: pd.DataFrame, runs: Runs) -> pd.DataFrame:
    """The points, with the split in the name of each metric: `test/text_to_audio/eng/recall_at_1`."""
    splits = runs.measured_on
    if len(splits) != 1:
        return points
    return points.rename(columns={name: f"{splits[0]}/{name}" for name in points if name.startswith(TASKS)})


def _summary(runs: Runs, tables: Sequence[Table], of_sections: Sequence[Table]) -> str:
    """What a terminal shows: the tables, and the number of missing trials."""
    if runs.finished.empty:
        return f"no trial has finished yet ({len(runs.trials)} in all)"
    texts = [*(table.to_text() for table in tables), *(table.to_text(with_details=True) for table in of_sections)]
    text = "\n\n".join(texts)
    if missing := [f"{count} {status}" for status, count in runs.unfinished["status"].value_counts().items()]:
        text += f"\nleft out: {', '.join(missing)}"
    if runs.dropped:
        text += f"\ndropped by the race, without numbers of all seeds: {', '.join(runs.dropped)}"
        text += "\nif several points remain, the race does not say which of them is the best"
    if runs.problems:
        text += "\nproblems:\n  " + "\n  ".join(runs.problems)
    if nothing := learnt_nothing(runs):
        text += "\nlearned nothing (R@1 not distinguishable from chance): " + ", ".join(nothing)
    return text


def main_tables(runs: Runs) -> list[Table]:
    """R@1, R@10 and mAP10 in both directions, of the trained languages and then of the others; and paired differences."""
    if runs.finished.empty:
        return []
    differences = paired_table(runs)
    recall = [recall_table(runs, language) for language in language_groups(runs)]
    return [*recall, differences] if differences is not None else recall


def _figures(runs: Runs, folder: Path) -> list[Picture]:
    if runs.finished.empty:
        return []
    figures = []
    for curve in curves_of(runs):
        kind = "noise" if curve.path == NOISE else curve.label
        figures.append(Picture(draw_curve(runs, curve, folder / f"{curve.file}.png"), f"R@1 against {kind}"))
    for draw, name, title in (
        (draw_languages, "languages", "R@1 by language"),
        (draw_pareto, "pareto", "Recall against cost"),
        (draw_time_shares, "time_shares", "Where an epoch's time goes"),
    ):
        if (path := draw(runs, folder / f"{name}.png")) is not None:
            figures.append(Picture(path, title, is_of_results=draw is not draw_time_shares))
    return figures


def write_csv(frame: pd.DataFrame, file: Path) -> None:
    """Write a frame without its index. `<` becomes `&lt;`; an apostrophe goes before a text that begins like a formula."""
    frame.rename(columns=_plain).map(_plain).to_csv(file, index=False)


def _plain(value: Any) -> Any:
    if value is None or value is pd.NA or isinstance(value, Number | bool):
        return value
    text = str(value)
    return ("'" if text.startswith(FORMULA) else "") + text.replace("<", "&lt;")
