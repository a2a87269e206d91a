"""The report of a run folder: tables, figures and the page, written into its `report/`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ray_atr.report.ablation import ablation_table, is_ablation
from ray_atr.report.aggregate import aggregate
from ray_atr.report.bars import draw_languages
from ray_atr.report.curves import curves_of, draw_curve
from ray_atr.report.layouts import paper_layouts
from ray_atr.report.page import Figure, render
from ray_atr.report.pareto import draw_pareto
from ray_atr.report.read import NOISE, Runs, read_runs
from ray_atr.report.tables import Table, of_whom, recall_columns, recall_table
from ray_atr.storage import Location, locate, sent


@dataclass(frozen=True)
class ReportPaths:
    """The files of a report."""

    page: Location
    table_csv: Location
    table_markdown: Location
    figures: tuple[Location, ...]


def write_report(run_folder: Location | str, *more: Location | str, out: Location | str | None = None) -> ReportPaths:
    """Read one or several run folders and write report.html, table.csv, trials.csv, table.md and the figures.

    They go to `out`, by default `report/` in the first folder. A sweep that is still running, or that has failed trials, is
    reported as far as it is. Raises ValueError where a folder is no run folder or holds no trial.
    """
    runs = read_runs([run_folder, *more])
    place = locate(out) if out is not None else runs.folders[0] / "report"
    tables = main_tables(runs)
    layouts = paper_layouts(runs)
    with sent(place) as folder:
        figures = _figures(runs, folder)
        aggregate(runs).to_csv(folder / "table.csv", index=False)
        runs.trials.to_csv(folder / "trials.csv", index=False)
        (folder / "table.md").write_text("\n".join(table.to_markdown() for table in (*tables, *layouts)))
        (folder / "report.html").write_text(render(runs, tables, layouts, figures))
    return ReportPaths(
        page=place / "report.html",
        table_csv=place / "table.csv",
        table_markdown=place / "table.md",
        figures=tuple(place / figure.path.name for figure in figures),
    )


def summary_table(run_folder: Location | str) -> str:
    """The table a terminal shows at the end of a sweep: R@1 and R@10, both directions, and how many trials are missing."""
    runs = read_runs([run_folder])
    if runs.finished.empty:
        return f"no trial has finished yet ({len(runs.trials)} in all)"
    text = "\n\n".join(table.to_text() for table in main_tables(runs))
    missing = [f"{count} {status}" for status, count in runs.unfinished["status"].value_counts().items()]
    if missing:
        text += f"\nleft out: {', '.join(missing)}"
    changed = list(runs.trials["changed"].dropna())
    if changed:
        text += "\nchanged on the way; the tables name what they began with:\n  " + "\n  ".join(changed)
    return text


def main_tables(runs: Runs) -> list[Table]:
    """R@1, R@10 and mAP10 in both directions: for English, and for the mean of languages where there are several."""
    if runs.finished.empty:
        return []
    languages = ["eng", "mean"] if len(runs.languages) > 1 else runs.languages or ["mean"]
    if is_ablation(runs):
        return [
            ablation_table(runs, recall_columns(language), f"Recall by ASK's parts, {of_whom(language)}")
            for language in languages
        ]
    return [recall_table(runs, language) for language in languages]


def _figures(runs: Runs, folder: Path) -> list[Figure]:
    if runs.finished.empty:
        return []
    figures = []
    for curve in curves_of(runs):
        what = "noise" if curve.path == NOISE else curve.label
        figures.append(Figure(draw_curve(runs, curve, folder / f"{curve.file}.png"), f"R@1 against {what}"))
    for path, title in (
        (draw_languages(runs, folder / "languages.png"), "R@1 by language"),
        (draw_pareto(runs, folder / "pareto.png"), "Recall against cost"),
    ):
        if path is not None:
            figures.append(Figure(path, title))
    return figures
