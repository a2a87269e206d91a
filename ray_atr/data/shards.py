"""A data set on disk: Parquet shards of clips and a manifest, locally or in an object store.

    train-00000.parquet     clips of one split, in the columns of `schema.SCHEMA`
    val-00000.parquet
    manifest.json           written last: a folder that has one is complete

A shard holds clips of one split only, so that a split is read without touching the others. Every path may be local or
a URL that fsspec understands (`file://`, `memory://`, `s3://`).

A joined data set is only a manifest: its shards stay in the folders of its parts. A clip's id begins with the name of its part
(`clotho/rain.wav`), and the clips that the manifest lists as skipped are left out. A data set that was made of a joined one has
shards of its own, with these ids, each of one part.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import IO, Any, ClassVar, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ConfigDict, TypeAdapter, ValidationError

from ray_atr.common import storage
from ray_atr.common.atomic import new_folder
from ray_atr.common.formats import FORMATS, require_format
from ray_atr.common.language_codes import english_first
from ray_atr.common.settings import refuse, shortened
from ray_atr.common.transfer import put_folder
from ray_atr.data.schema import (
    SCHEMA,
    SPLITS,
    Clip,
    captions_by_language,
    check_clip,
    check_schema,
    file_schema,
    part_of,
    to_batch,
    with_audio_bytes,
)
from ray_atr.data.vector_clip import is_vector

MANIFEST_FILE = "manifest.json"
CLIPS_PER_SHARD = 128
ROW_GROUP_BYTES = 8 * 2**20
ROW_GROUP_CLIPS = 64
INCOMPLETE = "not a complete Parquet file"


def open_arrow(file: storage.Location) -> Any:
    """A file for Arrow: mapped into memory if it is local, so that only the parts that are used are read."""
    return pa.memory_map(str(file)) if storage.is_local(file) else storage.opened(file)


@contextlib.contextmanager
def arrow_errors(file: object, reason: str = INCOMPLETE) -> Iterator[None]:
    """Raises an error of Arrow as a ValueError that names the file. If a store is unavailable, its error is raised unchanged."""
    try:
        yield
    except storage.StorageError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{file}: {reason} ({shortened(str(error))})") from None


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One Parquet file: its clips' split, number, duration, and captions a language; its size and SHA-256."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    file: str
    split: str
    num_rows: int
    seconds: float
    captions: dict[str, int]
    translated: dict[str, int] = field(default_factory=dict)
    num_bytes: int
    sha256: str
    longest_seconds: float
    """of its clips"""
    part: str = ""
    """in a joined data set: the part whose folder holds the file; in one that was made of it: the part that its clips are of"""

    @property
    def place(self) -> str:
        """The shard's name in a manifest: the file's name, after that of its part in a joined data set."""
        return f"{self.part}/{self.file}" if self.part else self.file


@dataclass(frozen=True)
class Part:
    """A part of a joined data set: its name, its folder or URL, and the hash of its manifest."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    name: str
    folder: str
    hash: str


@dataclass(frozen=True)
class Skipped:
    """A clip that is not in the shards, or a row of a table that was dropped, and the reason."""

    clip_id: str
    reason: str


