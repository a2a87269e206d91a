"""The caches under a home's `data/cache/`, each of which can be made again: features, vectors, tokenisers, indexes.

`vectors` are of frozen towers, `indexes` copies of those in a store.

The last use of a cache is the time at which its manifest (or its single file) was last changed: every use updates it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ray_atr.common.atomic import entries_below, remove_folder, remove_leftovers_below

KINDS = ("features", "vectors", "tokenizers", "indexes")
MANIFEST_FILES = ("manifest.json", "index.json")
DAY = 86_400.0


def cache_folder(home: Path, kind: str) -> Path:
    """The folder of the caches of a kind, beside the data sets of users, which may have any other name."""
    return home / "data" / "cache" / kind


def cache_key(content: Any, code: bytes = b"") -> str:
    """16 digits that name a cache by what it depends on: JSON content in any order, and code."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode() + code).hexdigest()[:16]


def lock_of(cache: Path) -> FileLock:
    """The lock held by the one process that makes a cache; others wait for it."""
    return FileLock(f"{cache}.lock")


@dataclass(frozen=True)
class Cache:
    """One cache: a folder, or a file. `is_complete` is False for work that was interrupted."""

    kind: str
    path: Path
    num_bytes: int
    last_used: float
    is_complete: bool

    @property
    def days_unused(self) -> float:
        return (time.time() - self.last_used) / DAY


def mark_used(file: Path) -> None:
    """Mark a cache as used now; a cache on a read-only disk is used without a mark."""
    with contextlib.suppress(OSError):
        os.utime(file)


def list_caches(home: Path) -> list[Cache]:
    """Every cache of a home, the one that was unused longest first."""
    caches = []
    for kind in KINDS:
        for path in sorted(cache_folder(home, kind).glob("[!.]*")):
            # Lock files and notes are no caches.
            if path.suffix != ".lock" and path.name != "known":
                manifests = [path / name for name in MANIFEST_FILES if (path / name).is_file()]
                marked = path if path.is_file() else next(iter(manifests), path / MANIFEST_FILES[0])
                # Another process may remove one meanwhile.
                with contextlib.suppress(FileNotFoundError):
                    last_used = (marked if marked.is_file() else path).stat().st_mtime
                    caches.append(Cache(kind, path, _num_bytes(path), last_used, marked.is_file()))
    return sorted(caches, key=lambda cache: cache.last_used)


def _num_bytes(path: Path) -> int:
    """The size of a file, or of all files below a folder."""
    return sum(entry.stat().st_size for entry in (path, *entries_below(path)) if entry.is_file())


def prune(home: Path, unused_days: float) -> list[Cache]:
    """Remove caches unused for `unused_days`, except those being written, and leftovers of killed runs. Returns these caches."""
    removed = [cache for cache in list_caches(home) if cache.days_unused >= unused_days and remove_cache(cache.path)]
    for kind in KINDS:
        remove_leftovers_below(cache_folder(home, kind))
    return removed


def remove_cache(cache: Path) -> bool:
    """Remove a cache, except one that is being written; whether it was removed."""
    if not cache.is_dir():
        cache.unlink(missing_ok=True)
        return True
    lock = lock_of(cache)
    try:
        with lock.acquire(timeout=0):
            remove_folder(cache)
            # While it is held: a process that waits for it, or has just taken it, would share it with the next one.
            Path(lock.lock_file).unlink(missing_ok=True)
    except Timeout:
        return False
    return True
