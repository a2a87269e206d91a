"""Builds or updates an index: only new or changed sounds are encoded, and a stopped build continues."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import os
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from ray_atr.common.atomic import remove_leftovers_below
from ray_atr.common.digests import digest_of
from ray_atr.common.language_codes import is_unicode
from ray_atr.common.lock import HOLDER_FILE, LOCK_FILE
from ray_atr.common.progress import Echo, NamedProgress, silent
from ray_atr.common.settings import counted, local_path, refuse
from ray_atr.common.storage import Location, atomic_file, file_exists, hold, remove_folder
from ray_atr.data.caption_vectors import check_kind
from ray_atr.data.decoding import AUDIO_SUFFIXES
from ray_atr.data.schema import caption_rows, captions_by_language
from ray_atr.deploy.index import layout
from ray_atr.deploy.index.archive import (
    Archive,
    ArchivedSound,
    AudioFolder,
    DataSetArchive,
    ReadyVectors,
    numbers_of_part,
    open_archive,
    sounds_of_part,
)
from ray_atr.deploy.index.options import IndexEncoding
from ray_atr.deploy.index.structure import EXACT_ROWS, read_structure
from ray_atr.deploy.index.windows import BEYOND_16_BITS, EncodedSound, encode_archive, uses_ray
from ray_atr.models.fingerprint import is_told_language, model_fingerprint, reads_any_text
from ray_atr.models.late_interaction import ONLY_VECTORS
from ray_atr.models.retriever import Retriever
from ray_atr.training.run_folder import saved_retriever

UNFINISHED = "unfinished"
PART_SECONDS = 20.0
"""Time between writes of encoded sounds; a killed build loses at most this much work."""
LEAST_SHARED = 0.1
"""An archive at a new place must have this share of the index's sounds. With fewer it counts as another archive."""
ROWS_TOGETHER = 10_000
"""Rows that are converted at once, since they take ten times the memory as Python objects."""
SHOWN = 20
"""Number of broken files that are named; the others are counted. `files.arrow` has all."""

PART_SCHEMA = pa.schema(
    [
        *(layout.FILE_SCHEMA.field(name) for name in ("path", "size", "modified_ns", "digest", "clip_id", "captions")),
        ("starts", pa.list_(pa.float64())),
        ("ends", pa.list_(pa.float64())),
        ("vectors", pa.large_binary()),
    ]
)


@dataclass(frozen=True)
class Changes:
    """What a build or an update did, in numbers of sounds."""

    manifest: layout.IndexManifest
    encoded: int
    taken_over: int
    removed: int
    broken: Mapping[str, str]
    """Path -> why it is not in the index."""
    query: str
    """An example of what `ray-atr index query` can ask; empty: nothing."""


def build_index(checkpoint: str, audio: str, out: str, *, part: str = "", **options: Any) -> Changes:
    """Index an archive with a saved retriever, or its part `K/N`; `options` are those of `bring_up_to_date`.

    ValueError if `out` is an index already. The same call continues a build that was stopped.
    """
    folder = _here(out, "--out")
    if (folder / layout.INDEX_FILE).exists():
        if not _killed_at_its_end(folder, audio, part):
            update = shlex.join(["ray-atr", "index", "update", out])
            raise refuse("--out", out, f"a new folder; bring an index up to date with `{update}`")
    elif folder.exists() and any(
        path.name not in (UNFINISHED, LOCK_FILE, HOLDER_FILE, "1") and not path.name.startswith(".")
        for path in folder.iterdir()
    ):
        raise refuse("--out", out, "a new or empty folder")
    archive = open_archive(audio)
    return bring_up_to_date(folder, saved_retriever(checkpoint, "--checkpoint"), archive, part=part, **options)


def _killed_at_its_end(folder: Path, audio: str, part: str) -> bool:
    """Whether a build of this archive was killed after writing the index, before it removed its temporary files."""
    if not any(
        path.name in (UNFINISHED, LOCK_FILE) or path.name.startswith(f".{UNFINISHED}.") for path in folder.iterdir()
    ):
        return False
    manifest = layout.read_index_manifest(folder)
    return (manifest.archive, manifest.part) == (open_archive(audio).place, part)