KINDS_OF_SOURCE = ("folder", "huggingface", "vectors", "webdataset")
"""Names of data sets that were imported without a name: that of the kind of source."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of a data set. `folder` is where it was read from, which is not part of `hash`; `origin` is a hash of its
    import, by which the same import is recognised.
    """

    name: str
    licence: str
    shards: tuple[Shard, ...]
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()
    origin: str = ""
    folder: str = ""
    parts: tuple[Part, ...] = ()
    """of a joined data set"""

    @property
    def title(self) -> str:
        """The name on pages: the data set's, or the folder's if `prepare` had no --name."""
        last = self.folder.rstrip("/").rpartition("/")[2]
        return last if self.name in KINDS_OF_SOURCE and last else self.name

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the shards' content, in order; independent of name, folder and time."""
        content: list[Any] = [
            (FORMATS["data set"], [(shard.split, shard.num_rows, shard.sha256) for shard in self.shards])
        ]
        if self.is_joined:
            content += [[shard.part for shard in self.shards], sorted(self.left_out)]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    @property
    def is_joined(self) -> bool:
        """Whether its clips are of parts: it was joined from several data sets, or made of one that was."""
        return any(shard.part for shard in self.shards)

    @cached_property
    def left_out(self) -> frozenset[str]:
        """The ids of the clips that a joined data set leaves out of its parts' shards."""
        return frozenset(entry.clip_id for entry in self.skipped) if self.parts else frozenset()

    def shard_at(self, place: str) -> Shard:
        """The shard of a `Shard.place`. ValueError if there is none."""
        match = next((shard for shard in self.shards if shard.place == place), None)
        if match is None:
            raise ValueError(f"{self.folder or self.name}: no shard {place}")
        return match

    def file_of(self, shard: Shard) -> storage.Location:
        """The file of a shard. ValueError if its part is missing in the manifest."""
        if not self.parts:
            return storage.locate(self.folder, keeps_links=True) / shard.file
        folders = {part.name: part.folder for part in self.parts}
        if shard.part not in folders:
            raise ValueError(f"{self.folder}: {shard.file} is of {shard.part!r}, which is none of its parts")
        return storage.locate(folders[shard.part], keeps_links=True) / shard.file

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(shard.split for shard in self.shards))

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages with at least one caption, English first, in the order of `LANGUAGES`, then by code."""
        return english_first({code for shard in self.shards for code, number in shard.captions.items() if number})

    @property
    def num_rows(self) -> int:
        return sum(shard.num_rows for shard in self.shards)

    @property
    def seconds(self) -> float:
        return sum(shard.seconds for shard in self.shards)

    def shards_of(self, split: str) -> tuple[Shard, ...]:
        """The shards of one split. ValueError if there is none."""
        of_split = tuple(shard for shard in self.shards if shard.split == split)
        if not of_split:
            raise ValueError(f"{self.folder or self.name}: no split {split!r}; it has {', '.join(self.splits)}")
        return of_split

    def num_rows_of(self, split: str) -> int:
        return sum(shard.num_rows for shard in self.shards if shard.split == split)

    def num_captions(self, language: str) -> int:
        return sum(shard.captions.get(language, 0) for shard in self.shards)

    def num_translated(self, language: str) -> int:
        """Number of the language's machine-translated captions."""
        return sum(shard.translated.get(language, 0) for shard in self.shards)


@dataclass
class ClipCounts:
    """The counts of a shard's clips, for its entry in the manifest."""

    seconds: list[float] = field(default_factory=list)
    captions: Counter[str] = field(default_factory=Counter)
    translated: Counter[str] = field(default_factory=Counter)

    def add(self, seconds: float, captions: Mapping[str, Sequence[str]], translated: Collection[str]) -> None:
        """Count a clip with its captions by language."""
        self.seconds.append(seconds)
        self.captions.update({code: len(texts) for code, texts in captions.items()})
        self.translated.update({code: len(texts) for code, texts in captions.items() if code in translated})

    def entries(self) -> dict[str, Any]:
        """The counts under the names that they have in `Shard`."""
        return {
            "num_rows": len(self.seconds),
            "seconds": round(sum(self.seconds), 3),
            "longest_seconds": round(max(self.seconds, default=0.0), 3),
            "captions": dict(sorted(self.captions.items())),
            "translated": dict(sorted((+self.translated).items())),
        }


def write_shard(folder: storage.Location, file: str, split: str, clips: Iterable[Clip]) -> Shard | None:
    """Check and write the clips of one split as one Parquet file; None, and no file, if there are none. Memory holds
    one row group at a time. ValueError names an invalid clip.
    """
    iterator = iter(clips)
    first = next(iterator, None)
    if first is None:
        return None
    counts = ClipCounts()
    # Encoded audio does not compress further, and its minimum and maximum would be copies of complete files.
    statistics = [name for name in SCHEMA.names if name != "audio"]
    layout: dict[str, Any] = {"compression": "none", "use_dictionary": ["split", "source"]}
    with storage.complete_file(folder / file) as output:
        sink = _HashingSink(output)
        schema = file_schema(holds_vectors=is_vector(first.audio))
        with pq.ParquetWriter(sink, schema, write_statistics=statistics, **layout) as writer:
            for group in _row_groups(itertools.chain([first], iterator)):
                for clip in group:
                    assert clip.split == split, f"clip {clip.clip_id} of split {clip.split} in a shard of {split}"
                    # A vector has no duration, whatever its row says.
                    counts.add(0.0 if is_vector(clip.audio) else clip.seconds, clip.captions, clip.translated)
                writer.write_batch(to_batch(group), row_group_size=len(group))
    return Shard(file=file, split=split, num_bytes=sink.num_bytes, sha256=sink.digest.hexdigest(), **counts.entries())


