"""Files of a run on this machine or in an object store, by one path: `runs/x`, `s3://bucket/runs/x`, `gs://`, `memory://`.

On a file system a file is written aside and renamed; an object store shows an object only when it is whole. A local place is
a `Path`, any other a `UPath`, which has the same methods, so that what reads and joins paths does not ask which it is.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeAlias, Union

import fsspec

if TYPE_CHECKING:
    from upath import UPath

Location: TypeAlias = Union[Path, "UPath"]

EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
"""Protocol -> the extra of this package that brings its file system."""


class StorageError(ConnectionError):
    """A place that could be used before, or should be there, and cannot be reached or written."""


def locate(place: str | Location) -> Location:
    """The place of a local name, made absolute, or of a URL. ValueError for a kind of URL that nothing here can open."""
    text = str(place)
    protocol, separator, rest = text.partition("://")
    if not separator or protocol in ("file", "local"):
        return Path(rest if separator else text).expanduser().resolve()
    if not isinstance(place, str):
        return place
    from upath import UPath

    if protocol not in fsspec.available_protocols():
        raise ValueError(f"{text}: unknown kind of path {protocol}://; allowed a local path, file://, s3://, gs://")
    # Other nodes write here too: what was listed a moment ago says nothing about now.
    options = {"use_listings_cache": False} if protocol in EXTRAS else {}
    try:
        fsspec.get_filesystem_class(protocol)
    except ImportError as error:
        wish = f" (uv sync --extra {EXTRAS[protocol]})" if protocol in EXTRAS else ""
        raise ValueError(f"{text}: {error}{wish}") from None
    return UPath(text.rstrip("/"), protocol=None, **options)


def is_local(place: Location) -> bool:
    """Whether a place is on a file system that this machine mounts."""
    return isinstance(place, Path)


@contextlib.contextmanager
def reaching(place: Location) -> Iterator[None]:
    """Turns what the block meets when storage is away into a StorageError that names the place."""
    try:
        yield
    except _errors() as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or " ".join(str(error).split())
        raise StorageError(f"{place}: the storage cannot be used ({reason})") from error


def is_there(file: Location) -> bool:
    """Whether a file exists. StorageError where that cannot be known: fsspec's own `is_file` would say no."""
    if isinstance(file, Path):
        return file.is_file()
    try:
        with reaching(file):
            return bool(file.fs.info(file.path)["type"] == "file")
    except StorageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return False
        raise


def make_folder(folder: Location) -> None:
    """Make a folder and those above it; an object store has none to make."""
    if isinstance(folder, Path):
        folder.mkdir(parents=True, exist_ok=True)


def folders_in(folder: Location) -> list[Location]:
    """What lies directly in a folder, in order; nothing where it does not exist."""
    if isinstance(folder, Path):
        return sorted(folder.iterdir()) if folder.is_dir() else []
    with reaching(folder):
        names = {entry.rstrip("/").rsplit("/", 1)[-1] for entry in _listed(folder)}
    return [folder / name for name in sorted(names)]


def write_text(file: Location, content: str) -> None:
    """Write a whole file in the place of an older one, in a folder that exists. StorageError where it cannot."""
    with reaching(file):
        if isinstance(file, Path):
            write_bytes(file, content.encode())
        else:
            file.write_text(content, encoding="utf-8")


def write_bytes(file: Path, content: bytes) -> None:
    """Write a whole file of this machine in the place of an older one, in a folder that exists."""
    with whole_file(file) as output:
        output.write(content)


@contextlib.contextmanager
def whole_file(file: Path, *, is_synced: bool = False) -> Iterator[IO[bytes]]:
    """A file to write that takes the place of `file` once everything is written; nothing of it is left where that fails.

    Its name begins with a dot meanwhile. `is_synced` waits until it is on the disk, to outlive a power cut. A full disk is told
    by the file's name, which an error of writing to an open file leaves out.
    """
    aside = _aside(file)
    try:
        with aside.open("wb") as output:
            yield output
            if is_synced:
                output.flush()
                os.fsync(output.fileno())
        os.replace(aside, file)
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, str(file)) from None
    finally:
        aside.unlink(missing_ok=True)


@contextlib.contextmanager
def whole_folder(folder: Location, *, last: str = "") -> Iterator[Path]:
    """A new folder on this machine to write into, which takes the place of `folder` once everything is written.

    A store has no renaming: there the file `last` is sent when all others are there.
    """
    if not isinstance(folder, Path):
        with _sent(folder, last) as local:
            yield local
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside, old = _aside(folder), _aside(folder)
    aside.mkdir()
    try:
        yield aside
        if folder.exists():
            os.replace(folder, old)
        os.replace(aside, folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def _aside(path: Path) -> Path:
    """A name beside a path that no other process or thread writes to."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")


def put(source: Path, target: UPath) -> None:
    """Copy a local file into a store, where it appears when it is whole."""
    with reaching(target):
        target.fs.put_file(str(source), target.path)


def get(source: UPath, target: Path) -> None:
    """Copy a file of a store to this machine. StorageError where it is absent."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with reaching(source):
        source.fs.get_file(source.path, str(target))


def put_folder(source: Path, target: UPath, *, last: str = "") -> None:
    """Copy a local folder's files into a store; `last` is the one that says that the folder is whole."""
    names = sorted(path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file())
    for name in sorted(names, key=lambda name: name == last):
        put(source / name, target / name)


@contextlib.contextmanager
def fetched(folder: Location) -> Iterator[Path]:
    """A folder as one on this machine: itself, or a temporary copy of what a store holds of it."""
    if isinstance(folder, Path):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="ray_atr-") as scratch:
        local = Path(scratch) / folder.name
        local.mkdir()
        with reaching(folder):
            names = folder.fs.find(folder.path)
        inside = len(folder.fs._strip_protocol(folder.path).rstrip("/")) + 1
        for name in names:
            get(folder / name[inside:], local / name[inside:])
        yield local


@contextlib.contextmanager
def sent(folder: Location) -> Iterator[Path]:
    """A folder on this machine to write into: itself, or a temporary one that is copied into the store at the end."""
    if isinstance(folder, Path):
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    with _sent(folder) as local:
        yield local


@contextlib.contextmanager
def _sent(folder: UPath, last: str = "") -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ray_atr-") as scratch:
        local = Path(scratch) / folder.name
        local.mkdir()
        yield local
        put_folder(local, folder, last=last)


def _listed(folder: UPath) -> list[str]:
    try:
        return list(folder.fs.ls(folder.path, detail=False))
    except FileNotFoundError:
        return []


def _errors() -> tuple[type[Exception], ...]:
    """What the file systems in use raise: not all of it is an OSError, and a module that is not loaded raises nothing."""
    foreign = (("botocore.exceptions", "BotoCoreError"), ("aiohttp", "ClientError"), ("gcsfs.retry", "HttpError"))
    return (OSError, *(getattr(sys.modules[module], name) for module, name in foreign if module in sys.modules))
