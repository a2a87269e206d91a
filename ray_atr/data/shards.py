"""A data set on disk: Parquet shards of clips and a manifest, locally or in an object store.

    train-00000.parquet     clips of one split, in the columns of `schema.SCHEMA`
    val-00000.parquet
    manifest.json           written last: a folder that has one is whole

A shard holds clips of one split only, so that a split is read without touching the others. Every path may be local or
a URL that fsspec or pyarrow understands (`file://`, `memory://`, `s3://`).
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

import fsspec
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
from fsspec.implementations.arrow import ArrowFSWrapper
from fsspec.implementations.local import LocalFileSystem

from ray_atr.data.languages import LANGUAGES
from ray_atr.data.schema import SCHEMA, Clip, check_clip, check_schema, to_batch
from ray_atr.storage import whole_file

MANIFEST_FILE = "manifest.json"
FORMAT = 1
CLIPS_PER_SHARD = 128
ROW_GROUP_BYTES = 8 * 2**20
ROW_GROUP_CLIPS = 64
OBJECT_STORES = ("s3", "gs", "gcs")


@dataclass(frozen=True)
class Folder:
    """A folder in some file system: `path` in that system's terms, `name` as a user writes it."""

    filesystem: Any
    path: str
    name: str

    @property
    def is_local(self) -> bool:
        return isinstance(self.filesystem, LocalFileSystem)

    def file(self, name: str) -> str:
        return f"{self.path.rstrip('/')}/{name}"

    def exists(self, name: str) -> bool:
        return bool(self.filesystem.exists(self.file(name)))

    def names(self) -> list[str]:
        """The names of the files and folders directly inside; none where the folder does not exist."""
        if not self.filesystem.exists(self.path):
            return []
        return sorted(entry.rstrip("/").rsplit("/", 1)[-1] for entry in self.filesystem.ls(self.path, detail=False))

    def open(self, name: str) -> IO[bytes]:
        return self.filesystem.open(self.file(name), "rb")  # type: ignore[no-any-return]

    def open_arrow(self, name: str) -> Any:
        """A file for Arrow to read: mapped into memory where it is local, so that only what is used is read."""
        return pa.memory_map(self.file(name)) if self.is_local else self.open(name)

    def read(self, name: str) -> bytes:
        with self.open(name) as file:
            return file.read()

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        """A file to write that appears under its name only when it is whole."""
        if not self.is_local:
            # An object in a store appears when it is closed; memory follows the same interface.
            self.filesystem.makedirs(self.path, exist_ok=True)
            with self.filesystem.open(self.file(name), "wb") as file:
                yield file
            return
        os.makedirs(self.path, exist_ok=True)
        with whole_file(Path(self.file(name))) as file:
            yield file

    def write(self, name: str, content: bytes) -> None:
        with self.writing(name) as file:
            file.write(content)


def open_folder(path: str | Path) -> Folder:
    """The folder of a local path or URL, which need not exist. Local names become absolute."""
    text = str(path)
    protocol = text.split("://", 1)[0] if "://" in text else ""
    if protocol in OBJECT_STORES:
        filesystem, inner = pyarrow.fs.FileSystem.from_uri(text)
        return Folder(ArrowFSWrapper(filesystem), inner, text.rstrip("/"))
    if protocol and protocol not in fsspec.available_protocols():
        raise ValueError(f"{text}: unknown kind of path {protocol}://; allowed a local path, file://, memory://, s3://")
    filesystem, inner = fsspec.core.url_to_fs(os.path.expanduser(text) if not protocol else text)
    name = inner if isinstance(filesystem, LocalFileSystem) else text.rstrip("/")
    return Folder(filesystem, inner, name)


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One Parquet file: its clips' split, number, duration, and captions a language; its size and SHA-256."""

    file: str
    split: str
    num_rows: int
    seconds: float
    captions: dict[str, int]
    translated: dict[str, int] = field(default_factory=dict)
    num_bytes: int
    sha256: str


