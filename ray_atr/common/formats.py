"""The formats of the files that this package writes, and the one function that checks and converts what it reads.

A format's number changes when an older reader would misread what is written. Then `require_format` converts older content
into the current form, for two minor versions (docs/versions.md); no other code handles old formats.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ray_atr.common.settings import refuse

FORMATS = {"data set": 2, "retriever": 1, "run": 3, "checkpoint": 2, "knowledge base": 3}
"""Kind of content -> the number under `format` in its manifest, since 0.2."""

_TABLES = {
    "beliefs": "clean_probabilities",
    "judged": "epoch_probabilities",
    "standing": "ranking_scores",
    "is_there": "is_met",
}


def _checkpoint_of_1(content: Mapping[str, Any]) -> dict[str, Any]:
    """Rename an estimator's tables."""
    state = content["correspondence"]
    tables = {_TABLES.get(name, name): table for name, table in state["tables"].items()}
    return {**content, "correspondence": {**state, "tables": tables}}


_READERS: dict[tuple[str, object], Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    ("checkpoint", 1): _checkpoint_of_1,
    # Its arrays themselves tell how ids are written.
    ("knowledge base", 2): dict,
}
"""(kind of content, number of an older format) -> function that converts its content to the next number."""


def require_format(what: str, content: Mapping[str, Any], file: object) -> dict[str, Any]:
    """The content of a manifest `file` of one of `FORMATS`, as this version writes it. ValueError if its format is another."""
    number = content.get("format")
    if isinstance(number, int) and (reader := _READERS.get((what, number))) is not None:
        content = {**reader(content), "format": number + 1}
    if content.get("format") != FORMATS[what]:
        allowed = f"{FORMATS[what]}, the format of a {what} since ray_atr 0.2"
        raise refuse(f"{file}: format", content.get("format"), allowed)
    return dict(content)
