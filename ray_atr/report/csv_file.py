"""CSV files beside a page: numbers as they are, texts such that no viewer takes them for markup or a formula."""

from __future__ import annotations

from numbers import Number
from pathlib import Path
from typing import Any

import pandas as pd

FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet computes a text that begins so."""


def write_csv(frame: pd.DataFrame, file: Path) -> None:
    """Write a frame without its index. `<` becomes `&lt;`; an apostrophe goes before a text that begins like a formula."""
    frame.rename(columns=_plain).map(_plain).to_csv(file, index=False)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, Number | bool):
        return value
    text = str(value)
    return ("'" if text.startswith(FORMULA) else "") + text.replace("<", "&lt;")