def update_index(index: str, checkpoint: str | None = None, audio: str | None = None, **options: Any) -> Changes:
    """Encode new and changed sounds of an index's archive, and leave out removed ones. ValueError for another model, and for
    another archive at `audio`.
    """
    folder = _here(index, "index")
    manifest = layout.read_index_manifest(folder)
    retriever = saved_retriever(checkpoint or manifest.checkpoint, "--checkpoint")
    return bring_up_to_date(folder, retriever, open_archive(audio or manifest.archive), part=manifest.part, **options)


def _here(folder: str, setting: str) -> Path:
    """The absolute path of a local folder. ValueError for a URL of a store."""
    place = local_path(folder)
    if place is None:
        raise refuse(setting, folder, "a folder of this machine; copy it to the store when it is finished")
    return Path(os.path.abspath(place))


def bring_up_to_date(
    folder: Path,
    checkpoint: Location,
    archive: Archive,
    *,
    part: str = "",
    encoding: IndexEncoding | None = None,
    exact_rows: int = EXACT_ROWS,
    part_seconds: float = PART_SECONDS,
    progress: NamedProgress = silent,
    echo: Echo = silent,
) -> Changes:
    """Bring the index in a folder up to the archive's present state. Until the end the folder holds the older index, or none.

    ValueError if no sound of the archive can be indexed, or if the folder holds another model's index.
    """
    encoding = encoding or IndexEncoding()
    _, parts_of_archive = numbers_of_part(part)
    retriever = Retriever.from_pretrained(str(checkpoint))
    # If Ray encodes, its processes need the GPUs.
    retriever.to("cuda" if torch.cuda.is_available() and not uses_ray(encoding) else "cpu")
    model = model_fingerprint(retriever)
    if retriever.settings.is_late:
        echo(ONLY_VECTORS)
    with _made(folder), hold(folder, "the index"):
        remove_leftovers_below(folder)
        before = layout.read_index_manifest(folder) if file_exists(folder / layout.INDEX_FILE) else None
        if before is not None and before.model != model:
            raise refuse(
                "checkpoint", str(checkpoint), f"the model of the index, {before.checkpoint}: build a new index"
            )
        files, earlier = (None, {}) if before is None else _indexed(folder, before)
        if before is not None and archive.place != before.archive:
            _require_same_sounds(archive, part, earlier, before.archive)
        parts = _Parts(folder / UNFINISHED, model, part_seconds)
        taken_up = parts.read()
        if taken_up:
            echo(f"taken up: {counted(len(taken_up), 'sound')} of an interrupted build")
        earlier.update({encoded.sound.path: encoded for encoded in taken_up})
        order, reused = list[ArchivedSound](), dict[str, EncodedSound]()
        done: dict[str, EncodedSound] = {}
        total = len(archive) // parts_of_archive  # an estimate; the exact number needs all paths
        try:
            for result in _encode(retriever, archive, part, earlier, order, reused, str(checkpoint), encoding, echo):
                done[result.sound.path] = result
                parts.add(result)
                progress("sounds", len(done) + len(reused), total)
            # Unchanged sounds after the last new one count too; the number of all is known now.
            progress("sounds", len(done) + len(reused), len(order))
        except KeyboardInterrupt:
            parts.flush()
            raise
        everything = [reused.get(sound.path) or done[sound.path] for sound in order]
        broken = {encoded.sound.path: encoded.error for encoded in everything if encoded.error}
        _tell(broken, echo)
        paths = {sound.path for sound in order}
        removed = 0 if files is None else sum(path not in paths for path in files["path"].to_pylist())
        if not order:
            allowed = (
                f"a part with sounds: {part} has none" if part else f"one with sounds: {', '.join(AUDIO_SUFFIXES)}"
            )
            raise refuse("--audio", archive.place, allowed)
        tables = _tables(everything)
        if before is not None and files is not None and tables[0].equals(files):
            manifest = dataclasses.replace(before, archive=archive.place, checkpoint=str(checkpoint))
            if manifest != before:
                layout.write_index_manifest(folder, manifest)
        else:
            echo("writing the index")
            manifest = layout.write_state(
                folder,
                *tables,
                model=model,
                checkpoint=str(checkpoint),
                archive=archive.place,
                distance=retriever.distance,
                part=part,
                exact_rows=exact_rows,
            )
        layout.remove_other_states(folder, manifest)
        remove_folder(folder / UNFINISHED)
    encoded = sum(not sound.error for sound in done.values())
    return Changes(manifest, encoded, len(reused), removed, broken, _example(retriever))


