"""A table as a paper prints it, in our words: which objective each row is, which metric each column is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from types import MappingProxyType
from typing import Any

RECALLS = tuple(
    f"{direction}/eng/recall_at_{k}" for direction in ("text_to_audio", "audio_to_text") for k in (1, 5, 10)
)


@dataclass(frozen=True)
class PrintedRow:
    """One printed row.

    objective  our preset's name, or the paper's own name of a system that is not here.
    numbers    our metric's name -> the number with the decimals that are printed (recall, precision and accuracy in percent).
    settings   what the row has set: path -> value.
    """

    objective: str
    numbers: Mapping[str, Decimal]
    settings: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class PaperTable:
    """Printed numbers and what they were measured on.

    place     where they are printed: `Table 5`.
    data      name of the data set that they were measured on, as `prepare_data.py` calls it; all are of its test split.
    towers    audio and text encoder. trained_on: the data set of training, if it is another.
    is_gain   the numbers are points ahead of another system, which the row names: all that is printed of them.
    """

    paper: str
    place: str
    title: str
    data: str
    towers: str
    rows: tuple[PrintedRow, ...]
    trained_on: str = ""
    split: str = "test"
    is_gain: bool = False

    @property
    def source(self) -> str:
        """Paper, table, data set, split and towers, in words."""
        trained = f"trained on {self.trained_on}, " if self.trained_on else ""
        return f"{self.paper}, {self.place}: {trained}{self.data}, {self.split} split, {self.towers}"


def rows(metrics: Sequence[str], printed: str, settings: Mapping[str, Any] | None = None) -> tuple[PrintedRow, ...]:
    """One row a line of `printed`: the objective, then a number a metric, `-` for none; two spaces or more between them.

    Raises ValueError for a line with more or fewer numbers than metrics.
    """
    found = []
    for line in printed.strip().splitlines():
        name, *texts = (cell for cell in line.strip().split("  ") if cell)
        numbers = {
            metric: Decimal(text.strip()) for metric, text in zip(metrics, texts, strict=True) if text.strip() != "-"
        }
        found.append(PrintedRow(name.strip(), numbers, settings or {}))
    return tuple(found)


def by_language(metrics: Sequence[str], printed: str) -> tuple[PrintedRow, ...]:
    """One row an objective from lines of objective, language and a number a metric; `{}` in a metric is the language."""
    found: dict[str, dict[str, Decimal]] = {}
    for line in printed.strip().splitlines():
        objective, language, *texts = line.split()
        numbers = zip(metrics, texts, strict=True)
        found.setdefault(objective, {}).update({name.format(language): Decimal(text) for name, text in numbers})
    return tuple(PrintedRow(objective, numbers) for objective, numbers in found.items())
