"""Captions' vectors from a frozen text tower, memory-mapped and found by language and text.

Layout of a folder:

    keys.npy            a 63-bit number for every distinct (language, text), sorted
    part-00000.npy      vectors [n, W] float32 of the first captions in the keys' order, `PART` to a file
    manifest.json       written last: a folder that has one is whole
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_atr.data.features import MANIFEST_FILE, discard
from ray_atr.data.positives import group_number
from ray_atr.storage import DamagedFileError, read_json
from ray_atr.storage.digests import DamagedCacheError, check_file

PART = 8192
"""Captions of one file: what is encoded, written and taken up again together."""

KEYS_FILE = "keys.npy"

GIVEN = "caption_vectors"
"""Where a data set of vectors keeps its captions', below its own folder."""

Caption = tuple[str, str]
"""A caption's text and its language."""


@dataclass(frozen=True)
class CaptionVectors:
    """The vectors of M distinct captions."""

    folder: Path
    width: int
    keys: NDArray[np.int64] = field(repr=False)
    is_cache: bool = True

    def __len__(self) -> int:
        return len(self.keys)

    def rows(self, captions: Sequence[Caption]) -> NDArray[np.int64]:
        """The row of each caption `[n]`, -1 where it is not among them."""
        wanted = np.array([caption_key(caption) for caption in captions], np.int64)
        if not len(self):
            return np.full(len(wanted), -1)
        rows = np.searchsorted(self.keys, wanted).clip(max=len(self) - 1)
        return np.where(self.keys[rows] == wanted, rows, -1)

    def vectors(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """The vectors `[n, W]` of rows `[n]`."""
        found = np.empty((len(rows), self.width), np.float32)
        for part in np.unique(rows // PART):
            chosen = rows // PART == part
            found[chosen] = self._parts[part][rows[chosen] % PART]
        return found

    @cached_property
    def _parts(self) -> list[NDArray[np.float32]]:
        count = -(-len(self) // PART)
        return [_open(self.folder, part_file(number), is_cache=self.is_cache) for number in range(count)]


def open_caption_vectors(folder: Path, *, is_cache: bool = True) -> CaptionVectors:
    """Open a whole folder of caption vectors. ValueError if it is not whole.

    A cache's damaged file is removed and made again; a data set's own (`is_cache=False`) is the user's and is left alone.
    """
    path = folder / MANIFEST_FILE
    if not path.is_file():
        raise ValueError(f"{folder}: not a whole folder of caption vectors ({MANIFEST_FILE} is missing)")
    return CaptionVectors(folder, int(read_json(path)["width"]), _open(folder, KEYS_FILE, is_cache=is_cache), is_cache)


def _open(folder: Path, name: str, *, is_cache: bool) -> NDArray[Any]:
    """An array of the folder, mapped. A cache's damaged file is removed, so that the next start makes it again.

    DamagedCacheError for a cache's file, DamagedFileError for a data set's.
    """
    try:
        check_file(folder, name)
        return np.load(folder / name, mmap_mode="r")  # type: ignore[no-any-return]
    except (DamagedFileError, FileNotFoundError, ValueError):
        if not is_cache:
            raise DamagedFileError(folder / name, "restore it from a copy, or import the vectors again") from None
        discard(folder, name)
        raise DamagedCacheError(folder / name) from None


def in_key_order(captions: Iterable[Caption]) -> tuple[list[Caption], NDArray[np.int64]]:
    """The distinct captions sorted by their keys, and the keys `[M]`."""
    distinct = dict.fromkeys(captions)
    by_key = {caption_key(caption): caption for caption in distinct}
    assert len(by_key) == len(distinct), "two captions share a key"
    keys = sorted(by_key)
    return [by_key[key] for key in keys], np.array(keys, np.int64)


def caption_key(caption: Caption) -> int:
    """The number that stands for a caption; among a billion captions two share one with a chance of one in twenty."""
    text, language = caption
    return group_number(f"{language} {text}")


def part_file(number: int) -> str:
    """The name of a part's file."""
    return f"part-{number:05d}.npy"
