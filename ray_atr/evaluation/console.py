"""An evaluation at a terminal: the tables, the differences to the baseline, and where everything is."""

from __future__ import annotations

from rich.console import Console

from ray_atr.evaluation.run import Evaluated
from ray_atr.report.evaluation_tables import metric_tables
from ray_atr.tracking import mlflow_command


def print_evaluation(evaluated: Evaluated, console: Console) -> None:
    """Print the page's tables and notes, then its files and the command that opens MLflow."""
    page = evaluated.page
    console.rule(page.title)
    for warning in page.warnings:
        console.print(warning, markup=False, highlight=False, style="bold")
    # The page has the intervals of all numbers; at a terminal they would break the rows, so none are announced.
    for note in page.reading_without_brackets:
        console.print(note, markup=False, highlight=False, style="dim")
    for table in metric_tables(page.metrics, None, page.spreads, page.titles, page.trained):
        console.print(table.to_text(console.width), markup=False, highlight=False, soft_wrap=True)
    if page.comparison:
        console.rule(f"{page.compared[1]} against {page.compared[0]}")
        console.print(page.comparisons[0].to_text(console.width), markup=False, highlight=False, soft_wrap=True)
    lines = [f"results: {evaluated.folder}", f"page:    {evaluated.folder / 'evaluation.html'}"]
    if evaluated.mlflow_run is not None:
        lines += [f"MLflow:  {mlflow_command(evaluated.folder)}"]
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
