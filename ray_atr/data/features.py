"""Reading cached features, log-mel frames or a frozen tower's vectors: rows of one split in any order, memory-mapped.

Imports nothing heavy: the tasks that read ahead of a trainer start in a moment.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

MANIFEST_FILE = "manifest.json"
FEATURE_DTYPE = np.float16


@dataclass(frozen=True)
class FeatureSet:
    """One split of a cache folder: N clips, their features by row number, their captions by language.

    Features are F mel bands of T frames, or, where a frozen tower has encoded the set, one vector of width F a clip (T = 1).
    """

    folder: Path
    split: str
    num_features: int
    dtype: np.dtype[Any]
    shard_files: tuple[str, ...]
    shard_starts: np.ndarray
    captions: pa.Table = field(repr=False)

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
        return [name for name in self.captions.column_names if name not in ("clip_id", "labels")]

    def captions_in(self, language: str, rows: np.ndarray | None = None) -> list[list[str]]:
        """The captions in one language of the given rows (of all rows by default), a list a clip, empty where absent."""
        if language not in self.captions.column_names:
            return [[]] * (len(self) if rows is None else len(rows))
        column = self.captions.column(language)
        return (column if rows is None else column.take(pa.array(rows))).to_pylist()  # type: ignore[no-any-return]

    @cached_property
    def _shards(self) -> list[pa.Table]:
        return [pa.ipc.open_file(pa.memory_map(str(self.folder / name))).read_all() for name in self.shard_files]

    def features(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Features of the given rows, zero-padded to the longest: `[n, T, F]` as stored, and their frames `[n]`."""
        shard_of = np.searchsorted(self.shard_starts, rows, side="right") - 1
        arrays = []
        for row, shard in zip(rows, shard_of, strict=True):
            scalar = self._shards[shard].column("features")[int(row - self.shard_starts[shard])]
            arrays.append(np.frombuffer(scalar.as_buffer(), self.dtype).reshape(-1, self.num_features))
        frames = np.array([len(array) for array in arrays], np.int64)
        padded = np.zeros((len(arrays), int(frames.max(initial=0)), self.num_features), self.dtype)
        for index, array in enumerate(arrays):
            padded[index, : len(array)] = array
        return padded, frames


@lru_cache(maxsize=32)
def open_features(folder: Path, split: str) -> FeatureSet:
    """Open one split of a whole cache folder. ValueError when the folder is not whole or has no such split."""
    path = folder / MANIFEST_FILE
    if not path.is_file():
        raise ValueError(f"{folder}: not a whole feature cache ({MANIFEST_FILE} is missing)")
    content = json.loads(path.read_text())
    if split not in content["splits"]:
        raise ValueError(f"{folder}: no split {split!r}; it has {', '.join(content['splits'])}")
    shards = content["splits"][split]
    starts = np.concatenate([[0], np.cumsum([shard["num_rows"] for shard in shards])[:-1]])
    captions = pa.ipc.open_file(pa.memory_map(str(folder / f"{split}.captions.arrow"))).read_all()
    return FeatureSet(
        folder=folder,
        split=split,
        num_features=int(content["num_features"]),
        dtype=np.dtype(content["dtype"]),
        shard_files=tuple(shard["file"] for shard in shards),
        shard_starts=starts.astype(np.int64),
        captions=captions,
    )


def read_block(batch: dict[str, Any], folder: str, split: str) -> dict[str, Any]:
    """The features of several steps' rows, as Ray Data's tasks return them."""
    features = open_features(Path(folder), split)
    read = [features.features(np.asarray(rows)) for rows in batch["rows"]]
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
