"""A table as plain cells, and the three ways it is written: Markdown, terminal, and rows for the page."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import pandas as pd

from ray_atr.report import cells
from ray_atr.report.aggregate import NUM_SEEDS, aggregate
from ray_atr.report.read import NOISE, OBJECTIVE, TEST, VALIDATION, Runs, short_name

DIRECTIONS = {"text_to_audio": "text→audio", "audio_to_text": "audio→text"}
Kind = Literal["percent", "number"]


@dataclass(frozen=True)
class Column:
    """One column of numbers: the metric, what heads it, how it is written, and which end is better (None: neither)."""

    metric: str
    title: str
    group: str = ""
    kind: Kind = "percent"
    is_higher_better: bool | None = True


@dataclass(frozen=True)
class Cell:
    """One cell: its text, and whether it is the best of its block."""

    text: str
    is_best: bool = False
    is_number: bool = True


@dataclass(frozen=True)
class Table:
    """A titled table of texts; `blocks` are groups of rows within which the best is marked."""

    title: str
    note: str
    groups: Sequence[tuple[str, int]]
    """Heading over several columns, and how many it spans."""
    columns: Sequence[str]
    blocks: Sequence[Sequence[Sequence[Cell]]]
    references: Sequence[Sequence[Cell]] = field(default_factory=list)
    """Rows of numbers printed in a paper, shown apart and greyed."""
    reference_note: str = ""

    def to_markdown(self) -> str:
        """GitHub's table syntax, the best in bold, the columns aligned in the source too."""
        heads = self._flat_heads()
        rows = [
            [f"**{cell.text}**" if cell.is_best else cell.text for cell in row]
            for block in self.blocks
            for row in block
        ]
        rows += [[f"*{cell.text}*" for cell in row] for row in self.references]
        widths = [max(len(row[index]) for row in [heads, *rows]) for index in range(len(heads))]
        aligned = self._are_numbers()
        rule = ["-" * (width - 1) + (":" if right else "-") for width, right in zip(widths, aligned, strict=True)]
        lines = [heads, rule, *rows]
        text = "\n".join(
            "| "
            + " | ".join(
                cell.rjust(width) if right and line is not rule else cell.ljust(width)
                for cell, width, right in zip(line, widths, aligned, strict=True)
            )
            + " |"
            for line in lines
        )
        note = f"\n{self.note}\n" if self.note else ""
        return f"### {self.title}\n{note}\n{text}\n"

    def to_text(self) -> str:
        """For a terminal: aligned columns, `*` after the best of each block, a rule between blocks."""
        blocks = [
            [[cell.text + ("*" if cell.is_best else " ") for cell in row] for row in block] for block in self.blocks
        ]
        aligned = self._are_numbers()
        heads = [title + " " for title in self.columns]
        widths = [
            max(len(heads[index]), *(len(row[index]) for block in blocks for row in block))
            for index in range(len(heads))
        ]

        def line(row: Sequence[str]) -> str:
            cells_of_row = zip(row, widths, aligned, strict=True)
            return "  ".join(cell.rjust(width) if right else cell.ljust(width) for cell, width, right in cells_of_row)

        above, start = "", 0
        for group, span in self.groups:
            width = sum(widths[start : start + span]) + 2 * (span - 1)
            above += (f" {group} ".center(width, "─") if group else " " * width) + "  "
            start += span
        rule = "─" * (sum(widths) + 2 * (len(widths) - 1))
        body = f"\n{rule}\n".join("\n".join(line(row).rstrip() for row in block) for block in blocks)
        top = f"{self.title}\n{above.rstrip()}\n{line(heads).rstrip()}\n{rule}"
        return f"{top}\n{body}\n{rule}\n{textwrap.fill(self.note, max(len(rule), 60))}".rstrip()

    def _flat_heads(self) -> list[str]:
        heads: list[str] = []
        for group, span in self.groups:
            for title in self.columns[len(heads) : len(heads) + span]:
                heads.append(f"{group} {title}".strip())
        return heads

    def _are_numbers(self) -> list[bool]:
        first = self.blocks[0][0] if self.blocks and self.blocks[0] else []
        return [cell.is_number for cell in first] or [False] * len(self.columns)


