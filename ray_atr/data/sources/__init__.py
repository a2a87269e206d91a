"""One file a data set: from the files people have on disk to clips."""

from __future__ import annotations

from ray_atr.data.sources.base import Absent, Entry, Source
from ray_atr.data.sources.esc50 import Esc50, Esc50Clotho

SOURCES: dict[str, type[Source]] = {source.name: source for source in (Esc50, Esc50Clotho)}

__all__ = ["SOURCES", "Absent", "Entry", "Source"]