def _example(retriever: Retriever) -> str:
    if reads_any_text(retriever):
        return '"a dog barks"' + (" --language eng" if is_told_language(retriever) else "")
    if retriever.audio_tower.front_end.kind != "vector":
        return "--like FILE"
    return '"A CAPTION OF ITS DATA" --language eng' if retriever.text_tower.reads_texts else ""


@contextlib.contextmanager
def _made(folder: Path) -> Iterator[None]:
    """Make a folder; if the block fails, a new folder is removed again if it is empty."""
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        if is_new:
            with contextlib.suppress(OSError):  # another build may have begun in it
                folder.rmdir()
        raise


def _encode(
    retriever: Retriever,
    archive: Archive,
    part: str,
    earlier: Mapping[str, EncodedSound],
    order: list[ArchivedSound],
    reused: dict[str, EncodedSound],
    checkpoint: str,
    encoding: IndexEncoding,
    echo: Echo,
) -> Iterator[EncodedSound]:
    """The encoded new sounds; adds all sounds to `order`, and those that need no encoding to `reused`."""

    by_size = _files_by_size(earlier)

    def new_sounds() -> Iterable[ArchivedSound]:
        nameless: dict[str, str] = {}
        for sound in sounds_of_part(archive, part):
            entry = sound.without_data()
            if not is_unicode(sound.path):
                nameless[repr(sound.path)] = "a name that is not UTF-8"
                continue
            order.append(entry)
            older = earlier.get(sound.path)
            if older is None or not _is_unchanged(older, sound, archive):
                # Perhaps a moved or copied file; its name may have been that of another sound.
                same_size = by_size.get(sound.size)
                older = same_size.get(_digest(sound, archive)) if same_size else None
            if older is not None:
                reused[sound.path] = dataclasses.replace(older, sound=entry)
            else:
                yield sound
        _tell(nameless, echo)

    if isinstance(archive, ReadyVectors):
        given, width = archive.vectors.shape[1], retriever.vector_width
        if given != width:
            raise refuse("--audio", f"vectors of width {given}", f"vectors of the model's width, {width}")
        for sound in new_sounds():
            yield _ready(sound, retriever.distance)
        return
    is_vector = retriever.audio_tower.front_end.kind == "vector"
    if is_vector and isinstance(archive, AudioFolder):
        # Otherwise each of its files would be read, and left out.
        raise refuse("--audio", archive.place, "a .npy file or a data set of vectors: the model hears nothing itself")
    if isinstance(archive, DataSetArchive):
        check_kind(archive.place, "--checkpoint", checkpoint, reads_vectors=is_vector)
    yield from encode_archive(retriever, archive, new_sounds(), checkpoint, encoding)


def _files_by_size(earlier: Mapping[str, EncodedSound]) -> dict[int, dict[str, EncodedSound]]:
    """The sounds that have files of their own, by size and digest."""
    by_size: dict[int, dict[str, EncodedSound]] = {}
    for encoded in earlier.values():
        if encoded.sound.modified_ns:
            by_size.setdefault(encoded.sound.size, {})[encoded.digest] = encoded
    return by_size