def recall_columns(language: str) -> list[Column]:
    """R@1, R@10 and mAP10 in both directions, of one language or of the mean over all."""
    return [
        Column(f"{direction}/{language}/{metric}", title, DIRECTIONS[direction])
        for direction in DIRECTIONS
        for metric, title in (("recall_at_1", "R@1"), ("recall_at_10", "R@10"), ("map_at_10", "mAP10"))
    ]


def recall_table(runs: Runs, language: str) -> Table:
    """R@1, R@10, mAP10 in both directions, a row a point of the sweep, a block a noise ratio."""
    differing = [path for path in runs.varied if runs.finished[path].nunique(dropna=False) > 1] or [OBJECTIVE]
    return point_table(runs, f"Recall by {_listed(differing)}, {of_whom(language)}", recall_columns(language))


def of_whom(language: str) -> str:
    """What a title calls a language, or the mean over all."""
    return {"eng": "English", "mean": "mean of languages"}.get(language, language)


def _listed(paths: Sequence[str]) -> str:
    names = [short_name(path) for path in paths]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def point_table(runs: Runs, title: str, columns: Sequence[Column], *, points: pd.DataFrame | None = None) -> Table:
    """A row a point of the sweep: what it varies, the columns that were measured, the number of seeds."""
    points = aggregate(runs) if points is None else points
    columns = [column for column in columns if column.metric in points]
    blocks_by = NOISE if NOISE in runs.varied else None
    lead = [path for path in (blocks_by, *runs.varied) if path is not None]
    # A column that says the same in every row says nothing.
    lead = [path for path in dict.fromkeys(lead) if points[path].nunique(dropna=False) > 1] or [OBJECTIVE]
    frames = [frame for _, frame in points.groupby(blocks_by, sort=True)] if blocks_by else [points]
    blocks = [_block(frame, lead, columns) for frame in frames]
    seeds = points[NUM_SEEDS] if len(points) else pd.Series(dtype=int)
    spread = "mean ± standard deviation over seeds; " if len(seeds) and seeds.max() > 1 else ""
    unit = "Percent, " if all(column.kind == "percent" for column in columns) else ""
    when = {TEST: "test split at the epoch chosen on validation", VALIDATION: "validation split after the last epoch"}
    ranked = "best of each block marked" if any(column.is_higher_better is not None for column in columns) else ""
    on = " and ".join(when.get(split, split) for split in runs.measured_on) or "nothing yet"
    return Table(
        title=title,
        note=f"{unit}{on}; {spread}{ranked}".rstrip("; ") + ".",
        groups=[*(("", 1) for _ in lead), *_groups(columns), ("", 1)],
        columns=[*(short_name(path) for path in lead), *(column.title for column in columns), "seeds"],
        blocks=blocks,
    )


def _groups(columns: Sequence[Column]) -> list[tuple[str, int]]:
    spans: list[tuple[str, int]] = []
    for column in columns:
        if spans and spans[-1][0] == column.group:
            spans[-1] = (column.group, spans[-1][1] + 1)
        else:
            spans.append((column.group, 1))
    return spans


def _block(frame: pd.DataFrame, lead: Sequence[str], columns: Sequence[Column]) -> list[list[Cell]]:
    best = {column.metric: _best(frame[column.metric], column) for column in columns} if len(frame) > 1 else {}
    return [
        [
            *(Cell(cells.value(row[path]), is_number=False) for path in lead),
            *(_number(row, column, best.get(column.metric)) for column in columns),
            Cell(str(row[NUM_SEEDS])),
        ]
        for row in frame.to_dict("records")
    ]


def _number(row: Mapping[str, float], column: Column, best: float | None) -> Cell:
    mean, deviation = row[column.metric], row.get(f"{column.metric} (sd)")
    write = cells.percent if column.kind == "percent" else cells.number
    return Cell(write(mean, deviation), is_best=best is not None and mean == best)


def _best(values: pd.Series, column: Column) -> float | None:
    present = values.dropna()
    if present.empty or column.is_higher_better is None:
        return None
    return float(present.max() if column.is_higher_better else present.min())
