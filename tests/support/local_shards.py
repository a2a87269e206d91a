"""A base in parts whose parts are all in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ray_atr.training.knowledge_base.shard import BaseShard
from ray_atr.training.knowledge_base.snapshot import Entries, PartEntries


class LocalShards:
    """Shards in this process, one after the other."""

    def __init__(self, shards: Sequence[BaseShard]) -> None:
        self.shards = shards

    def encode(self, version: int, payload: Any) -> None:
        for shard in self.shards:
            is_entries = isinstance(payload, Entries)
            shard.encode(version, PartEntries.of(payload, shard.part) if is_entries else payload)

    def each(self, name: str, *arguments: Any) -> list[Any]:
        return [getattr(shard, name)(*arguments) for shard in self.shards]