def _require_same_sounds(archive: Archive, part: str, earlier: Mapping[str, EncodedSound], place: str) -> None:
    """ValueError if an archive at a new place has hardly any sound of the index, by path and size or by its bytes."""
    by_size = _files_by_size(earlier)

    def is_known(sound: ArchivedSound) -> bool:
        older = earlier.get(sound.path)
        if older is not None and older.sound.size == sound.size:
            # Vectors are all of one size and often have the same paths; without files of their own, their bytes are at hand.
            return bool(sound.modified_ns) or _digest(sound, archive) == older.digest
        return sound.size in by_size and _digest(sound, archive) in by_size[sound.size]

    # The search stops at this number, since each sound may have to be read.
    needed = math.ceil(LEAST_SHARED * len(earlier))
    same_sounds = len(list(itertools.islice(filter(is_known, sounds_of_part(archive, part)), needed)))
    if same_sounds < needed:
        allowed = f"{place} at its new place: this one has {same_sounds} of its {counted(len(earlier), 'sound')}"
        raise refuse(
            "--audio", archive.place, f"{allowed}; make an index of another archive with `ray-atr index build`"
        )


def _ready(sound: ArchivedSound, distance: str) -> EncodedSound:
    assert sound.data is not None
    row, listed = np.frombuffer(sound.data, np.float32), sound.without_data()
    norm = float(np.linalg.norm(row))
    if not np.isfinite(norm) or (distance == "cosine" and norm == 0):
        return EncodedSound(listed, "", error="a vector that is zero or not finite")
    with np.errstate(over="ignore"):
        stored = (row / norm if distance == "cosine" else row).astype(np.float16)
    if not np.isfinite(stored).all():
        return EncodedSound(listed, "", error=BEYOND_16_BITS)
    return EncodedSound(listed, digest_of(sound.data), (0.0,), (0.0,), stored[None])


def _is_unchanged(older: EncodedSound, sound: ArchivedSound, archive: Archive) -> bool:
    """Whether a sound is unchanged since it was encoded: by size and time of change, else by its bytes."""
    if older.sound.size != sound.size:
        return False
    if sound.modified_ns and sound.modified_ns == older.sound.modified_ns:
        return True
    return _digest(sound, archive) == older.digest


def _digest(sound: ArchivedSound, archive: Archive) -> str:
    """The digest of a sound's bytes; empty if they cannot be read."""
    try:
        return digest_of(archive.read(sound) if sound.data is None else sound.data)
    except (OSError, ValueError):
        return ""


def _indexed(folder: Path, manifest: layout.IndexManifest) -> tuple[pa.Table, dict[str, EncodedSound]]:
    """The files of an index, and the sounds in it by path; broken ones are tried again."""
    layout.check_files(folder, manifest, sorted(manifest.digests))
    state = folder / str(manifest.state)
    files, windows = layout.stored_table(state / layout.FILES), layout.stored_table(state / layout.WINDOWS)
    index, rows = read_structure(state / layout.STRUCTURE, None if manifest.is_exact else state / layout.ROWS)
    # Copied, since the codes are freed with FAISS's index.
    rows = np.array(rows) if manifest.is_exact else rows
    del index
    starts, ends = layout.numbers_of(windows["start"]), layout.numbers_of(windows["end"])
    earlier = {}
    for row in files.to_pylist():
        if not row["error"]:
            rows_of_sound = slice(row["first"], row["first"] + row["count"])
            times = tuple(starts[rows_of_sound].tolist()), tuple(ends[rows_of_sound].tolist())
            earlier[row["path"]] = EncodedSound(_sound(row), row["digest"], *times, rows[rows_of_sound])
    return files, earlier


def _sound(row: Mapping[str, Any]) -> ArchivedSound:
    captions = captions_by_language(row["captions"] or ())
    return ArchivedSound(row["path"], row["size"], row["modified_ns"], row["clip_id"], captions)


def _row(encoded: EncodedSound, **more: Any) -> dict[str, Any]:
    """A sound as a row of a table, which ignores the entries that are not its columns."""
    captions = caption_rows({code: texts for code, texts in encoded.sound.captions.items() if texts})
    return {**vars(encoded), **vars(encoded.sound), "captions": captions, **more}