@dataclass(frozen=True)
class Skipped:
    """A clip that is not in the shards, and why."""

    clip_id: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a data set holds. `folder` is where it was read from and takes no part in `hash`; `origin` is a hash of what
    it was imported from, so that the same import is known again."""

    name: str
    licence: str
    shards: tuple[Shard, ...]
    skipped: tuple[Skipped, ...] = ()
    notes: tuple[str, ...] = ()
    origin: str = ""
    folder: str = ""

    @property
    def hash(self) -> str:
        """SHA-256 of what the shards hold, in order; independent of name, place and time."""
        content = [(FORMAT, [(shard.split, shard.num_rows, shard.sha256) for shard in self.shards])]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(shard.split for shard in self.shards))

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages with at least one caption, English first, in the order of `LANGUAGES`, then by code."""
        found = {code for shard in self.shards for code, number in shard.captions.items() if number}
        order = list(LANGUAGES)
        return tuple(sorted(found, key=lambda code: (order.index(code) if code in order else len(order), code)))

    @property
    def num_rows(self) -> int:
        return sum(shard.num_rows for shard in self.shards)

    @property
    def seconds(self) -> float:
        return sum(shard.seconds for shard in self.shards)

    def shards_of(self, split: str) -> tuple[Shard, ...]:
        """The shards of one split. ValueError where there is none."""
        found = tuple(shard for shard in self.shards if shard.split == split)
        if not found:
            raise ValueError(f"{self.folder or self.name}: no split {split!r}; it has {', '.join(self.splits)}")
        return found

    def num_rows_of(self, split: str) -> int:
        return sum(shard.num_rows for shard in self.shards if shard.split == split)

    def num_captions(self, language: str) -> int:
        return sum(shard.captions.get(language, 0) for shard in self.shards)

    def num_translated(self, language: str) -> int:
        """How many of the language's captions a machine made."""
        return sum(shard.translated.get(language, 0) for shard in self.shards)


def write_shard(folder: Folder, file: str, split: str, clips: Iterable[Clip]) -> Shard | None:
    """Check and write the clips of one split as one Parquet file; None, and no file, where there are none.

    Memory holds one row group at a time. ValueError names a clip that is not right.
    """
    iterator = iter(clips)
    first = next(iterator, None)
    if first is None:
        return None
    counts = _Counts(split)
    with folder.writing(file) as output:
        sink = _HashingSink(output)
        # Encoded audio does not compress further.
        with pq.ParquetWriter(sink, SCHEMA, compression="none", use_dictionary=["split", "source"]) as writer:
            group: list[Clip] = []
            size = 0
            for clip in _chain(first, iterator):
                checked = check_clip(clip)
                counts.add(checked)
                group.append(checked)
                size += len(checked.audio)
                if size >= ROW_GROUP_BYTES or len(group) >= ROW_GROUP_CLIPS:
                    writer.write_batch(to_batch(group), row_group_size=len(group))
                    group, size = [], 0
            if group:
                writer.write_batch(to_batch(group), row_group_size=len(group))
    return Shard(
        file=file,
        split=split,
        num_rows=counts.num_rows,
        seconds=round(counts.seconds, 3),
        captions=dict(sorted(counts.captions.items())),
        translated=dict(sorted(counts.translated.items())),
        num_bytes=sink.num_bytes,
        sha256=sink.digest(),
    )


def write_clips(
    out: str | Path,
    clips: Iterable[Clip],
    *,
    name: str,
    licence: str,
    clips_per_shard: int = CLIPS_PER_SHARD,
    skipped: Sequence[Skipped] = (),
) -> Manifest:
    """Write clips, of splits in any order, as a whole data set. ValueError on a bad or repeated clip, a used folder."""
    with new_data_set(out) as aside:
        waiting: dict[str, list[Clip]] = {}
        shards: list[Shard] = []
        seen: set[str] = set()
        written: dict[str, int] = {}

        def flush(split: str) -> None:
            shard = write_shard(aside, shard_file(split, written.get(split, 0)), split, waiting.pop(split))
            written[split] = written.get(split, 0) + 1
            if shard is not None:
                shards.append(shard)

        for clip in clips:
            if clip.clip_id in seen:
                raise ValueError(f"clip {clip.clip_id!r}: its id stands twice; ids must be unique in a data set")
            seen.add(clip.clip_id)
            waiting.setdefault(clip.split, []).append(clip)
            if len(waiting[clip.split]) >= clips_per_shard:
                flush(clip.split)
        for split in list(waiting):
            flush(split)
        if not shards:
            raise ValueError(f"{name}: there are no clips to write")
        manifest = Manifest(
            name=name, licence=licence, shards=tuple(sorted(shards, key=_shard_order)), skipped=tuple(skipped)
        )
        write_manifest(aside, manifest)
    return read_manifest(out)


