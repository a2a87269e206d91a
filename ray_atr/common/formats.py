"""The formats of the files that this package writes, and the one function that checks and converts what it reads.

A format's number changes when an older reader would misread what is written. From 0.2 on, `require_format` is where older
content is converted into the current form, for two minor versions (docs/versions.md). No older format has been published.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray_atr.common.settings import refuse

FORMATS = {"data set": 2, "retriever": 1, "run": 3, "checkpoint": 2, "knowledge base": 4}
"""Kind of content -> the number under `format` in its manifest, since 0.2."""


def require_format(what: str, content: Mapping[str, Any], file: object) -> dict[str, Any]:
    """The content of a manifest `file` of one of `FORMATS`. ValueError if its format is another."""
    if content.get("format") != FORMATS[what]:
        allowed = f"{FORMATS[what]}, the format of a {what} since ray_atr 0.2"
        raise refuse(f"{file}: format", content.get("format"), allowed)
    return dict(content)
