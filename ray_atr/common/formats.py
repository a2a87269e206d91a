"""The formats of what this package writes, and the one function that says whether it can read what it finds.

A format's number changes when a reader of before would misunderstand what is written. Then `require_format` brings the older
content into the form of today, for two minor versions (docs/versions.md), and nothing else needs to know of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ray_atr.common.settings import refuse

FORMATS = {"data set": 2, "retriever": 1, "run": 3, "checkpoint": 2, "knowledge base": 3}
"""What is written -> the number under `format` in its manifest, as since 0.2."""

_TABLES = {
    "beliefs": "clean_probabilities",
    "judged": "epoch_probabilities",
    "standing": "ranking_scores",
    "is_there": "is_met",
}


def _checkpoint_of_1(content: Mapping[str, Any]) -> dict[str, Any]:
    """An estimator's tables had other names."""
    state = content["correspondence"]
    tables = {_TABLES.get(name, name): table for name, table in state["tables"].items()}
    return {**content, "correspondence": {**state, "tables": tables}}


_READERS: dict[tuple[str, object], Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    ("checkpoint", 1): _checkpoint_of_1,
    # Its arrays say themselves how ids are written.
    ("knowledge base", 2): dict,
}
"""What is written, and the number of an older format -> its content as the next number has it."""


def require_format(what: str, content: Mapping[str, Any], file: object) -> dict[str, Any]:
    """The content of a manifest `file` of one of `FORMATS`, as this version writes it. ValueError if its format is another."""
    number = content.get("format")
    if isinstance(number, int) and (reader := _READERS.get((what, number))) is not None:
        content = {**reader(content), "format": number + 1}
    if content.get("format") != FORMATS[what]:
        allowed = f"{FORMATS[what]}, the format of a {what} since ray_atr 0.2"
        raise refuse(f"{file}: format", content.get("format"), allowed)
    return dict(content)
