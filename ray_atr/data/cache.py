"""Log-mel features computed once per (data set, front end) and shared by every trial, epoch and worker.

Layout of a cache folder, whose name is a hash of the data manifest and the front end's settings:

    train-00000.arrow       features of one data shard: clip_id, features (float16 bytes, [T, F] row-major), frames
    train.captions.arrow    clip_id, labels, and one list column of captions a language, in the shards' row order
    manifest.json           written last: a folder that has one is whole

Arrow IPC files are memory-mapped, so workers of one node share one copy in the page cache and take rows in any order.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from filelock import FileLock

from ray_atr.data.audio import FrontEnd, clip_features
from ray_atr.data.features import FEATURE_DTYPE, MANIFEST_FILE
from ray_atr.data.shards import Manifest, Shard, read_manifest, read_shard
from ray_atr.override import flatten
from ray_atr.storage import whole_file, write_bytes

Progress = Callable[[int, int], None]


def cache_key(manifest: Manifest, front_end: FrontEnd) -> str:
    """The content hash that names a cache folder: what the features depend on, and nothing else."""
    content = json.dumps({"data": manifest.hash, "front_end": flatten(front_end), "layout": 2}, sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def find_features(manifest: Manifest, front_end: FrontEnd, cache_root: Path) -> Path | None:
    """The folder of a data set's whole cached features; None where there is none yet."""
    folder = _folder(manifest, front_end, cache_root)
    return folder if (folder / MANIFEST_FILE).is_file() else None


def ensure_features(
    data_folder: str | Path,
    front_end: FrontEnd,
    cache_root: Path,
    *,
    use_ray: bool = True,
    progress: Progress | None = None,
) -> Path:
    """The folder of cached features, computed now where it is absent. Interrupted work is taken up shard by shard.

    Only one process computes; others that ask at the same time wait for it. `progress` is called with the clips done
    and the clips in all.
    """
    manifest = read_manifest(data_folder)
    if found := find_features(manifest, front_end, cache_root):
        return found
    folder = _folder(manifest, front_end, cache_root)
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(str(folder) + ".lock"):
        if not (folder / MANIFEST_FILE).is_file():
            _compute(manifest, front_end, folder, use_ray, progress)
    return folder


def _folder(manifest: Manifest, front_end: FrontEnd, cache_root: Path) -> Path:
    return cache_root / f"{manifest.name}-{cache_key(manifest, front_end)}"


def _compute(manifest: Manifest, front_end: FrontEnd, folder: Path, use_ray: bool, progress: Progress | None) -> None:
    jobs = [
        (str(manifest.folder), position, front_end, str(folder))
        for position, shard in enumerate(manifest.shards)
        if not (folder / _feature_file(shard, position)).is_file()
    ]
    total = sum(shard.num_rows for shard in manifest.shards)
    done = total - sum(manifest.shards[position].num_rows for _, position, _, _ in jobs)
    for num_rows in _run_with_ray(jobs) if use_ray else map(compute_shard, jobs):
        done += num_rows
        if progress is not None:
            progress(done, total)
    for job in jobs:
        # A task on another node wrote to that node's disk, where it is found when a trial comes there.
        if not (folder / _feature_file(manifest.shards[job[1]], job[1])).is_file():
            compute_shard(job)
    splits: dict[str, list[dict[str, Any]]] = {}
    for position, shard in enumerate(manifest.shards):
        entry = {"file": _feature_file(shard, position), "num_rows": shard.num_rows}
        splits.setdefault(shard.split, []).append(entry)
    for split in splits:
        _write_captions(manifest, split, folder)
    content = {
        "data": manifest.hash,
        "front_end": flatten(front_end),
        "num_features": front_end.num_mels,
        "dtype": np.dtype(FEATURE_DTYPE).name,
        "splits": splits,
    }
    write_bytes(folder / MANIFEST_FILE, json.dumps(content, indent=1).encode())


def _run_with_ray(jobs: Sequence[tuple[str, int, FrontEnd, str]]) -> Iterator[int]:
    import ray

    if not jobs:
        return
    dataset = ray.data.from_items([{"position": position} for _, position, _, _ in jobs], override_num_blocks=len(jobs))
    # A block is one shard, so memory is bounded by the shards in work; half a CPU each lets readers run beside trainers.
    by_position = {job[1]: job for job in jobs}
    computed = dataset.map(lambda row: {"num_rows": compute_shard(by_position[row["position"]])}, num_cpus=0.5)
    for row in computed.iter_rows():
        yield int(row["num_rows"])


def compute_shard(job: tuple[str, int, FrontEnd, str]) -> int:
    """Compute and write the features of one data shard; returns the number of clips. ValueError names a bad clip."""
    data_folder, position, front_end, folder = job
    manifest = read_manifest(data_folder)
    shard = manifest.shards[position]
    destination = Path(folder) / _feature_file(shard, position)
    write_rows(destination, _rows(manifest, shard, front_end))
    return shard.num_rows


def _rows(manifest: Manifest, shard: Shard, front_end: FrontEnd) -> Iterator[tuple[list[str], list[np.ndarray]]]:
    for batch in read_shard(manifest, shard, columns=["clip_id", "audio"]):
        ids = batch.column("clip_id").to_pylist()
        yield (
            ids,
            [
                clip_features(audio.as_buffer(), front_end, clip_id).astype(FEATURE_DTYPE)
                for clip_id, audio in zip(ids, batch.column("audio"), strict=True)
            ],
        )


def write_rows(path: Path, batches: Iterable[tuple[list[str], list[np.ndarray]]]) -> None:
    """Write clips' ids and features [T, F], batch by batch, to a file that appears when it is whole."""
    schema = pa.schema([("clip_id", pa.string()), ("features", pa.large_binary()), ("frames", pa.int32())])
    with whole_file(path) as output, pa.ipc.new_file(output, schema) as writer:
        for ids, features in batches:
            frames = pa.array([len(feature) for feature in features], pa.int32())
            encoded = pa.array([feature.tobytes() for feature in features], pa.large_binary())
            writer.write_batch(pa.record_batch([pa.array(ids, pa.string()), encoded, frames], schema=schema))


def _write_captions(manifest: Manifest, split: str, folder: Path) -> None:
    languages = list(manifest.languages)
    columns: dict[str, list[Any]] = {"clip_id": [], "labels": [], **{code: [] for code in languages}}
    for shard in manifest.shards:
        if shard.split != split:
            continue
        for batch in read_shard(manifest, shard, columns=["clip_id", "labels", "captions"]):
            for row in batch.to_pylist():
                captions = dict(row["captions"])
                columns["clip_id"].append(row["clip_id"])
                columns["labels"].append(row["labels"] or [])
                for code in languages:
                    columns[code].append(captions.get(code) or [])
    types = {"clip_id": pa.string()}
    table = pa.table(
        {name: pa.array(values, types.get(name, pa.list_(pa.string()))) for name, values in columns.items()}
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    write_bytes(folder / f"{split}.captions.arrow", sink.getvalue().to_pybytes())


def _feature_file(shard: Shard, position: int) -> str:
    return f"{shard.split}-{position:05d}.arrow"
