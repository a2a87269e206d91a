"""Vectors of captions, from a frozen text tower or a data set of vectors: memory-mapped, looked up by language and text.

Layout of a folder:

    keys.npy            a 63-bit number for every distinct (language, text), sorted
    part-00000.npy      vectors [n, W] float32 of the first captions in the keys' order, `PART` to a file
    manifest.json       written last: a folder that has one is complete
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_atr.common.digests import DamagedCacheError, check_file
from ray_atr.common.positives import group_number
from ray_atr.common.settings import refuse
from ray_atr.common.storage import DamagedFileError, is_local, locate, read_json
from ray_atr.data.features import MANIFEST_FILE, discard
from ray_atr.data.shards import Manifest, iterate_rows, read_manifest
from ray_atr.data.vector_clip import from_bytes, loaded

PART = 8192
"""Captions in one file, which are encoded and written together."""
KEYS_FILE = "keys.npy"
GIVEN = "caption_vectors"
"""Subfolder of the captions' vectors in a data set of vectors."""

Caption = tuple[str, str]
"""A caption's text and its language."""
Vectors = NDArray[np.float32]


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
        """The row of each caption `[n]`, -1 for a caption without a vector."""
        return self.rows_of_keys(np.array([caption_key(caption) for caption in captions], np.int64))

    def rows_of_keys(self, wanted: NDArray[np.int64]) -> NDArray[np.int64]:
        """The row of each key `[n]`, -1 for one without a vector."""
        if not len(self):
            return np.full(len(wanted), -1)
        rows = np.searchsorted(self.keys, wanted).clip(max=len(self) - 1)
        return np.where(self.keys[rows] == wanted, rows, -1)

    def vectors(self, rows: NDArray[np.int64]) -> Vectors:
        """The vectors `[n, W]` of rows `[n]`."""
        result = np.empty((len(rows), self.width), np.float32)
        for part in np.unique(rows // PART):
            chosen = rows // PART == part
            result[chosen] = self._parts[part][rows[chosen] % PART]
        return result

    @cached_property
    def _parts(self) -> list[Vectors]:
        return [_open(self.folder, part_file(number), self.is_cache) for number in range(-(-len(self) // PART))]


def open_caption_vectors(folder: Path, *, is_cache: bool = True) -> CaptionVectors:
    """Open a folder of caption vectors. ValueError if it is not complete.

    A damaged file of a cache is removed, so that it is made again; files of a data set (`is_cache=False`) are not touched.
    """
    if not (folder / MANIFEST_FILE).is_file():
        raise ValueError(f"{folder}: not a complete folder of caption vectors ({MANIFEST_FILE} is missing)")
    width = int(read_json(folder / MANIFEST_FILE)["width"])
    return CaptionVectors(folder, width, _open(folder, KEYS_FILE, is_cache), is_cache)


def _open(folder: Path, name: str, is_cache: bool) -> NDArray[Any]:
    """An array of the folder, mapped. For a damaged file DamagedCacheError, or DamagedFileError if it is a data set's."""
    try:
        check_file(folder, name)
        return np.load(folder / name, mmap_mode="r")
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
    """A 63-bit number of a caption; among a billion captions two share one with a chance of one in twenty."""
    text, language = caption
    return group_number(f"{language} {text}")


def part_file(number: int) -> str:
    """The name of a part's file."""
    return f"part-{number:05d}.npy"


def has_vectors(source: str) -> bool:
    """Whether the folder is a data set whose clips and captions are vectors."""
    return (Path(source) / GIVEN / MANIFEST_FILE).is_file()


def require_vectors(source: str, path: str) -> None:
    """ValueError, naming the setting, unless the folder is such a data set."""
    if not has_vectors(source):
        raise refuse(path, "vectors", f"with a data set that `ray-atr prepare vectors` made; data.source is {source}")


def check_kind(source: str, path: str, got: object, *, reads_vectors: bool) -> None:
    """ValueError, naming the setting at `path`, if a model of vectors would read a data set of audio, or the other way round."""
    if has_vectors(source) and not reads_vectors:
        raise refuse(path, got, f"one of vectors (model.audio=vectors) for {source}, which holds vectors and no audio")
    # Those that `prepare vectors` makes are on this machine.
    if reads_vectors and is_local(locate(source)) and not has_vectors(source):
        makes = "`ray-atr prepare vectors` makes data sets of vectors"
        raise refuse(path, got, f"one that takes audio for {source}, which holds no vectors; {makes}")


def clip_width(source: str) -> int:
    """Numbers of a clip's vector. ValueError if the folder is no data set of vectors."""
    require_vectors(source, "model.audio")
    manifest = read_manifest(source)
    # The import has checked that all have the same width.
    first = next(iterate_rows(manifest, manifest.splits[0], columns=["audio"]))
    return int(loaded(first["audio"], manifest.name).size)


def read_given(manifest: Manifest, split: str, captions: Sequence[Caption]) -> tuple[Vectors, Vectors]:
    """(vectors of a split's clips [N, W] in its order, vectors of these captions [M, V]), from a data set of vectors."""
    width = clip_width(manifest.folder)
    rows = iterate_rows(manifest, split, columns=["clip_id", "audio"])
    audio = np.stack([from_bytes(row["audio"], width, row["clip_id"]) for row in rows])
    vectors = open_caption_vectors(Path(manifest.folder) / GIVEN, is_cache=False)
    return audio, vectors.vectors(vectors.rows(captions))
