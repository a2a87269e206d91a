"""Where a file is: `runs/x`, `s3://bucket/runs/x`, `gs://`, `memory://`.

A local place is a `Path`, any other a `UPath`, which has the same methods, so that what reads and joins paths does not ask
which it is.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, Union

import fsspec

from ray_atr.redaction import redact
from ray_atr.settings import local_path, refuse

if TYPE_CHECKING:
    from upath import UPath

Location: TypeAlias = Union[Path, "UPath"]

EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
"""Protocol -> the extra of this package that brings its file system."""

MAX_NAME_BYTES = 200
"""A file system takes 255; what is written aside has a longer name than the file itself."""


class StorageError(ConnectionError):
    """A place that could be used before, or should be there, and cannot be reached or written."""


def locate(place: str | Location) -> Location:
    """The place of a local name, made absolute, or of a URL. ValueError for a kind of URL that nothing here can open."""
    text = str(place)
    local = local_path(text)
    if local is not None:
        return local.resolve()
    if not isinstance(place, str):
        return place
    from upath import UPath

    protocol = text.partition("://")[0]
    if protocol not in fsspec.available_protocols():
        raise ValueError(
            f"{redact(text)}: unknown kind of path {protocol}://; allowed a local path, file://, s3://, gs://"
        )
    # Other nodes write here too: what was listed a moment ago says nothing about now.
    options = {"use_listings_cache": False} if protocol in EXTRAS else {}
    try:
        fsspec.get_filesystem_class(protocol)
    except ImportError as error:
        wish = f" (uv sync --extra {EXTRAS[protocol]})" if protocol in EXTRAS else ""
        raise ValueError(f"{redact(text)}: {error}{wish}") from None
    return UPath(text.rstrip("/"), protocol=None, **options)


def is_local(place: Location) -> bool:
    """Whether a place is on a file system that this machine mounts."""
    return isinstance(place, Path)


def safe_name(name: object, path: str) -> str:
    """A name from outside that becomes part of a path: ValueError, naming `path`, unless it stays in its folder.

    Refused are separators, `..`, hidden names, control characters, and names too long for a file system.
    """
    is_safe = (
        isinstance(name, str)
        and re.fullmatch(r"[^./\\\x00-\x1f\x7f][^/\\\x00-\x1f\x7f]*", name) is not None
        and len(name.encode("utf-8", "surrogatepass")) <= MAX_NAME_BYTES
    )
    if not is_safe:
        raise refuse(path, name, f"a name without / or \\ that begins with no dot, of at most {MAX_NAME_BYTES} bytes")
    return str(name)


@contextlib.contextmanager
def reaching(place: Location) -> Iterator[None]:
    """Turns what the block meets when storage is away into a StorageError that names the place."""
    try:
        yield
    except _errors() as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or " ".join(str(error).split())
        raise StorageError(redact(f"{place}: the storage cannot be used ({reason})")) from error


def is_there(file: Location) -> bool:
    """Whether a file exists. StorageError if that cannot be known: fsspec's own `is_file` would say no."""
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
    """What is directly in a folder, in order, hidden names left out; nothing if it does not exist."""
    if isinstance(folder, Path):
        found = folder.iterdir() if folder.is_dir() else ()
        return sorted(path for path in found if not path.name.startswith("."))
    with reaching(folder):
        names = {entry.rstrip("/").rsplit("/", 1)[-1] for entry in _listed(folder)}
    return [folder / name for name in sorted(names) if not name.startswith(".")]


def _listed(folder: UPath) -> list[str]:
    try:
        return list(folder.fs.ls(folder.path, detail=False))
    except FileNotFoundError:
        return []


def _errors() -> tuple[type[Exception], ...]:
    """What the file systems in use raise: not all of it is an OSError, and a module that is not loaded raises nothing."""
    foreign = (("botocore.exceptions", "BotoCoreError"), ("aiohttp", "ClientError"), ("gcsfs.retry", "HttpError"))
    return (OSError, *(getattr(sys.modules[module], name) for module, name in foreign if module in sys.modules))
