"""Several indexes of one model as one: each returns its best windows, and these are merged.

    index = open_shards(["north.index", "south.index"])

A shard is an index on this machine, or something that asks one: as it is at its place now (`current`), or in another process
(`ray_atr.deploy.serve.on_ray`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Protocol, TypeVar, TypeVarTuple

import numpy as np
from numpy.typing import NDArray

from ray_atr.common.settings import refuse
from ray_atr.common.storage import locate
from ray_atr.deploy.index.layout import IndexManifest, read_index_manifest
from ray_atr.deploy.index.opened import Index
from ray_atr.deploy.index.search import Match, Search

Given = TypeVarTuple("Given")
Answer = TypeVar("Answer")


class OpenShard(Protocol):
    """A shard that is open elsewhere. Safe to use from several threads."""

    def ask(self, method: Callable[[Index, *Given], Answer], *given: *Given) -> Answer:
        """What a method of its index returns."""


class ShardedIndex(Search):
    """Shards, queried in parallel, with the answers of one index of all windows; equal scores are in the order of paths, folder
    by folder, as an archive's folder lists them.
    """

    def __init__(
        self, shards: Sequence[Index | OpenShard], manifest: IndexManifest, *, checkpoint: str | None = None
    ) -> None:
        """`manifest`: that of one of the shards, for their model."""
        super().__init__(manifest, checkpoint=checkpoint)
        self.shards = list(shards)
        self._threads = ThreadPoolExecutor(8 * max(1, len(self.shards)), thread_name_prefix="shard")

    def sizes(self) -> tuple[int, int]:
        windows, sounds = zip(*self._ask_all(Index.sizes), strict=True)
        return sum(windows), sum(sounds)

    def matches(self, queries: NDArray[np.float32], top: int) -> list[list[Match]]:
        each = self._ask_all(Index.matches, queries, top)
        of_queries = (chain.from_iterable(matches) for matches in zip(*each, strict=True))
        return [
            sorted(matches, key=lambda match: (-match.score, match.path.split("/"), match.start))[:top]
            for matches in of_queries
        ]

    def window(self, path: str, start: float) -> NDArray[np.float32]:
        return _ask(self._shard_of(path), Index.window, path, start)

    def sound(self, path: str) -> bytes:
        return _ask(self._shard_of(path), Index.sound, path)

    def _shard_of(self, path: str) -> Index | OpenShard:
        have = self._ask_all(Index.has, path)
        if sum(have) != 1:
            raise refuse("path", path, "a sound of the index" if not any(have) else "a sound that one shard alone has")
        return self.shards[have.index(True)]

    def _ask_all(self, method: Callable[[Index, *Given], Answer], *given: *Given) -> list[Answer]:
        ask = self._threads.map if len(self.shards) > 1 else map
        return list(ask(lambda shard: _ask(shard, method, *given), self.shards))


def _ask(shard: Index | OpenShard, method: Callable[[Index, *Given], Answer], *given: *Given) -> Answer:
    return method(shard, *given) if isinstance(shard, Index) else shard.ask(method, *given)


def open_shards(places: Sequence[str], *, checkpoint: str | None = None, audio: str | None = None) -> Search:
    """The index at a place, or those at several as one. ValueError if they are not of one model."""
    read_first(places)
    opened = [Index.open(place, checkpoint=checkpoint, audio=audio) for place in places]
    first = first_of_one_model(places, [index.manifest for index in opened])
    return opened[0] if len(opened) == 1 else ShardedIndex(opened, first, checkpoint=checkpoint)


def read_first(places: Sequence[str]) -> IndexManifest:
    """The first index's manifest. ValueError if there is none, an index is named twice, or they are not of one model.

    Nothing is opened or fetched, so an index may have another manifest by the time it is opened.
    """
    if not places:
        raise refuse("INDEX", "none", "one index, or several of one model")
    folders = list(map(locate, places))
    for number, folder in enumerate(folders):
        if folder in folders[:number]:
            raise refuse("INDEX", places[number], "each index once")
    return first_of_one_model(places, list(map(read_index_manifest, folders)))


def first_of_one_model(places: Sequence[str], manifests: Sequence[IndexManifest]) -> IndexManifest:
    """The first manifest. ValueError, with the place, for one of another model."""
    for place, manifest in zip(places, manifests, strict=True):
        if manifest.model != manifests[0].model:
            raise refuse("INDEX", place, f"an index of the model of {places[0]}, {manifests[0].checkpoint}")
    return manifests[0]
