"""An evaluation at a terminal: the tables, the differences to the baseline, and where everything is."""

from __future__ import annotations

from rich.console import Console
from rich.table import Column
from rich.table import Table as RichTable

from ray_atr.evaluating.run import Evaluated
from ray_atr.evaluation.tables import Table, metric_tables
from ray_atr.tracking import mlflow_command


def print_evaluation(evaluated: Evaluated, console: Console) -> None:
    """Print the page's tables and notes, then its files and the command that opens MLflow."""
    page = evaluated.page
    console.rule(page.title)
    for note in page.reading:
        console.print(note, markup=False, highlight=False, style="dim")
    # The page has the intervals of all numbers; at a terminal they would break the rows.
    for table in metric_tables(page.metrics, spreads=page.spreads):
        console.print(_as_rich(table))
    if page.comparison:
        console.rule(f"{page.compared[1]} against {page.compared[0]}")
        console.print(_as_rich(page.comparisons[0]), page.comparisons[0].note)
    lines = [f"results: {evaluated.folder}", f"page:    {evaluated.folder / 'evaluation.html'}"]
    if evaluated.mlflow_run is not None:
        lines += [f"MLflow:  {mlflow_command(evaluated.folder)}"]
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _as_rich(table: Table) -> RichTable:
    result = RichTable(Column(no_wrap=True), title=table.title, title_justify="left", box=None, pad_edge=False)
    for column in table.columns:
        result.add_column(column, justify="right", no_wrap=True)
    for label, cells in table.rows:
        result.add_row(label, *cells)
    return result
