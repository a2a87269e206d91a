"""Features computed from the audio of a data set's shards when they are needed, for data sets whose features fit on no disk.

A shard is read by row groups, of up to 64 clips if this package wrote it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ray_atr.common.storage import Location, changed_at, locate
from ray_atr.data.audio import FrontEnd, clip_windows
from ray_atr.data.decoding import IMPORTED
from ray_atr.data.padding import padded
from ray_atr.data.schema import with_audio_bytes
from ray_atr.data.shards import (
    INCOMPLETE,
    MANIFEST_FILE,
    Manifest,
    Shard,
    arrow_errors,
    as_joined,
    open_arrow,
    read_manifest,
)

COLUMNS = ("clip_id", "audio.bytes")


def row_group_sizes(manifest: Manifest, shard: Shard) -> list[int]:
    """The number of clips in each row group of a shard. Reads only the file's end, and the ids if a joined data set leaves clips
    out. ValueError if it is no complete Parquet file.
    """
    if manifest.left_out:
        return [len(ids) for ids in ids_of_groups(manifest, shard)]
    with _opened(manifest.file_of(shard)) as parquet:
        return [parquet.metadata.row_group(group).num_rows for group in range(parquet.num_row_groups)]


def ids_of_groups(manifest: Manifest, shard: Shard) -> list[list[str]]:
    """The ids of the clips of each row group of a shard; the audio is not read. ValueError as `row_group_sizes`."""
    with _opened(manifest.file_of(shard)) as parquet:
        groups = (parquet.read_row_group(group, columns=["clip_id"]) for group in range(parquet.num_row_groups))
        return [as_joined(table, manifest, shard)["clip_id"].to_pylist() for table in groups]


@contextmanager
def _opened(file: Location, reason: str = INCOMPLETE) -> Iterator[pq.ParquetFile]:
    with arrow_errors(file, reason), open_arrow(file) as source:
        yield pq.ParquetFile(source)


# Cached, since every row group is read by itself and needs the manifest.
@lru_cache(maxsize=8)
def _manifest_of(folder: str, _made: int) -> Manifest:
    return read_manifest(folder)


def _made_at(folder: str) -> int:
    """When a data set on this machine was made: another one may be at its place by now."""
    return changed_at(locate(folder, keeps_links=True) / MANIFEST_FILE)


def read_group(folder: str, place: str, group: int) -> pa.Table:
    """The ids and the encoded audio of a row group's clips, read now; `place` is a `Shard.place` of the data set in `folder`.
    ValueError names a shard that cannot be read.
    """
    manifest = _manifest_of(folder, _made_at(folder)) if "/" in place else None
    shard = None if manifest is None else manifest.shard_at(place)
    file = locate(folder, keeps_links=True) / place if manifest is None or shard is None else manifest.file_of(shard)
    with _opened(file, f"row group {group} cannot be read") as parquet:
        table = parquet.read_row_group(group, columns=list(COLUMNS))
    if manifest is not None and shard is not None:
        table = as_joined(table, manifest, shard)
    return pa.Table.from_batches([with_audio_bytes(batch) for batch in table.combine_chunks().to_batches()])


# Cached, since consecutive requests are usually for clips of the same row group, as when a data set is encoded in order.
@lru_cache(maxsize=2)
def _cached_group(folder: str, file: str, group: int, _made: int) -> pa.Table:
    return read_group(folder, file, group)


def features_of_clips(table: pa.Table, rows: Sequence[int], front_end: FrontEnd) -> list[NDArray[Any]]:
    """The features [T, F] of the clips at places in a row group, each cut to one window, with the number type of a cache.
    ValueError names a clip whose audio cannot be read.
    """
    features = []
    for place in rows:
        clip_id, audio = table["clip_id"][place].as_py(), table["audio"][place].as_buffer()
        window = next(iter(clip_windows(audio, front_end, clip_id, all_windows=False, bounds=IMPORTED)))
        features.append(window.astype(front_end.dtype))
    return features


def features_at(folder: str, front_end: FrontEnd, wanted: Sequence[tuple[str, int, int]]) -> list[NDArray[Any]]:
    """The features [T, F] of the clips at places (shard's file, row group, row within the group), in their order. A row group is
    read once for consecutive places in it.
    """
    made_at = _made_at(folder)
    groups = ((_cached_group(folder, file, group, made_at), row) for file, group, row in wanted)
    return [features_of_clips(table, [row], front_end)[0] for table, row in groups]


def read_units(batch: dict[str, Any], folder: str, front_end: FrontEnd) -> dict[str, Any]:
    """The features of some clips of several row groups, as Ray Data's tasks return them; each group is read once."""
    # Object arrays of arrays: Ray Data stores them as tensor columns whose rows may differ in shape.
    read = {name: np.empty(len(batch["group"]), object) for name in ("features", "frames")}
    for index, (file, group, within) in enumerate(zip(batch["file"], batch["group"], batch["within"], strict=True)):
        arrays = features_of_clips(read_group(folder, str(file), int(group)), [int(row) for row in within], front_end)
        read["features"][index], read["frames"][index] = padded(arrays, front_end.num_mels, front_end.dtype)
    return read