def write_clips(
    out: str | Path,
    clips: Iterable[Clip],
    *,
    name: str,
    licence: str,
    clips_per_shard: int = CLIPS_PER_SHARD,
    skipped: Sequence[Skipped] = (),
    notes: Sequence[str] = (),
    beside: Sequence[Path] = (),
    are_joined: bool = False,
) -> Manifest:
    """Write clips, of splits in any order, as a data set. ValueError for a bad or repeated clip, or a used folder.
    `beside` are local folders that are copied into it. `are_joined`: the clips come from a joined data set, whose parts
    are kept; within a split, the clips of a part follow each other.
    """
    part_of_clip = (lambda clip: part_of(clip.clip_id)) if are_joined else (lambda _: "")
    clip_ids: set[str] = set()

    def each_once() -> Iterator[Clip]:
        for clip in clips:
            if clip.clip_id in clip_ids:
                raise ValueError(f"clip {clip.clip_id!r}: its id occurs twice; ids must be unique in a data set")
            clip_ids.add(clip.clip_id)
            yield clip

    with new_data_set(out) as aside:
        for folder in beside:
            put_folder(folder, aside / folder.name)
        shards: list[Shard] = []
        for file, of_shard in in_shards(each_once(), clips_per_shard, part_of_clip):
            shard = write_shard(aside, file, of_shard[0].split, of_shard)
            assert shard is not None, f"{file} has no clips"
            shards.append(replace(shard, part=part_of_clip(of_shard[0])))
            # Freed before the next one fills.
            del of_shard
        if not shards:
            raise ValueError(f"{name}: there are no clips to write")
        about: dict[str, Any] = {"name": name, "licence": licence, "skipped": tuple(skipped), "notes": tuple(notes)}
        write_manifest(aside, Manifest(shards=order_shards(shards), **about))
    return read_manifest(out)


def in_shards(
    items: Iterable[Any], most: int, part_of_item: Callable[[Any], str] = lambda _: ""
) -> Iterator[tuple[str, list[Any]]]:
    """(file, items) of each shard, of one split and part, and at most `most` items: full ones first, the rest at the end."""
    waiting: dict[str, list[Any]] = {}
    written: Counter[str] = Counter()

    def full(split: str) -> tuple[str, list[Any]]:
        written[split] += 1
        return shard_file(split, written[split] - 1), waiting.pop(split)

    for item in items:
        if item.split in waiting and part_of_item(waiting[item.split][0]) != part_of_item(item):
            yield full(item.split)
        waiting.setdefault(item.split, []).append(item)
        if len(waiting[item.split]) >= most:
            yield full(item.split)
    yield from map(full, list(waiting))


def shard_file(split: str, index: int) -> str:
    return f"{split}-{index:05d}.parquet"


def order_shards(shards: Iterable[Shard]) -> tuple[Shard, ...]:
    """The shards in the order of a manifest: train, val, test, others; by number within."""
    return tuple(sorted(shards, key=lambda shard: (*place_of(shard.split), shard.file)))


def place_of(split: str) -> tuple[int, str]:
    """The sort key of a split in a manifest: train, val, test, then others by name."""
    return (SPLITS.index(split) if split in SPLITS else len(SPLITS), split)


def destination(out: str | storage.Location) -> storage.Location:
    """Where a data set that goes to `out` is written: the place that it links to if it is a link, which no folder can replace."""
    folder = storage.locate(out, keeps_links=True)
    return folder.resolve() if storage.is_local(folder) and folder.is_symlink() else folder


@contextlib.contextmanager
def new_data_set(out: str | Path) -> Iterator[storage.Location]:
    """A folder for shards and a manifest, which is renamed to `out` when the block ends, and removed if the block fails.
    In an object store, where folders cannot be renamed, it is `out` itself: the manifest, written last, makes it complete.
    ValueError if `out` is not empty.
    """
    folder = destination(out)
    refuse_overwrite(folder)
    if not storage.is_local(folder):
        yield folder
        return
    with new_folder(folder) as aside:
        yield aside
        # Again, since another process may have written to it meanwhile.
        refuse_overwrite(folder)


