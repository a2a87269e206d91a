"""The format of numbers, and tables of text cells: as Markdown, for a terminal, and (by `report/html.py`) on a page."""

from __future__ import annotations

import io
import math
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console, JustifyMethod
from rich.table import Table as RichTable
from rich.text import Text
from tabulate import tabulate

BEST = "*"
"""Marks the best of a block where there is no bold type."""
DISTINGUISHED = "†"
"""Marks a difference whose interval excludes 0."""
MISSING = "–"
GAP = 2
"""Characters between two columns in a terminal, half of them at each edge."""


def percent(mean: float | None, deviation: float | None = None) -> str:
    """A share in [0, 1] as percent with its deviation, `31.4 ±0.8`; a dash if there is none."""
    if mean is None or math.isnan(mean):
        return MISSING
    return f"{100 * mean:.1f}" + ("" if deviation is None or math.isnan(deviation) else f" ±{100 * deviation:.1f}")


def number(mean: float | None, deviation: float | None = None) -> str:
    """A number in three or four figures, with its deviation."""
    if mean is None or math.isnan(mean):
        return MISSING
    text = f"{mean:,.0f}" if abs(mean) >= 100 else f"{mean:.2f}"
    return text if deviation is None or math.isnan(deviation) else f"{text} ±{deviation:.2g}"


def written(setting: Any) -> str:
    """A setting's value as a person writes it."""
    if setting is None or (isinstance(setting, float) and math.isnan(setting)):
        return MISSING
    return f"{setting:g}" if isinstance(setting, float) else str(setting)


def minutes(seconds: float) -> str:
    """`4:05` for 245 seconds; hours in front if there are some."""
    hours, rest = divmod(int(seconds), 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


@dataclass(frozen=True)
class Cell:
    """One cell: its text, a note in smaller print (an interval), and whether it is the best of its block."""

    text: str
    is_best: bool = False
    is_number: bool = True
    detail: str = ""


@dataclass(frozen=True)
class Table:
    """A titled table of texts; `blocks` are groups of rows within which the best is marked."""

    title: str
    note: str
    columns: Sequence[str]
    blocks: Sequence[Sequence[Sequence[Cell]]]
    groups: Sequence[tuple[str, int]] = ()
    """(heading over several columns, number of columns that it spans)."""
    references: Sequence[Sequence[Cell]] = ()
    """Rows of numbers printed in a paper, shown apart and greyed."""
    reference_note: str = ""

    @property
    def rows(self) -> list[Sequence[Cell]]:
        """The rows of all blocks."""
        return [row for block in self.blocks for row in block]

    @property
    def heads(self) -> list[tuple[str, str]]:
        """For each column the heading of its group, and its own."""
        shared = [group for group, span in self.groups for _ in range(span)] or [""] * len(self.columns)
        return list(zip(shared, self.columns, strict=True))

    @property
    def are_numbers(self) -> list[bool]:
        """For each column whether it holds numbers, which are aligned to the right."""
        return [cell.is_number for cell in self.rows[0]] if self.rows else [False] * len(self.columns)

    def to_markdown(self, level: int = 3) -> str:
        """GitHub's table syntax under a heading of that level, the best in bold, references in italics."""
        rows = [[_emphasised(cell, "**" if cell.is_best else "") for cell in row] for row in self.rows]
        rows += [[_emphasised(cell, "*") for cell in row] for row in self.references]
        text = tabulate(
            rows,
            headers=[markdown_text(" ".join(filter(None, head))) for head in self.heads],
            tablefmt="pipe",
            colalign=["right" if right else "left" for right in self.are_numbers],
            disable_numparse=True,
        )
        note = f"\n{markdown_text(self.note)}\n" if self.note else ""
        return f"{'#' * level} {markdown_text(self.title)}\n{note}\n{text}\n"

    def to_text(self, width: int | None = None, *, with_details: bool = False) -> str:
        """For a terminal: `*` after the best of each block, a rule between blocks; the notes in smaller print if asked for.

        Columns that do not fit into `width` (None: that of the terminal) follow below, each time with the leading text columns.
        """
        width = terminal_width() if width is None else width
        heads = [f"{group}\n{column}".strip() for group, column in self.heads]
        blocks = [[[_plain(cell, with_details) for cell in row] for row in block] for block in self.blocks]
        wide = [
            max(
                len(line)
                for text in (head, *(row[place] for block in blocks for row in block))
                for line in text.split("\n")
            )
            for place, head in enumerate(heads)
        ]
        # The columns of text before the first number name a row.
        names = next((place for place, is_number in enumerate(self.are_numbers) if is_number), len(heads))
        room = width - sum(wide[number] + GAP for number in range(names))
        parts: list[list[int]] = [[]]
        for place in range(names, len(heads)):
            if parts[-1] and sum(wide[number] + GAP for number in [*parts[-1], place]) > room:
                parts.append([])
            parts[-1].append(place)
        lines = [line for part in parts for line in self._lines(blocks, [*range(names), *part], heads, width)]
        note = textwrap.fill(self.note, min(width, max(60, *map(len, lines))))
        return "\n".join(part for part in (self.title, *lines, note) if part.strip())

    def _lines(
        self, blocks: Sequence[Sequence[Sequence[str]]], columns: Sequence[int], heads: Sequence[str], width: int
    ) -> list[str]:
        """Some of the columns as lines."""
        shown = RichTable(box=box.HORIZONTALS, pad_edge=False, padding=(0, 1, 0, 0))
        for place in columns:
            # Only names are broken where the terminal is too narrow, never numbers.
            is_number = self.are_numbers[place]
            justify: JustifyMethod = "right" if is_number else "left"
            shown.add_column(heads[place], justify=justify, no_wrap=is_number, overflow="fold")
        for block in blocks:
            for row in block:
                shown.add_row(*(Text(row[place]) for place in columns))
            shown.add_section()
        console = Console(file=io.StringIO(), width=width, color_system=None)
        console.print(shown)
        return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def _plain(cell: Cell, with_details: bool) -> str:
    return cell.text + BEST * cell.is_best + (f" {cell.detail}" if with_details and cell.detail else "")


def terminal_width() -> int:
    """Width of the terminal in characters; 200 if the output is not a terminal."""
    return shutil.get_terminal_size((200, 24)).columns if sys.stdout.isatty() else 200


def text_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Rows of text as aligned lines, the first column to the left and the others to the right."""
    aligned = ["left", *["right"] * (len(columns) - 1)]
    return tabulate(rows, headers=list(columns), tablefmt="plain", colalign=aligned, disable_numparse=True).splitlines()


def _emphasised(cell: Cell, mark: str) -> str:
    detail = f" {cell.detail}" if cell.detail else ""
    return markdown_text(f"{mark}{cell.text}{mark}{detail}" if cell.text else "")


def markdown_text(text: str) -> str:
    """Text with escapes, so that it cannot end a Markdown cell or line, or be an HTML tag."""
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
