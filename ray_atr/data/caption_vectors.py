"""Captions' vectors from a frozen text tower, memory-mapped and found by language and text.

Layout of a folder:

    keys.npy            a 63-bit number for every distinct (language, text), sorted
    part-00000.npy      vectors [n, W] float32 of the first captions in the keys' order, `PART` to a file
    manifest.json       written last: a folder that has one is whole
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ray_atr.data.captions import group_number
from ray_atr.data.features import MANIFEST_FILE

PART = 8192
"""Captions of one file: what is encoded, written and taken up again together."""

KEYS_FILE = "keys.npy"

Caption = tuple[str, str]
"""A caption's text and its language."""


@dataclass(frozen=True)
class CaptionVectors:
    """The vectors of M distinct captions."""

    folder: Path
    width: int
    keys: NDArray[np.int64] = field(repr=False)

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
        return [np.load(self.folder / part_file(number), mmap_mode="r") for number in range(count)]


def open_caption_vectors(folder: Path) -> CaptionVectors:
    """Open a whole folder of caption vectors. ValueError where it is not whole."""
    path = folder / MANIFEST_FILE
    if not path.is_file():
        raise ValueError(f"{folder}: not a whole folder of caption vectors ({MANIFEST_FILE} is missing)")
    return CaptionVectors(
        folder, int(json.loads(path.read_text())["width"]), np.load(folder / KEYS_FILE, mmap_mode="r")
    )


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