def refuse_overwrite(folder: storage.Location) -> None:
    """ValueError if a folder is not empty; PermissionError if it cannot be written."""
    names = storage.names_in(folder)
    if MANIFEST_FILE in names:
        existing = read_manifest(folder)
        raise ValueError(f"{folder}: already holds the data set {existing.name}; choose another folder or delete it")
    if names and storage.is_local(folder):
        raise ValueError(f"{folder}: neither empty nor a data set; choose another folder")
    storage.require_writable(folder)


def write_manifest(folder: storage.Location, manifest: Manifest) -> None:
    """Write the manifest, which makes the folder a complete data set."""
    content = {
        "format": FORMATS["data set"],
        "name": manifest.name,
        "licence": manifest.licence,
        "hash": manifest.hash,
        "num_clips": manifest.num_rows,
        "hours": round(manifest.seconds / 3600, 4),
        "splits": {split: manifest.num_rows_of(split) for split in manifest.splits},
        "languages": {
            code: {"captions": manifest.num_captions(code), "translated": manifest.num_translated(code)}
            for code in manifest.languages
        },
        "notes": list(manifest.notes),
        "origin": manifest.origin,
        # Only joined data sets have parts.
        "shards": [{k: v for k, v in asdict(shard).items() if k != "part" or v} for shard in manifest.shards],
        "skipped": [asdict(entry) for entry in manifest.skipped],
    }
    if manifest.parts:
        content["parts"] = [asdict(part) for part in manifest.parts]
    storage.write_bytes(folder / MANIFEST_FILE, json.dumps(content, indent=1, ensure_ascii=False).encode())


JOB_FOLDER = "_ray_pkg_"
"""Part of the path of the folder that Ray makes from a job's working directory."""


def read_manifest(folder: str | storage.Location) -> Manifest:
    """The manifest of a data set. ValueError if the folder is no complete data set or the manifest was changed."""
    opened = storage.locate(folder, keeps_links=True)
    if isinstance(opened, Path) and opened.is_file():
        raise ValueError(f"{opened}: is a file; a data set is a folder with a {MANIFEST_FILE}")
    if not storage.file_exists(opened / MANIFEST_FILE):
        remedy = "make one with `ray-atr prepare`"
        if JOB_FOLDER in str(opened):
            remedy = "a job is sent without data/ (.rayignore): name the data set by an absolute path of the cluster, or a URL"
        raise ValueError(f"{opened}: no data set ({MANIFEST_FILE} is missing); {remedy}")
    file = opened / MANIFEST_FILE
    try:
        content = json.loads(storage.read_bytes(file).decode())
    except (ValueError, RecursionError) as error:
        # No JSON, a number with thousands of digits, or thousands of nested brackets.
        raise ValueError(f"{file}: not a manifest of clips ({shortened(str(error))})") from None
    if not isinstance(content, dict):
        raise ValueError(f"{file}: not a manifest of clips (it holds no object)")
    content = require_format("data set", content, file)
    fields = ("name", "licence", "shards", "skipped", "notes", "origin")
    try:
        parts = content.get("parts", [])
        content_text = json.dumps({**{name: content[name] for name in fields}, "parts": parts, "folder": str(opened)})
        # Strict types, except that JSON's lists become tuples.
        manifest = _manifest_type().validate_json(content_text, strict=True)
    except KeyError as error:
        raise ValueError(f"{file}: not a manifest of clips ({error} is missing)") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{file}: not a manifest of clips ({shortened(where)}: {shortened(first['msg'])})") from None
    # Name, split and file become paths.
    storage.safe_name(manifest.name, f"{file}: name")
    for part in manifest.parts:
        storage.safe_name(part.name, f"{file}: parts")
    for shard in manifest.shards:
        for number in (shard.num_rows, shard.num_bytes, *shard.captions.values(), *shard.translated.values()):
            if not 0 <= number < 2**53:
                raise refuse(f"{file}: {shortened(shard.file, 100)}", number, "a number of rows, captions or bytes")
        storage.safe_name(shard.split, f"{file}: split")
        storage.safe_name(shard.part or shard.split, f"{file}: part")
        storage.safe_name(shard.file, f"{file}: file")
    if content.get("hash") != manifest.hash:
        raise ValueError(f"{file}: its hash does not match its shards; it was changed by hand")
    return manifest


