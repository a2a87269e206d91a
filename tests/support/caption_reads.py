"""How often the captions of a split are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from ray_atr.data import shards


def counted_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that gets the name of a split whenever its captions are read from here on."""
    reads, iterate = list[str](), shards.iterate_rows

    def counted(
        manifest: shards.Manifest, split: str, columns: Sequence[str] | None = None
    ) -> Iterator[dict[str, Any]]:
        if "captions" in (columns or ["captions"]):
            reads.append(split)
        return iterate(manifest, split, columns)

    monkeypatch.setattr(shards, "iterate_rows", counted)
    return reads
