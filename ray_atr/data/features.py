"""Folders of cached features (log-mel frames or a frozen tower's vectors): rows of a split in any order, mapped or from a store.

A store is for data sets whose features do not fit on a node's disk: rows are read from it when they are needed.

    train-00000.features      the rows' bytes; only in the store
    train-00000.arrow         the position of each row: clip_id, start, size, digest (XXH3)
    train.captions.arrow, digests.json, manifest.json     as in a folder on a disk; the manifest comes last, and names the store

A node copies all but the rows to its own disk, some 40 bytes a row. A row is read by a range request, many at a time, and
checked against its digest. Vectors of frozen towers are small: nodes keep copies of whole folders of them.

Nothing heavy is imported here, so that the tasks that read ahead of a trainer start quickly.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from ray_atr.common import sampling, storage
from ray_atr.common.digests import (
    DIGESTS_FILE,
    DamagedCacheError,
    check_file,
    check_folder,
    digests_of,
    seal_folder,
)
from ray_atr.common.settings import refuse
from ray_atr.data.caption_sample import CaptionSample
from ray_atr.data.frame_statistics import frame_statistics
from ray_atr.data.padding import padded

MANIFEST_FILE = "manifest.json"
WINDOWS_COLUMN = "windows"
NO_LANGUAGES = ("clip_id", "labels", WINDOWS_COLUMN)
"""Columns without captions. Every other column is named after the language of its captions."""
FRAMES = ("power_db", "kaldi")
"""Kinds of front ends that compute log-mel frames."""
READ_TOGETHER = 64
"""Windows in memory at a time, in `statistics_of`."""
STORE = "store"
"""The manifest's entry with the URL of the folder that holds the rows."""
STREAMED, SOURCE, GROUPS = "streamed", "source", "groups"
"""Entries of the manifest of a folder without the features of some splits: these splits, the data set that has their audio, and
the number of clips in each of its row groups."""
PART = "part"
"""The entry of a joined data set's shard with the name of its part."""
MADE_AGAIN = "delete its folder, and the next start makes it again"
"""The remedy for a damaged file in a store."""
POSITIONS = pa.schema([("clip_id", pa.string()), ("start", pa.int64()), ("size", pa.int64()), ("digest", pa.uint64())])


