"""Reading cached features, log-mel frames or a frozen tower's vectors: rows of one split in any order, mapped or from a store.

Imports nothing heavy: the tasks that read ahead of a trainer start in a moment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ray_atr.data import sampling
from ray_atr.data.feature_store import MANIFEST_FILE, STORE, read_stored_rows
from ray_atr.storage import DamagedFileError, Folder, open_folder, read_json
from ray_atr.storage.digests import DamagedCacheError, check_file

WINDOWS_COLUMN = "windows"


@dataclass(frozen=True)
class FeatureSet:
    """One split of a cache folder: N clips, the features of their windows by row number, their captions by language.

    Features are F mel bands of T frames, or, where a frozen tower has encoded the set, one vector of width F a clip (T = 1).
    """

    folder: Path
    split: str
    num_features: int
    dtype: np.dtype[Any]
    shard_files: tuple[str, ...]
    shard_starts: np.ndarray
    captions: pa.Table = field(repr=False)
    store: str = ""
    """the folder or URL that holds the features, if this folder does not"""
    _opened: dict[int, pa.Table] = field(default_factory=dict, repr=False, compare=False)

    def __len__(self) -> int:
        return int(self.captions.num_rows)

    @cached_property
    def clip_ids(self) -> list[str]:
        return self.captions.column("clip_id").to_pylist()  # type: ignore[no-any-return]

    @cached_property
    def labels(self) -> list[list[str]]:
        return self.captions.column("labels").to_pylist()  # type: ignore[no-any-return]

    @property
    def languages(self) -> list[str]:
        return [name for name in self.captions.column_names if name not in ("clip_id", "labels", WINDOWS_COLUMN)]

    def captions_in(self, language: str, rows: np.ndarray | None = None) -> list[list[str]]:
        """The captions in one language of the given rows (of all rows by default), a list a clip, empty if absent."""
        if language not in self.captions.column_names:
            return [[]] * (len(self) if rows is None else len(rows))
        column = self.captions.column(language)
        return (column if rows is None else column.take(pa.array(rows))).to_pylist()  # type: ignore[no-any-return]

    @cached_property
    def num_windows(self) -> np.ndarray:
        """The number of windows of each clip [N]; 1 for clips that are no longer than a window, or cut to one."""
        if WINDOWS_COLUMN not in self.captions.column_names:
            return np.ones(len(self), np.int64)
        return self.captions.column(WINDOWS_COLUMN).to_numpy().astype(np.int64)

    @cached_property
    def _first_windows(self) -> np.ndarray:
        return np.cumsum(self.num_windows) - self.num_windows

    def draw_windows(self, rows: np.ndarray, seed: int, epoch: int) -> np.ndarray:
        """One window of each of the clips [n] for an epoch, drawn from (seed, epoch, clip_id)."""
        ids = [self.clip_ids[row] for row in rows]
        return sampling.integers(ids, 0, self.num_windows[rows], seed, "window", epoch)

    def windows_heard(self, rows: np.ndarray, seed: int, epoch: int, most: int) -> np.ndarray:
        """At most that many windows of each of the clips for an epoch, [n, most]: the drawn one, and others evenly after it.

        -1 fills the rows of clips that have fewer.
        """
        total = self.num_windows[rows][:, None]
        heard, turn = np.minimum(total, most), np.arange(most)
        windows = (self.draw_windows(rows, seed, epoch)[:, None] + turn * total // heard) % total
        return np.where(turn < heard, windows, -1)

    def _shard(self, number: int) -> pa.Table:
        """One file's table, mapped; checked against its digest when this process first opens it."""
        if number not in self._opened:
            self._opened[number] = open_table(self.folder, self.shard_files[number])
        return self._opened[number]

    def features(self, rows: np.ndarray, windows: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Features of a window of each of the given clips, zero-padded to the longest, `[n, T, F]`, and their frames `[n]`.

        `windows` [n] says which window of each; none: the first.
        """
        places = self._first_windows[rows] + (0 if windows is None else windows)
        shard_of = np.searchsorted(self.shard_starts, places, side="right") - 1
        within = (places - self.shard_starts[shard_of]).tolist()
        contents = self._stored(shard_of.tolist(), within) if self.store else self._mapped(shard_of.tolist(), within)
        arrays = [np.frombuffer(content, self.dtype).reshape(-1, self.num_features) for content in contents]
        frames = np.array([len(array) for array in arrays], np.int64)
        padded = np.zeros((len(arrays), int(frames.max(initial=0)), self.num_features), self.dtype)
        for index, array in enumerate(arrays):
            padded[index, : len(array)] = array
        return padded, frames

    def _mapped(self, shards: list[int], rows: list[int]) -> list[Any]:
        """The bytes of rows of files on this node's disk."""
        column = "features"
        return [self._shard(shard).column(column)[row].as_buffer() for shard, row in zip(shards, rows, strict=True)]

    def _stored(self, shards: list[int], rows: list[int]) -> list[Any]:
        """The bytes of rows in the store, requested at the same time."""
        places = []
        for shard, row in zip(shards, rows, strict=True):
            table = self._shard(shard)
            start, size, digest = (table.column(name)[row].as_py() for name in ("start", "size", "digest"))
            places.append((self.shard_files[shard], start, size, digest))
        return read_stored_rows(self._store, places)

    @cached_property
    def _store(self) -> Folder:
        return open_folder(self.store)

    def of_windows(self, rows: np.ndarray, windows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Features `[m, T, F]` of the windows [n, most] of the given clips, clip by clip, and their frames `[m]`."""
        clips, turns = np.nonzero(windows >= 0)
        return self.features(rows[clips], windows[clips, turns])


@lru_cache(maxsize=32)
def open_features(folder: Path, split: str) -> FeatureSet:
    """Open one split of a whole cache folder. ValueError when the folder is not whole or has no such split."""
    path = folder / MANIFEST_FILE
    if not path.is_file():
        raise ValueError(f"{folder}: not a whole feature cache ({MANIFEST_FILE} is missing)")
    content = read_json(path)
    if split not in content["splits"]:
        raise ValueError(f"{folder}: no split {split!r}; it has {', '.join(content['splits'])}")
    shards = content["splits"][split]
    starts = np.concatenate([[0], np.cumsum([shard.get("num_windows", shard["num_rows"]) for shard in shards])[:-1]])
    captions = open_table(folder, f"{split}.captions.arrow")
    return FeatureSet(
        folder=folder,
        split=split,
        num_features=int(content["num_features"]),
        dtype=np.dtype(content["dtype"]),
        shard_files=tuple(shard["file"] for shard in shards),
        shard_starts=starts.astype(np.int64),
        captions=captions,
        store=content.get(STORE, ""),
    )


def open_table(folder: Path, name: str) -> pa.Table:
    """A table of a cache folder, mapped. A damaged file is removed, so that the next start makes it again; DamagedCacheError."""
    try:
        check_file(folder, name)
        return pa.ipc.open_file(pa.memory_map(str(folder / name))).read_all()
    except (DamagedFileError, pa.ArrowInvalid, FileNotFoundError):
        discard(folder, name)
        raise DamagedCacheError(folder / name) from None


def discard(folder: Path, name: str) -> None:
    """Take a damaged file out of a cache, which is no whole one any more: the manifest goes first."""
    (folder / MANIFEST_FILE).unlink(missing_ok=True)
    (folder / name).unlink(missing_ok=True)


def read_block(batch: dict[str, Any], folder: str, split: str) -> dict[str, Any]:
    """The features of several steps' rows, as Ray Data's tasks return them."""
    features = open_features(Path(folder), split)
    read = [
        features.of_windows(np.asarray(rows), np.asarray(windows))
        for rows, windows in zip(batch["rows"], batch["windows"], strict=True)
    ]
    return {
        **batch,
        "features": _ragged([array for array, _ in read]),
        "frames": _ragged([frames for _, frames in read]),
    }


def _ragged(arrays: list[np.ndarray]) -> np.ndarray:
    """An object array of arrays: Ray Data stores it as a tensor column whose rows may differ in shape."""
    column = np.empty(len(arrays), object)
    column[:] = arrays
    return column
