"""Log-mel features computed once per (data set, front end) and shared by every trial, epoch and worker.

Layout of a cache folder, whose name is a hash of the data manifest and the front end's settings:

    train-00000.arrow       features of one data shard: clip_id, features (float16 bytes, [T, F] row-major), frames
    train.captions.arrow    clip_id, labels, and one list column of captions a language, in the shards' row order; where clips
                            have several windows, their number (a row of features is a window then)
    manifest.json           written last: a folder that has one is complete

Arrow IPC files are memory-mapped, so workers of one node share one copy in the page cache and take rows in any order. With
a store (`features`) the features are in the store, and `train-00000.arrow` holds their positions.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from ray_atr.common.caches import cache_key, lock_of, mark_used
from ray_atr.common.digests import DIGESTS_FILE, digests_of
from ray_atr.common.jobs import Resources, run_jobs
from ray_atr.common.override import flatten
from ray_atr.common.progress import Echo, silent, spaced
from ray_atr.common.runtime import this_node
from ray_atr.common.settings import counted
from ray_atr.common.storage import Location, atomic_file, file_exists, read_bytes, read_json, write_bytes
from ray_atr.data.audio import SLACK, FrontEnd, clip_windows, one_thread
from ray_atr.data.decoding import IMPORTED
from ray_atr.data.features import (
    GROUPS,
    MANIFEST_FILE,
    PART,
    SOURCE,
    STORE,
    STREAMED,
    WINDOWS_COLUMN,
    discard,
    discard_damaged,
    fetch_folder,
    finish_folder,
    folder_in,
    write_stored_rows,
)
from ray_atr.data.row_groups import row_group_sizes
from ray_atr.data.shards import Manifest, read_captions, read_manifest, read_shard, require_complete

logger = logging.getLogger(__name__)

LAYOUT = 4
"""Version of the layout and of the computation: raised when equal settings give other values of frames or vectors."""
CLIPS_TOGETHER = 16
"""Clips whose audio is in memory at a time."""
WINDOWS_TOGETHER = 64
"""Windows that are written at a time."""


@dataclass(frozen=True)
class FolderHere:
    """A folder on the disk of the node that starts jobs; files that jobs write on other nodes are sent to it."""

    folder: Path
    node: str = field(default_factory=this_node)

    def make(self, name: str, write: Callable[[Path], None]) -> bytes | None:
        """In a job: write one of the folder's files with `write(file)`. Returns its content if it must be sent, else None."""
        if this_node() == self.node:
            write(self.folder / name)
            return None
        with tempfile.TemporaryDirectory(prefix="ray_atr-") as aside:
            write(Path(aside) / name)
            return (Path(aside) / name).read_bytes()

    def receive(self, name: str, content: bytes | None) -> None:
        """On the node that started the jobs: write a file that was sent."""
        if content is not None:
            write_bytes(self.folder / name, content)


def _folder_name(manifest: Manifest, front_end: FrontEnd, has_windows: bool) -> str:
    """The data set's name, and a hash of everything that the features depend on."""
    content: dict[str, Any] = {"data": manifest.hash, "front_end": flatten(front_end), "layout": LAYOUT}
    if has_windows:
        content["windows"] = SLACK
    return f"{manifest.name}-{cache_key(content)}"


def has_long_clips(manifest: Manifest, clip_seconds: float) -> bool:
    """Whether a clip of the data set is longer than one window, by the manifest."""
    longest = clip_seconds * (1 + SLACK)
    return max((shard.longest_seconds for shard in manifest.shards), default=0.0) > longest


def long_audio(manifest: Manifest, clip_seconds: float) -> tuple[int, float]:
    """The number of clips of a data set that are longer than one window, and the seconds beyond it. Reads one column of the
    shards that have such a clip. ValueError names a shard that cannot be read.
    """
    longest = clip_seconds * (1 + SLACK)
    files = tuple(s.file for s in manifest.shards if s.longest_seconds > longest)
    seconds = _durations(manifest.folder, manifest.hash, files)
    beyond = seconds[seconds > longest] - clip_seconds
    return len(beyond), float(beyond.sum())


@lru_cache(maxsize=64)
def _durations(folder: str, data_hash: str, files: tuple[str, ...]) -> NDArray[np.float64]:
    """The durations of the clips (s) of some shards, [N]."""
    manifest, seconds = read_manifest(folder), list[float]()
    for shard in manifest.shards:
        if shard.file in files:
            for batch in read_shard(manifest, shard, columns=["seconds"]):
                seconds += batch.column("seconds").to_pylist()
    return np.array(seconds)


