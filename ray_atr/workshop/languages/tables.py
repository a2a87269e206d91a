"""The words of all languages side by side, a column a language: `classes.csv` and `sounds.csv`."""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files


@cache
def _columns(name: str) -> dict[str, dict[str, str]]:
    """Language -> what a table says of each row."""
    text = files("ray_atr.workshop.languages").joinpath(name).read_text(encoding="utf-8")
    (_, *languages), *rows = csv.reader(text.splitlines())
    return {language: {row[0]: row[place] for row in rows} for place, language in enumerate(languages, start=1)}


def nouns(language: str) -> dict[str, str]:
    """Label of ESC-50 -> what it is called in the language's sentence for classes."""
    return _columns("classes.csv")[language]


def sounds(language: str) -> dict[str, list[str]]:
    """Kind of sound -> the words for it, in the parts that the language's grammar takes (`|` between them in the table)."""
    return {kind: [part.strip() for part in cell.split("|")] for kind, cell in _columns("sounds.csv")[language].items()}
