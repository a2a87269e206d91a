"""An evaluation beside what the papers print for a model trained on the same data set and measured on the same split."""

from __future__ import annotations

from collections.abc import Mapping

from ray_atr.metrics.measures import measure
from ray_atr.metrics.metric import Metric
from ray_atr.report import formatting
from ray_atr.report.evaluation_tables import DIRECTION_TITLES
from ray_atr.report.paper_tables import PAPERS, PaperTable, printed_tables
from ray_atr.table import Cell, Table


def printed_beside(metrics: Mapping[Metric, float], data: str, split: str, trained_on: str) -> list[Table]:
    """A table for each printed one that fits: this evaluation's numbers in the first row, then the paper's as they are printed.

    Data sets go by the names in their manifests. A table by language is compared in its mean.
    """
    return [
        table
        for name in PAPERS
        for paper in printed_tables(name)
        if (paper.data, paper.split, paper.trained_on or paper.data) == (data, split, trained_on)
        and (table := _table(paper, metrics)) is not None
    ]


def _table(paper: PaperTable, metrics: Mapping[Metric, float]) -> Table | None:
    printed = list(dict.fromkeys(name for row in paper.rows for name in row.numbers))
    by_mean = any("/mean/" in name for name in printed)
    names = [name for name in printed if name in metrics and ("/mean/" in name or not by_mean)]
    if not names:
        return None
    columns = [Metric.parse(name) for name in names]
    own = [measure(column.name).show(metrics[column]) for column in columns]
    # A gain has nothing here to stand beside: it is of two systems.
    rows = [] if paper.is_gain else [[Cell("this evaluation", is_number=False), *map(Cell, own)]]
    for row in paper.rows:
        settings = ", ".join(
            f"{path.rsplit('.', 1)[-1]} {formatting.value(value)}" for path, value in row.settings.items()
        )
        label = f"{row.objective} (paper{', ' + settings if settings else ''})"
        numbers = [row.numbers.get(name) for name in names]
        texts = [
            f"+{number}" if paper.is_gain and number is not None else formatting.value(number) for number in numbers
        ]
        rows.append([Cell(label, is_number=False), *map(Cell, texts)])
    title = f"{paper.title}: beside {paper.paper}, {paper.place}"
    return Table(title, f"Printed in {paper.source}.", ["", *map(_heading, columns)], [rows])


def _heading(column: Metric) -> str:
    direction = DIRECTION_TITLES.get(column.task)
    return f"{direction}, {measure(column.name).heading}" if direction else measure(column.name).heading