def find_features(manifest: Manifest, front_end: FrontEnd, root: Path, *, in_windows: bool = False) -> Path | None:
    """The folder of a data set's complete cached features; None if there is none."""
    folder = root / _folder_name(manifest, front_end, _has_windows(manifest, front_end, in_windows))
    return folder if is_complete(folder) else None


def ensure_features(
    data_folder: str | Path,
    front_end: FrontEnd,
    cache_root: Path,
    *,
    in_windows: bool = False,
    use_ray: bool = True,
    echo: Echo = silent,
    store: str = "",
    streamed: str = "",
) -> Path:
    """The folder of cached features, computed now if it is missing. Interrupted work continues shard by shard.
    in_windows   features of every window of long clips; else clips are cut to one window.
    echo         gets lines about the progress.
    store        folder or URL that holds the features instead of this node's disk, for all nodes.
    streamed     a split of which nothing is computed now: its features are computed from the shards when they are read.

    Only one process computes; others wait for it.
    """
    assert not (store and streamed), "features are in a store, or nowhere"
    manifest = read_manifest(data_folder)
    has_windows = _has_windows(manifest, front_end, in_windows)
    name = _folder_name(manifest, front_end, has_windows)
    stored = folder_in(store, name)
    if stored is not None:
        name = f"{name}-in-{xxhash.xxh3_64_hexdigest(str(stored).encode())}"
    if streamed:
        name = f"{name}-but-{streamed}-of-{xxhash.xxh3_64_hexdigest(manifest.folder.encode())}"
    folder = cache_root / name

    def is_there() -> bool:
        return is_complete(folder) and (stored is None or file_exists(stored / MANIFEST_FILE))

    if is_there():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    with lock_of(folder):
        if not is_there() and (stored is None or not fetch_folder(stored, folder)):
            discard_damaged(folder)
            _compute(Work(manifest, front_end, FolderHere(folder), has_windows, stored, streamed), use_ray, echo)
    return folder


def is_complete(folder: Path) -> bool:
    """Whether a cache has its manifest. A damaged list of digests is removed, and then made again."""
    for name, read in ((MANIFEST_FILE, read_json), (DIGESTS_FILE, lambda file: digests_of(file.parent))):
        try:
            if (folder / name).is_file():
                read(folder / name)
        except ValueError as error:
            logger.warning("%s; it is made again", error)
            discard(folder, name)
    exists = (folder / MANIFEST_FILE).is_file()
    if exists:
        mark_used(folder / MANIFEST_FILE)
    return exists


def _has_windows(manifest: Manifest, front_end: FrontEnd, in_windows: bool) -> bool:
    """Whether some clips have several windows. A data set without long clips has the same features either way."""
    return in_windows and front_end.kind != "vector" and has_long_clips(manifest, front_end.clip_seconds)


@dataclass(frozen=True)
class Work:
    """The features to compute, and where they are written."""

    manifest: Manifest
    front_end: FrontEnd
    here: FolderHere
    has_windows: bool
    store: Location | None = None
    streamed: str = ""

    def file(self, position: int) -> str:
        """The name of the file of a shard's features, or of the table of their positions in the store."""
        return f"{self.manifest.shards[position].split}-{position:05d}.arrow"

    def do(self, position: int) -> bytes | None:
        """Compute and write the features of one data shard; returns as `FolderHere.make`. ValueError names a bad clip."""
        file = self.file(position)
        require_complete(self.manifest, self.manifest.shards[position])
        with one_thread():
            if self.store is None:
                return self.here.make(file, lambda path: write_rows(path, self._rows(position)))
            write_stored_rows(self.store, file, self._rows(position))
            return None

    def _rows(self, position: int) -> Iterator[tuple[list[str], list[np.ndarray]]]:
        """The windows of a shard's clips in their order, some at a time, each with its clip's id."""
        ids: list[str] = []
        windows: list[np.ndarray] = []
        shard, front_end, all_windows = self.manifest.shards[position], self.front_end, self.has_windows
        for batch in read_shard(self.manifest, shard, columns=["clip_id", "audio"], batch_size=CLIPS_TOGETHER):
            for clip_id, audio in zip(batch["clip_id"].to_pylist(), batch["audio"], strict=True):
                for window in clip_windows(
                    audio.as_buffer(), front_end, clip_id, all_windows=all_windows, bounds=IMPORTED
                ):
                    ids.append(clip_id)
                    windows.append(window.astype(front_end.dtype))
                    if len(windows) == WINDOWS_TOGETHER:
                        yield ids, windows
                        ids, windows = [], []
        if windows:
            yield ids, windows