def _tables(sounds: list[EncodedSound]) -> tuple[pa.Table, pa.Table, Any]:
    """The tables of sounds and windows, and the windows' rows. ValueError if there is no window."""
    rows = [encoded.vectors for encoded in sounds if encoded.vectors is not None]
    if not rows:
        raise ValueError(f"nothing to index: of {counted(len(sounds), 'sound')} none can be encoded")
    counts = np.array([len(encoded.starts) for encoded in sounds], np.int64)
    first = np.cumsum(counts) - counts
    counted_sounds = list(zip(sounds, first.tolist(), counts.tolist(), strict=True))
    files = pa.concat_tables(
        pa.Table.from_pylist(
            [_row(encoded, first=place, count=n) for encoded, place, n in some], schema=layout.FILE_SCHEMA
        )
        for some in (
            counted_sounds[start : start + ROWS_TOGETHER] for start in range(0, len(counted_sounds), ROWS_TOGETHER)
        )
    )
    times = (
        np.array([time for encoded in sounds for time in getattr(encoded, name)], np.float64)
        for name in ("starts", "ends")
    )
    file_of = np.repeat(np.arange(len(sounds), dtype=np.int64), counts)
    windows = pa.table([layout.number_array(column) for column in (file_of, *times)], schema=layout.WINDOW_SCHEMA)
    return files, windows, np.concatenate(rows)


def _tell(broken: Mapping[str, str], echo: Echo) -> None:
    for path, reason in list(broken.items())[:SHOWN]:
        echo(f"left out: {path}: {reason}")
    if len(broken) > SHOWN:
        echo(f"left out: {len(broken) - SHOWN:,} more")


class _Parts:
    """The encoded sounds of an unfinished build, on disk, in a new file every few seconds."""

    def __init__(self, folder: Path, model: str, seconds: float) -> None:
        self.folder, self.model, self.seconds = folder, model, seconds
        self.held: list[EncodedSound] = []
        self.number = 0
        self.last = time.monotonic()

    def read(self) -> list[EncodedSound]:
        """The sounds of all complete files of this model; others are ignored."""
        encoded: list[EncodedSound] = []
        for file in sorted(self.folder.glob("part-*.parquet")) if self.folder.is_dir() else ():
            number = file.stem.removeprefix("part-")
            self.number = max(self.number, int(number) + 1 if number.isdecimal() else 0)
            try:
                table = pq.read_table(file, page_checksum_verification=True)
                if (table.schema.metadata or {}).get(b"model") == self.model.encode():
                    encoded += [self._encoded(row) for row in table.to_pylist()]
            except (pa.ArrowException, OSError, ValueError, KeyError):
                continue
        return encoded

    def add(self, result: EncodedSound) -> None:
        """Add a sound; writes all unwritten ones if enough time has passed."""
        if result.vectors is None:
            return
        self.held.append(result)
        if time.monotonic() - self.last >= self.seconds:
            self.flush()

    def flush(self) -> None:
        """Write the unwritten sounds."""
        if not self.held:
            return
        self.folder.mkdir(exist_ok=True)
        rows = [
            _row(encoded, vectors=encoded.vectors.tobytes()) for encoded in self.held if encoded.vectors is not None
        ]
        table = pa.Table.from_pylist(rows, schema=PART_SCHEMA.with_metadata({"model": self.model}))
        with atomic_file(self.folder / f"part-{self.number:06}.parquet", is_synced=True) as output:
            pq.write_table(table, output, write_page_checksum=True)
        self.number += 1
        self.held.clear()
        self.last = time.monotonic()

    @staticmethod
    def _encoded(row: Mapping[str, Any]) -> EncodedSound:
        starts, ends = tuple(row["starts"]), tuple(row["ends"])
        vectors = np.frombuffer(row["vectors"], np.float16).reshape(len(starts), -1)
        return EncodedSound(_sound(row), row["digest"], starts, ends, vectors)
