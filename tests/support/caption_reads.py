"""How often the captions of a split are read."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ray_atr.data import shards
from tests.support.spies import spied


def counted_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that gets the name of a split whenever its captions are read from here on."""
    reads = list[str]()

    def note(_: object, manifest: shards.Manifest, split: str, columns: Sequence[str] | None = None) -> None:
        if "captions" in (columns or ["captions"]):
            reads.append(split)

    spied(monkeypatch, shards, "iterate_rows", note)
    return reads