def shard_file(split: str, index: int) -> str:
    return f"{split}-{index:05d}.parquet"


SPLIT_ORDER = ("train", "val", "test")


def _shard_order(shard: Shard) -> tuple[int, str]:
    return (SPLIT_ORDER.index(shard.split) if shard.split in SPLIT_ORDER else len(SPLIT_ORDER), shard.file)


def order_shards(shards: Iterable[Shard]) -> tuple[Shard, ...]:
    """The shards in the order of a manifest: train, val, test, others; by number within."""
    return tuple(sorted(shards, key=_shard_order))


@contextlib.contextmanager
def new_data_set(out: str | Path) -> Iterator[Folder]:
    """A folder to write shards and a manifest into that becomes `out` when the block ends well, and vanishes when not.

    In an object store, where folders cannot be renamed, it is `out` itself: the manifest, written last, makes it whole.
    ValueError where `out` already holds something.
    """
    folder = open_folder(out)
    refuse_overwrite(folder)
    if not folder.is_local:
        yield folder
        return
    path = Path(folder.path)
    aside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")
    aside.mkdir(parents=True)
    try:
        yield Folder(folder.filesystem, str(aside), str(aside))
        publish(aside, path)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def publish(aside: Path, out: Path) -> None:
    """Rename a finished local folder to its final name, replacing an empty folder only."""
    refuse_overwrite(open_folder(out))
    with contextlib.suppress(FileNotFoundError):
        out.rmdir()
    os.rename(aside, out)


def refuse_overwrite(folder: Folder) -> None:
    """ValueError where a folder already holds something; PermissionError where it cannot be written."""
    names = folder.names()
    if MANIFEST_FILE in names:
        held = read_manifest(folder.name)
        raise ValueError(f"{folder.name}: already holds the data set {held.name}; choose another folder or delete it")
    if names and folder.is_local:
        raise ValueError(f"{folder.name}: not empty and no data set; choose another folder")
    if folder.is_local:
        require_writable(Path(folder.path))


def require_writable(path: Path) -> None:
    """PermissionError (or NotADirectoryError) where nothing can be made at a local path; leaves nothing behind."""
    parent = path if path.exists() else path.parent
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir():
        raise NotADirectoryError(20, "is a file, not a folder", str(parent))
    if not os.access(parent, os.W_OK | os.X_OK):
        raise PermissionError(13, "cannot be written", str(parent))


def write_manifest(folder: Folder, manifest: Manifest) -> None:
    """Write the manifest, which makes the folder a whole data set."""
    content = {
        "format": FORMAT,
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
        "shards": [asdict(shard) for shard in manifest.shards],
        "skipped": [asdict(entry) for entry in manifest.skipped],
    }
    folder.write(MANIFEST_FILE, json.dumps(content, indent=1, ensure_ascii=False).encode())


