"""A store that tells of each request before it answers: a test counts them, or refuses some as a store that is away does."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import fsspec
import upath.registry
from fsspec.implementations.memory import MemoryFileSystem
from upath import UPath
from upath.implementations.memory import MemoryPath

from ray_atr.common.storage import locate

PROTOCOL = "watched"


def nobody(request: str, path: str) -> None:
    """Told of requests that no test asks for."""


class WatchedStore(MemoryFileSystem):
    """A store in memory, apart from that of `memory://`. Requests are `info`, `read` and `write`, of a file's path."""

    protocol = PROTOCOL
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    told: ClassVar[Callable[[str, str], None]] = staticmethod(nobody)

    @classmethod
    def _strip_protocol(cls, path: Any) -> str:
        return str(super()._strip_protocol(str(path).removeprefix(f"{PROTOCOL}://")))

    def info(self, path: str, **options: Any) -> Any:
        WatchedStore.told("info", path)
        return super().info(path, **options)

    def _open(self, path: str, mode: str = "rb", *arguments: Any, **options: Any) -> Any:
        WatchedStore.told("read" if mode == "rb" else "write", path)
        return super()._open(path, mode, *arguments, **options)


class WatchedPath(MemoryPath):
    """A place there, named as it is asked for: `watched://bucket/x`."""

    __slots__ = ()

    def __str__(self) -> str:
        return str(super().__str__()).replace(f"{PROTOCOL}:///", f"{PROTOCOL}://", 1)


fsspec.register_implementation(PROTOCOL, f"{__name__}.WatchedStore")
upath.registry.register_implementation(PROTOCOL, WatchedPath)


@contextmanager
def watched_store(told: Callable[[str, str], None]) -> Iterator[UPath]:
    """A place in a new store that calls `told(request, path)` before it answers; what that raises is the answer."""
    place = locate(f"{PROTOCOL}://{uuid.uuid4().hex}/x")
    assert isinstance(place, UPath)
    WatchedStore.told = staticmethod(told)
    try:
        yield place
    finally:
        WatchedStore.told = staticmethod(nobody)
        WatchedStore.store.clear()