@cache
def _manifest_type() -> TypeAdapter[Manifest]:
    return TypeAdapter(Manifest)


def read_shard(
    manifest: Manifest, shard: Shard, columns: Sequence[str] | None = None, batch_size: int = ROW_GROUP_CLIPS
) -> Iterator[pa.RecordBatch]:
    """The rows of a shard as record batches of at most `batch_size`, with the given columns or all; `audio` has encoded files."""
    path = manifest.file_of(shard)
    if not storage.file_exists(path):
        raise ValueError(f"{path}: missing; the manifest of {manifest.name} names it")
    wanted = list(columns or SCHEMA.names)
    read = wanted if not manifest.parts or "clip_id" in wanted else ["clip_id", *wanted]
    with open_arrow(path) as source, arrow_errors(path):
        parquet = pq.ParquetFile(source)
        check_schema(parquet.schema_arrow, str(path))
        names = ["audio.bytes" if name == "audio" else name for name in read]
        for batch in map(with_audio_bytes, parquet.iter_batches(batch_size=batch_size, columns=names)):
            rows = as_joined(batch, manifest, shard).select(wanted)
            if rows.num_rows:
                yield rows


def as_joined(batch: Any, manifest: Manifest, shard: Shard) -> Any:
    """Rows of a shard (a batch or table with `clip_id`) with the ids of a joined data set, and without the clips that it leaves
    out; rows of other data sets are unchanged.
    """
    if not manifest.parts:
        return batch
    ids = [f"{shard.part}/{clip_id}" for clip_id in batch.column("clip_id").to_pylist()]
    place = batch.schema.get_field_index("clip_id")
    renamed = batch.set_column(place, batch.schema.field(place), pa.array(ids, pa.string()))
    is_included = [clip_id not in manifest.left_out for clip_id in ids]
    return renamed if all(is_included) else renamed.filter(pa.array(is_included))


def require_complete(manifest: Manifest, shard: Shard) -> None:
    """DamagedFileError unless a shard's bytes are those of the manifest (SHA-256)."""
    file = manifest.file_of(shard)
    if storage.file_exists(file) and hash_of_file(file) != shard.sha256:
        raise storage.DamagedFileError(file, "restore it from a copy, or import the data set again")


def iterate_rows(manifest: Manifest, split: str, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """The rows of one split as dictionaries, captions as `{language: [caption, ...]}`, in the order of the shards."""
    for shard in manifest.shards_of(split):
        for batch in read_shard(manifest, shard, columns):
            for row in batch.to_pylist():
                if "captions" in row:
                    row["captions"] = captions_by_language(row["captions"])
                yield row


class ClipCaptions(NamedTuple):
    """Captions and labels of one clip, without its audio."""

    clip_id: str
    captions: dict[str, list[str]]
    labels: list[str]


def read_captions(manifest: Manifest, split: str) -> Iterator[ClipCaptions]:
    """Captions and labels of one split in the order of the shards; the audio is not read."""
    for row in iterate_rows(manifest, split, columns=["clip_id", "captions", "labels"]):
        yield ClipCaptions(row["clip_id"], row["captions"], row["labels"])


def hash_of_file(file: storage.Location) -> str:
    """SHA-256 of a file as hexadecimal digits, read in pieces."""
    with storage.opened(file) as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()  # type: ignore[arg-type]  # BinaryIO does not promise readinto


def _row_groups(clips: Iterable[Clip]) -> Iterator[list[Clip]]:
    """The checked clips in row groups within the bounds; a larger clip is a group of its own."""
    group: list[Clip] = []
    size = 0
    for clip in map(check_clip, clips):
        if group and (size + len(clip.audio) > ROW_GROUP_BYTES or len(group) == ROW_GROUP_CLIPS):
            yield group
            group, size = [], 0
        group.append(clip)
        size += len(clip.audio)
    yield group


class _HashingSink(io.RawIOBase):
    """A writable file that hashes its content, so that a shard is not read again for its SHA-256."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__()
        self.file, self.digest, self.num_bytes = file, hashlib.sha256(), 0

    def writable(self) -> bool:
        return True

    def write(self, piece: Any) -> int:
        self.digest.update(piece)
        self.file.write(piece)
        self.num_bytes += len(piece)
        return len(piece)

    def tell(self) -> int:
        return self.num_bytes