def read_manifest(folder: str | Path) -> Manifest:
    """The manifest of a data set. ValueError where the folder holds no whole data set or the manifest was changed."""
    opened = open_folder(folder)
    if not opened.exists(MANIFEST_FILE):
        raise ValueError(
            f"{opened.name}: no data set ({MANIFEST_FILE} is missing); make one with pipelines/prepare_data.py"
        )
    try:
        content = json.loads(opened.read(MANIFEST_FILE).decode())
        manifest = Manifest(
            name=content["name"],
            licence=content["licence"],
            shards=tuple(Shard(**shard) for shard in content["shards"]),
            skipped=tuple(Skipped(**entry) for entry in content["skipped"]),
            notes=tuple(content["notes"]),
            origin=content["origin"],
            folder=opened.name,
        )
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{opened.file(MANIFEST_FILE)}: not a manifest of clips ({error!r})") from None
    if content.get("format") != FORMAT:
        raise ValueError(f"{opened.file(MANIFEST_FILE)}: format {content.get('format')!r}; this version reads {FORMAT}")
    if content["hash"] != manifest.hash:
        raise ValueError(f"{opened.file(MANIFEST_FILE)}: its hash does not fit its shards; it was changed by hand")
    return manifest


def read_shard(
    manifest: Manifest, shard: Shard, columns: Sequence[str] | None = None, batch_size: int = ROW_GROUP_CLIPS
) -> Iterator[pa.RecordBatch]:
    """The rows of one shard as record batches of at most `batch_size`, of the given columns or all of them."""
    folder = open_folder(manifest.folder)
    path = folder.file(shard.file)
    if not folder.exists(shard.file):
        raise ValueError(f"{path}: missing; the manifest of {manifest.name} names it")
    with folder.open_arrow(shard.file) as source:
        try:
            parquet = pq.ParquetFile(source)
        except pa.ArrowInvalid as error:
            raise ValueError(f"{path}: not a Parquet file ({error})") from None
        check_schema(parquet.schema_arrow, path)
        yield from parquet.iter_batches(batch_size=batch_size, columns=list(columns) if columns else None)


def iterate_rows(manifest: Manifest, split: str, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """The rows of one split as dictionaries, captions as `{language: [caption, ...]}`, in the order of the shards."""
    for shard in manifest.shards_of(split):
        for batch in read_shard(manifest, shard, columns):
            for row in batch.to_pylist():
                if "captions" in row:
                    row["captions"] = dict(row["captions"])
                yield row


class ClipCaptions(NamedTuple):
    """The words of one clip, without its audio."""

    clip_id: str
    captions: dict[str, list[str]]
    labels: list[str]


def read_captions(manifest: Manifest, split: str) -> Iterator[ClipCaptions]:
    """Captions and labels of one split in the order of the shards; the audio is not read."""
    for row in iterate_rows(manifest, split, columns=["clip_id", "captions", "labels"]):
        yield ClipCaptions(row["clip_id"], row["captions"], row["labels"])


def hash_of_file(folder: Folder, name: str) -> str:
    """SHA-256 of a file as hexadecimal digits, read in pieces."""
    digest = hashlib.sha256()
    with folder.open(name) as file:
        while piece := file.read(2**20):
            digest.update(piece)
    return digest.hexdigest()


def _chain(first: Clip, rest: Iterator[Clip]) -> Iterator[Clip]:
    yield first
    yield from rest


class _Counts:
    """What a shard's entry in the manifest says of its clips."""

    def __init__(self, split: str) -> None:
        self.split = split
        self.num_rows = 0
        self.seconds = 0.0
        self.captions: dict[str, int] = {}
        self.translated: dict[str, int] = {}

    def add(self, clip: Clip) -> None:
        assert clip.split == self.split, f"clip {clip.clip_id} of split {clip.split} in a shard of {self.split}"
        self.num_rows += 1
        self.seconds += clip.seconds
        for code, texts in clip.captions.items():
            self.captions[code] = self.captions.get(code, 0) + len(texts)
            if code in clip.translated:
                self.translated[code] = self.translated.get(code, 0) + len(texts)


class _HashingSink(io.RawIOBase):
    """A file to write that hashes what passes through, so that a shard is not read again to know its SHA-256."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__()
        self._file = file
        self._digest = hashlib.sha256()
        self.num_bytes = 0

    def writable(self) -> bool:
        return True

    def write(self, piece: Any) -> int:
        self._digest.update(piece)
        self._file.write(piece)
        self.num_bytes += len(piece)
        return len(piece)

    def tell(self) -> int:
        return self.num_bytes

    def digest(self) -> str:
        return self._digest.hexdigest()
