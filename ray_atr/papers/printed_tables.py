"""The numbers printed in the papers, for reference beside our runs on the same data set and split; no test expects them.

`printed/` has a file for each paper, with a line for each printed row (for ATRI, each row and language). A `{}` in the name of
a metric is the line's language, an empty cell is a number that is not printed, and `42.0-4.3` is a difference.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

from ray_atr.common.table import Cell, Table, written
from ray_atr.evaluation.report.evaluation_tables import DIRECTION_TITLES
from ray_atr.metrics.measures import measure
from ray_atr.metrics.metric import MEAN, Metric

FOLDER = Path(__file__).parent / "printed"
PAPERS = {"m_ltm": "Luong et al. 2024 (m-LTM)", "atri": "Yin et al. 2025 (ATRI)", "ask": "Fu et al. 2025 (ASK)"}
OF_TABLE = ("place", "title", "data", "trained_on", "towers")
"""The columns of a file that name the table of a line."""
GAIN = "Gain in points"


@dataclass(frozen=True)
class PrintedRow:
    """One printed row.

    objective  our preset's name, or the paper's name of another system.
    settings   the row's settings: path -> value.
    numbers    our metric -> the number with its printed decimals (recall, precision and accuracy in percent).
    """

    objective: str
    settings: Mapping[str, Any]
    numbers: Mapping[Metric, Decimal]


@dataclass(frozen=True)
class PaperTable:
    """Printed numbers, and the data and towers behind them.

    place       table or figure of the paper: `Table 5`.
    data        name of the data set, as in `prepare_data.py`; the split is test.
    trained_on  the data set of training, if it differs.
    towers      audio and text encoder.
    """

    paper: str
    place: str
    title: str
    data: str
    trained_on: str
    towers: str
    rows: tuple[PrintedRow, ...]
    split: str = "test"

    @property
    def is_gain(self) -> bool:
        """Whether the numbers are differences to another system, which the row names; the paper prints nothing else."""
        return self.title == GAIN

    @property
    def source(self) -> str:
        """Paper, table, data set, split and towers, in words."""
        trained = f"trained on {self.trained_on}, " if self.trained_on else ""
        return f"{self.paper}, {self.place}: {trained}{self.data}, {self.split} split, {self.towers}"


@cache
def printed_tables(paper: str, folder: Path = FOLDER) -> tuple[PaperTable, ...]:
    """Every table of one of `PAPERS`, in the order of its file in the folder. ValueError for a line with more or fewer cells than
    the first.
    """
    tables: dict[tuple[str, ...], dict[tuple[str, str], dict[Metric, Decimal]]] = {}
    with (folder / f"{paper}.csv").open(newline="", encoding="utf-8") as file:
        names, *lines = csv.reader(line for line in file if not line.startswith("#"))
    for line in lines:
        row = dict(zip(names, line, strict=True))
        rows = tables.setdefault(tuple(row.get(name, "") for name in OF_TABLE), {})
        numbers = rows.setdefault((row["objective"], row.get("setting", "")), {})
        for name in names:
            if "/" in name and row[name]:
                printed, *losses = map(Decimal, row[name].split("-"))
                numbers[Metric.parse(name.format(row.get("language")))] = printed - sum(losses)
    return tuple(
        PaperTable(
            paper=PAPERS[paper],
            **dict(zip(OF_TABLE, table, strict=True)),
            rows=tuple(PrintedRow(name, _settings(setting), numbers) for (name, setting), numbers in rows.items()),
        )
        for table, rows in tables.items()
    )


def printed_in(paper: str, *names: str) -> tuple[PaperTable, ...]:
    """The tables of a paper that are printed in these places."""
    return tuple(table for table in printed_tables(paper) if table.place in names)


def _settings(text: str) -> dict[str, Any]:
    """The setting of a row, `path=value`, or none."""
    path, _, value = text.partition("=")
    return {path: json.loads(value)} if path else {}


def printed_beside(metrics: Mapping[Metric, float], data: str, split: str, trained_on: str) -> list[Table]:
    """A table for each matching printed one: this evaluation's numbers in the first row, then the printed rows.

    Data sets are compared by the names in their manifests. A table by language is compared by its mean.
    """
    return [
        table
        for name in PAPERS
        for paper in printed_tables(name)
        if (paper.data, paper.split, paper.trained_on or paper.data) == (data, split, trained_on)
        and (table := _beside(paper, metrics)) is not None
    ]


def _beside(paper: PaperTable, metrics: Mapping[Metric, float]) -> Table | None:
    printed = dict.fromkeys(metric for row in paper.rows for metric in row.numbers)
    by_mean = any(metric.language == MEAN for metric in printed)
    columns = [metric for metric in printed if metric in metrics and (metric.language == MEAN or not by_mean)]
    if not columns:
        return None
    cells = [measure(column.name).show(metrics[column]) for column in columns]
    # A gain is a difference of two systems, to which one evaluation cannot be compared.
    rows = [] if paper.is_gain else [[Cell("this evaluation", is_number=False), *map(Cell, cells)]]
    for row in paper.rows:
        settings = [f"{path.rsplit('.', 1)[-1]} {written(value)}" for path, value in row.settings.items()]
        label = f"{row.objective} ({', '.join(['paper', *settings])})"
        numbers = [row.numbers.get(column) for column in columns]
        texts = [f"+{number}" if paper.is_gain and number is not None else written(number) for number in numbers]
        rows.append([Cell(label, is_number=False), *map(Cell, texts)])
    title = f"{paper.title}: beside {paper.paper}, {paper.place}"
    headings = [
        ", ".join(filter(None, (DIRECTION_TITLES.get(column.task), measure(column.name).heading))) for column in columns
    ]
    return Table(title, f"Printed in {paper.source}.", ["", *headings], [rows])