@dataclass(frozen=True)
class FeatureSet:
    """One split of a cache folder: N clips, the features of their windows by row number, their captions by language.
    Features are F mel bands of T frames, or, where a frozen tower has encoded the set, one vector of width F a clip.
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
    source: str = ""
    """the data set whose shards hold the audio that features are computed from, if nothing holds the features"""
    group_sizes: tuple[tuple[int, ...], ...] = ()
    """clips of each row group of each of these shards"""
    front_end: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """the settings that features are computed with"""
    parts: Mapping[str, int] = field(default_factory=dict, repr=False)
    """of a joined data set: the sets that these clips are of, one after the other, and the number of clips of each"""
    _opened: dict[int, pa.Table] = field(default_factory=dict, repr=False, compare=False)
    _statistics: dict[int, np.ndarray] = field(default_factory=dict, repr=False, compare=False)

    def __len__(self) -> int:
        return int(self.captions.num_rows)

    @cached_property
    def clip_ids(self) -> list[str]:
        return self.captions.column("clip_id").to_pylist()

    @cached_property
    def labels(self) -> list[list[str]]:
        return self.captions.column("labels").to_pylist()

    @cached_property
    def caption_sample(self) -> CaptionSample:
        """A sample of the clips and of their captions in all languages."""
        columns = [name for name in self.captions.column_names if name not in NO_LANGUAGES]

        def captions_of(rows: np.ndarray) -> list[list[str]]:
            of_languages = (self.captions_in(language, rows) for language in columns)
            return [
                [text for texts in languages for text in texts if text] for languages in zip(*of_languages, strict=True)
            ]

        return CaptionSample.from_clips(self.clip_ids, captions_of, are_joined=bool(self.parts))

    def captions_in(self, language: str, rows: np.ndarray | None = None) -> list[list[str]]:
        """The captions in one language of the given rows (None: all), a list for each clip, empty if it has none."""
        if language not in self.captions.column_names:
            return [[]] * (len(self) if rows is None else len(rows))
        column = self.captions.column(language)
        return (column if rows is None else column.take(pa.array(rows))).to_pylist()

    @cached_property
    def num_windows(self) -> np.ndarray:
        """The number of windows of each clip [N]; 1 for clips that are no longer than a window, or cut to one."""
        if WINDOWS_COLUMN not in self.captions.column_names:
            return np.ones(len(self), np.int64)
        return self.captions.column(WINDOWS_COLUMN).to_numpy().astype(np.int64)

    @cached_property
    def _first_windows(self) -> np.ndarray:
        return np.cumsum(self.num_windows) - self.num_windows

    def drawn_windows(
        self, rows: np.ndarray, seed: int, epoch: int, most: int, names: Sequence[str] | None = None
    ) -> np.ndarray:
        """At most `most` windows of each clip for an epoch, [n, most]: one drawn from (seed, epoch, name), the others evenly
        after it; padded with -1. The names are the clips' ids if there are no others.
        """
        total = self.num_windows[rows]
        names = [self.clip_ids[row] for row in rows] if names is None else names
        drawn = sampling.integers(names, 0, total, seed, "window", epoch)
        counts, turn = np.minimum(total, most)[:, None], np.arange(most)
        windows = (drawn[:, None] + turn * total[:, None] // counts) % total[:, None]
        return np.where(turn < counts, windows, -1)

    def _shard(self, number: int) -> pa.Table:
        """One file's table, mapped; its digest is checked when this process first opens it."""
        if number not in self._opened:
            self._opened[number] = open_table(self.folder, self.shard_files[number])
        return self._opened[number]

    def features(self, rows: np.ndarray, windows: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Features of a window of each of the given clips, zero-padded to the longest, `[n, T, F]`, and their frames
        `[n]`. `windows` [n]: the window of each clip; None: the first.
        """
        window_rows = self._first_windows[rows] + (0 if windows is None else windows)
        shard_of = np.searchsorted(self.shard_starts, window_rows, side="right") - 1
        within = (window_rows - self.shard_starts[shard_of]).tolist()
        shard_and_row = list(zip(shard_of.tolist(), within, strict=True))
        if self.source:
            return self._from_audio(window_rows)
        if self.store:
            contents: list[Any] = self._stored(shard_and_row)
        else:
            contents = [self._shard(shard)["features"][row].as_buffer() for shard, row in shard_and_row]
        arrays = [np.frombuffer(content, self.dtype).reshape(-1, self.num_features) for content in contents]
        return padded(arrays, self.num_features, self.dtype)

    @cached_property
    def groups(self) -> np.ndarray:
        """The row group of each clip [N], counted over all shards of the split, where `source` is read."""
        sizes = [size for of_shard in self.group_sizes for size in of_shard]
        return np.repeat(np.arange(len(sizes)), sizes)

    @cached_property
    def _locations_of_groups(self) -> list[tuple[str, int]]:
        """The shard's file of each row group, and the group's number in it."""
        pairs = zip(self.shard_files, self.group_sizes, strict=True)
        return [(file, number) for file, sizes in pairs for number in range(len(sizes))]

    def locations_of(self, rows: np.ndarray) -> list[tuple[str, int, int]]:
        """Where the audio of clips is: shard's file, number of the row group in it, row within the group."""
        groups = self.groups[rows]
        within = (rows - np.searchsorted(self.groups, groups)).tolist()
        return [(*self._locations_of_groups[group], row) for group, row in zip(groups.tolist(), within, strict=True)]

    def _from_audio(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        # Imported here because decoders are heavy.
        from ray_atr.data.audio import FrontEnd
        from ray_atr.data.row_groups import features_at

        arrays = features_at(self.source, FrontEnd(**self.front_end), self.locations_of(rows))
        return padded(arrays, self.num_features, self.dtype)

    def _stored(self, shard_and_row: list[tuple[int, int]]) -> list[bytes]:
        """The bytes of rows in the store, requested concurrently."""
        locations = []
        for shard, row in shard_and_row:
            table = self._shard(shard)
            place = (table[name][row].as_py() for name in ("start", "size", "digest"))
            locations.append((self.shard_files[shard], *place))
        return read_stored_rows(storage.locate(self.store, keeps_links=True), locations)

    @property
    def holds_frames(self) -> bool:
        """Whether the features are log-mel frames, and not samples or vectors (also those that a frozen tower made of frames)."""
        return self.front_end.get("kind") in FRAMES and self.dtype == np.float16

    def statistics_of(self, rows: np.ndarray, *, together: int = READ_TOGETHER) -> np.ndarray:
        """`frame_statistics` of clips, mean over their windows, [n, S]; cached. So many windows are in memory at once."""
        assert self.holds_frames, "statistics of log-mel frames"
        new = np.array([row for row in dict.fromkeys(rows.tolist()) if row not in self._statistics], np.int64)
        counts, of_windows = self.num_windows[new], list[np.ndarray]()
        clips, first = np.repeat(new, counts), np.cumsum(counts) - counts
        windows = np.arange(len(clips)) - np.repeat(first, counts)
        for start in range(0, len(clips), together):
            part = slice(start, start + together)
            features, frames = self.features(clips[part], windows[part])
            of_windows += [frame_statistics(window[:size]) for window, size in zip(features, frames, strict=True)]
        if len(new):
            means = np.add.reduceat(np.stack(of_windows), first) / counts[:, None]
            self._statistics.update(zip(new.tolist(), means.astype(np.float32), strict=True))
        return np.stack([self._statistics[row] for row in rows.tolist()])

    def of_windows(self, rows: np.ndarray, windows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Features `[m, T, F]` of the windows [n, most] of the given clips, clip by clip, and their frames `[m]`."""
        clips, turns = np.nonzero(windows >= 0)
        return self.features(rows[clips], windows[clips, turns])


@lru_cache(maxsize=32)
def open_features(folder: Path, split: str, part: str = "") -> FeatureSet:
    """Open one split of a complete cache folder; with `part`, only the clips of that part of a joined data set.

    ValueError if the folder is not complete or has no such split or part.
    """
    if not (folder / MANIFEST_FILE).is_file():
        raise ValueError(f"{folder}: not a complete feature cache ({MANIFEST_FILE} is missing)")
    content = storage.read_json(folder / MANIFEST_FILE)
    if split not in content["splits"]:
        raise ValueError(f"{folder}: no split {split!r}; it has {', '.join(content['splits'])}")
    shards, captions = content["splits"][split], open_table(folder, f"{split}.captions.arrow")
    parts: dict[str, int] = {}
    for shard in shards:
        if PART in shard:
            parts[shard[PART]] = parts.get(shard[PART], 0) + shard["num_rows"]
    if part:
        if part not in parts:
            raise ValueError(f"{folder}: no part {part!r} in {split}; it has {', '.join(parts) or 'none'}")
        # The clips of a part are consecutive.
        first = sum(number for name, number in parts.items() if list(parts).index(name) < list(parts).index(part))
        shards = [shard for shard in shards if shard.get(PART) == part]
        captions, parts = captions.slice(first, parts[part]), {part: parts[part]}
    starts = np.concatenate([[0], np.cumsum([shard.get("num_windows", shard["num_rows"]) for shard in shards])[:-1]])
    return FeatureSet(
        folder=folder,
        split=split,
        num_features=int(content["num_features"]),
        dtype=np.dtype(content["dtype"]),
        shard_files=tuple(shard["file"] for shard in shards),
        shard_starts=starts.astype(np.int64),
        captions=captions,
        store=content.get(STORE, ""),
        source=content[SOURCE] if split in content.get(STREAMED, ()) else "",
        group_sizes=tuple(tuple(shard.get(GROUPS, ())) for shard in shards),
        front_end=content.get("front_end", {}),
        parts=parts,
    )


def open_table(folder: Path, name: str) -> pa.Table:
    """A table of a cache folder, mapped. Removes a damaged file, to be made again at the next start: DamagedCacheError."""
    try:
        check_file(folder, name)
        return pa.ipc.open_file(pa.memory_map(str(folder / name))).read_all()
    except (storage.DamagedFileError, pa.ArrowInvalid, FileNotFoundError):
        discard(folder, name)
        raise DamagedCacheError(folder / name) from None


def discard(folder: Path, name: str) -> None:
    """Remove a damaged file from a cache. The manifest is removed first, since the cache is no longer complete."""
    (folder / MANIFEST_FILE).unlink(missing_ok=True)
    (folder / name).unlink(missing_ok=True)


def discard_damaged(folder: Path) -> None:
    """Remove a cache's manifest and the files that are not as they were sealed, before those that remain are sealed again."""
    (folder / MANIFEST_FILE).unlink(missing_ok=True)
    for name in digests_of(folder):
        try:
            check_file(folder, name)
        except storage.DamagedFileError:
            discard(folder, name)


def read_block(batch: dict[str, Any], folder: str, split: str) -> dict[str, Any]:
    """The features of several steps' rows, as Ray Data's tasks return them."""
    features = open_features(Path(folder), split)
    # Object arrays of arrays: Ray Data stores them as tensor columns whose rows may differ in shape.
    read = {name: np.empty(len(batch["rows"]), object) for name in ("features", "frames")}
    for index, (rows, windows) in enumerate(zip(batch["rows"], batch["windows"], strict=True)):
        read["features"][index], read["frames"][index] = features.of_windows(np.asarray(rows), np.asarray(windows))
    return read


# --- the store


def write_stored_rows(
    store: storage.Location, file: str, batches: Iterable[tuple[list[str], list[np.ndarray]]]
) -> None:
    """Write clips' features to the store, then the table `file` of their positions: if it exists, the features do."""
    sink, end = pa.BufferOutputStream(), 0
    with storage.complete_file(store / rows_file(file)) as output, pa.ipc.new_file(sink, POSITIONS) as positions:
        for ids, features in batches:
            contents = [feature.tobytes() for feature in features]
            sizes = np.array([len(content) for content in contents], np.int64)
            starts = end + np.cumsum(sizes) - sizes
            digests = np.array([xxhash.xxh3_64_intdigest(content) for content in contents], np.uint64)
            for content in contents:
                output.write(content)
            end += int(sizes.sum())
            positions.write_batch(
                pa.record_batch([pa.array(ids, pa.string()), starts, sizes, digests], schema=POSITIONS)
            )
    storage.write_bytes(store / file, sink.getvalue().to_pybytes())


def read_stored_rows(store: storage.Location, locations: Sequence[tuple[str, int, int, int]]) -> list[bytes]:
    """The rows at places (table's file, start, size, digest), in their order. DamagedFileError if one has changed."""
    if not locations:
        return []
    files, starts, sizes, digests = zip(*locations, strict=True)
    ends = [start + size for start, size in zip(starts, sizes, strict=True)]
    contents = storage.read_ranges([store / rows_file(file) for file in files], starts, ends)
    for file, content, digest in zip(files, contents, digests, strict=True):
        if xxhash.xxh3_64_intdigest(content) != digest:
            raise storage.DamagedFileError(store / rows_file(file), MADE_AGAIN)
    return contents


def rows_file(file: str) -> str:
    """The name of the file with the rows of a table of positions."""
    return str(Path(file).with_suffix(".features"))


def fetch_folder(store: storage.Location, folder: Path) -> bool:
    """Copy a folder from the store to a node's disk, without the rows; False if the store's folder is not complete."""
    if not storage.file_exists(store / MANIFEST_FILE):
        return False
    for name in (DIGESTS_FILE, *_listed(store)):
        with storage.opened(store / name) as source, storage.atomic_file(folder / name) as output:
            shutil.copyfileobj(source, output)
    try:
        check_folder(folder)
    except storage.DamagedFileError as error:
        raise storage.DamagedFileError(store / Path(error.file).name, MADE_AGAIN) from None
    content = storage.read_json(store / MANIFEST_FILE)
    # With the store's present address, in case it was moved.
    storage.write_json(folder / MANIFEST_FILE, {**content, STORE: str(store)} if STORE in content else content)
    return True


def finish_folder(folder: Path, store: storage.Location | None, manifest: Mapping[str, Any]) -> None:
    """Write the digests of a folder of features or vectors and then its manifest, which makes it complete.

    The content is copied to the store before: a complete folder is not sent again.
    """
    seal_folder(folder)
    if store is not None:
        for name in (*digests_of(folder), DIGESTS_FILE):
            with (folder / name).open("rb") as source, storage.complete_file(store / name) as output:
                shutil.copyfileobj(source, output)
        storage.write_json(store / MANIFEST_FILE, manifest)
    storage.write_json(folder / MANIFEST_FILE, manifest)


def folder_in(store: str, name: str) -> storage.Location | None:
    """The folder of features or vectors in the store of a setting; None if the setting is empty."""
    return storage.locate(f"{store}/{name}", keeps_links=True) if store else None


def _listed(store: storage.Location) -> list[str]:
    """The names in the store's list of digests. ValueError for one that leads out of the folder."""
    at = f"{store / DIGESTS_FILE}: files"
    content = storage.read_json(store / DIGESTS_FILE)
    files = content.get("files") if isinstance(content, dict) else None
    if not isinstance(files, dict):
        raise refuse(at, files, "a list of files and their digests")
    return [storage.safe_name(name, at) for name in files]