def _compute(work: Work, use_ray: bool, echo: Echo) -> None:
    manifest, folder = work.manifest, work.here.folder
    files = [work.file(position) for position in range(len(manifest.shards))]
    place = folder if work.store is None else work.store
    positions = [position for position, shard in enumerate(manifest.shards) if shard.split != work.streamed]
    waiting = [position for position in positions if not file_exists(place / files[position])]
    total = sum(manifest.shards[position].num_rows for position in positions)
    done = total - sum(manifest.shards[position].num_rows for position in waiting)
    # Half a CPU each, since this may run beside a training. One thread each, whatever OMP_NUM_THREADS says.
    processes = Resources(cpus=0.5, threads=1)
    say = spaced(echo)
    for number, sent in run_jobs(waiting, lambda: work.do, ray=processes if use_ray else None):
        work.here.receive(files[waiting[number]], sent)
        done += manifest.shards[waiting[number]].num_rows
        kind = {"vector": "vectors:", "waveform": "samples:"}.get(work.front_end.kind, "log-mel features")
        say(f"{kind} {done:,} of {counted(total, 'clip')}", done, total)
    splits: dict[str, list[dict[str, Any]]] = {}
    for file, shard in zip(files, manifest.shards, strict=True):
        of_part: dict[str, Any] = {PART: shard.part} if shard.part else {}
        if shard.split == work.streamed:
            streamed = {"file": shard.place, "num_rows": shard.num_rows, GROUPS: row_group_sizes(manifest, shard)}
            splits.setdefault(shard.split, []).append(streamed | of_part)
            continue
        if work.store is not None:
            write_bytes(folder / file, read_bytes(work.store / file))
        splits.setdefault(shard.split, []).append({"file": file, "num_rows": shard.num_rows} | of_part)
    for split, entries in splits.items():
        counts: list[int] = []
        for entry in entries if work.has_windows and split != work.streamed else ():
            ids = pa.ipc.open_file(pa.memory_map(str(folder / entry["file"]))).read_all()["clip_id"].to_pylist()
            counts += [len(list(windows)) for _, windows in groupby(ids)]
            entry["num_windows"] = len(ids)
        _write_captions(manifest, split, folder, counts)
    content: dict[str, Any] = {
        "data": manifest.hash,
        "front_end": flatten(work.front_end),
        "num_features": work.front_end.num_mels,
        "dtype": np.dtype(work.front_end.dtype).name,
        "splits": splits,
    }
    if work.store is not None:
        content[STORE] = str(work.store)
    if work.streamed:
        content |= {STREAMED: [work.streamed], SOURCE: manifest.folder}
    finish_folder(folder, work.store, content)


def write_rows(path: Path, batches: Iterable[tuple[list[str], list[np.ndarray]]]) -> None:
    """Write clips' ids and features [T, F], batch by batch, to a file that appears when it is complete."""
    schema = pa.schema([("clip_id", pa.string()), ("features", pa.large_binary()), ("frames", pa.int32())])
    with atomic_file(path) as output, pa.ipc.new_file(output, schema) as writer:
        for ids, features in batches:
            encoded, frames = [feature.tobytes() for feature in features], [len(feature) for feature in features]
            writer.write_batch(pa.record_batch([ids, encoded, frames], schema=schema))


def _write_captions(manifest: Manifest, split: str, folder: Path, num_windows: list[int]) -> None:
    languages = manifest.languages
    columns: dict[str, list[Any]] = {"clip_id": [], "labels": [], **{code: [] for code in languages}}
    for clip in read_captions(manifest, split):
        columns["clip_id"].append(clip.clip_id)
        columns["labels"].append(clip.labels or [])
        for code in languages:
            columns[code].append(clip.captions.get(code) or [])
    types = {"clip_id": pa.string()}
    texts = pa.list_(pa.string())
    table = pa.table({name: pa.array(values, types.get(name, texts)) for name, values in columns.items()})
    if num_windows:
        table = table.append_column(WINDOWS_COLUMN, pa.array(num_windows, pa.int64()))
    with atomic_file(folder / f"{split}.captions.arrow") as output, pa.ipc.new_file(output, table.schema) as writer:
        writer.write_table(table)
