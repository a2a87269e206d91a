"""Where a file is: `runs/x`, `s3://bucket/runs/x`, `gs://`, `memory://`.

A local location is a `Path`, any other a `UPath`, which has the same methods, so that code which reads and joins paths need
not distinguish them. The same calls list, read in parts, write atomically, rename and remove files in either.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, TypeAlias, TypeGuard, TypeVar

import fsspec
from fsspec.implementations.local import LocalFileSystem
from upath import UPath

from ray_atr.common.atomic import REFUSALS, atomic_file, disk_errors
from ray_atr.common.redaction import WITHOUT_SECRETS, redact
from ray_atr.common.settings import installing, local_path, refuse

Location: TypeAlias = Path | UPath
Result = TypeVar("Result")

logger = logging.getLogger(__name__)

EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
"""Protocol -> the extra of this package that brings its file system."""
MAX_NAME_BYTES = 200
"""A file system allows 255; the name of a temporary file is longer than that of the file."""
PATIENCE_SECONDS = 120.0
"""How long requests to a store that has answered before are repeated when it does not answer."""
ANSWERS = (FileNotFoundError, FileExistsError, PermissionError, NotADirectoryError, IsADirectoryError)
"""Errors of a store that works: trying again would give the same."""
_answered: set[str] = set()
"""The stores (protocol and bucket) that have answered this process."""


class StorageError(ConnectionError):
    """A location that cannot be reached or written."""


def locate(place: str | Location, *, keeps_links: bool = False) -> Location:
    """The location of a local name, made absolute, or of a URL. ValueError for an unsupported kind of URL, and for one with a
    user, password or key, because files that name it would hold them.

    Links are resolved, so that a run has one name; with `keeps_links` it keeps the user's name.
    """
    text = str(place)
    if (local := local_path(text)) is not None:
        return Path(os.path.abspath(local)) if keeps_links else local.resolve()
    if not isinstance(place, str):
        return place
    if redact(text) != text:
        raise ValueError(f"{redact(text)}: allowed {WITHOUT_SECRETS}")
    protocol, _, name = text.partition("://")
    if protocol not in fsspec.available_protocols():
        schemes = "a local path, file://, s3://, gs://"
        raise ValueError(f"{text}: unknown kind of path {protocol}://; allowed {schemes}")
    # Without a name after the scheme, as of an unset variable, the URL would be taken for a folder of this machine.
    if protocol in EXTRAS and not name.partition("/")[0]:
        raise ValueError(f"{text}: no bucket; allowed {protocol}://BUCKET/FOLDER")
    if not name.strip("/"):
        raise ValueError(f"{text}: no path; allowed {protocol}://FOLDER")
    # Other nodes write too, so that a cached listing may be outdated.
    options = {"use_listings_cache": False} if protocol in EXTRAS else {}
    try:
        fsspec.get_filesystem_class(protocol)
    except ImportError as error:
        wish = f" (with the extra: {installing(EXTRAS[protocol])})" if protocol in EXTRAS else ""
        raise ValueError(f"{text}: {error}{wish}") from None
    return UPath(text.rstrip("/"), protocol=None, **options)


def is_local(place: object) -> TypeGuard[Path]:
    """Whether a place is on a file system that this machine mounts."""
    return isinstance(place, Path)


def safe_name(name: object, path: str) -> str:
    """A name from outside that becomes part of a path. ValueError, naming `path`, unless it stays in its folder."""
    is_safe = (
        isinstance(name, str)
        and re.fullmatch(r"[^./\\\x00-\x1f\x7f][^/\\\x00-\x1f\x7f]*", name) is not None
        and len(name.encode("utf-8", "surrogatepass")) <= MAX_NAME_BYTES
    )
    if not is_safe:
        raise refuse(path, name, f"a name without / or \\ that begins with no dot, of at most {MAX_NAME_BYTES} bytes")
    return str(name)


@contextlib.contextmanager
def storage_errors(place: Location) -> Iterator[None]:
    """Turns errors of an unavailable storage into a StorageError that names the location."""
    try:
        yield
    except _errors() as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or " ".join(str(error).split())
        if (shown := redact(str(place))) != str(place):
            reason = type(error).__name__  # its text may quote the URL's user and password without the rest of the URL
        raise StorageError(redact(f"{shown}: the storage cannot be used ({reason})")) from error


def disk_refusal(error: StorageError) -> OSError | None:
    """The error behind it if this machine's disk refused a write. One of a store may have the same number, as s3fs raises answers
    that it does not know, such as that of a MinIO that starts, but has a cause.
    """
    refused = error.__cause__
    if isinstance(refused, OSError) and refused.errno in REFUSALS and refused.__cause__ is None:
        return refused
    return None


def with_retries(place: Location, action: Callable[[], Result]) -> Result:
    """The result of `action` at a location. StorageError, as of `storage_errors`, if the storage is unavailable.

    If a store has answered before, the action is repeated for `PATIENCE_SECONDS`, with longer and longer pauses, so that a run
    survives a restart of the store. One that never answered more likely has a wrong name and fails at once.
    """
    deadline, pause = time.monotonic() + PATIENCE_SECONDS, 0.5
    store = "/".join(str(place).split("/")[:3])
    while True:
        try:
            with storage_errors(place):
                result = action()
        except StorageError as error:
            if isinstance(error.__cause__, ANSWERS):
                _answered.add(store)
                raise
            if disk_refusal(error):
                raise
            if isinstance(place, Path) or store not in _answered or time.monotonic() + pause > deadline:
                raise
            if pause == 0.5:
                logger.warning("%s; retrying for %.0f s", error, PATIENCE_SECONDS)
        else:
            _answered.add(store)
            return result
        time.sleep(pause)
        pause = min(2 * pause, 10.0)


def file_exists(file: Location) -> bool:
    """Whether a file exists. StorageError if that cannot be known: fsspec's own `is_file` would say no."""
    if isinstance(file, Path):
        return file.is_file()
    try:
        return with_retries(file, lambda: bool(file.fs.info(file.path)["type"] == "file"))
    except StorageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return False
        raise


def make_folder(folder: Location) -> None:
    """Make a folder and those above it; an object store has none to make."""
    if isinstance(folder, Path):
        folder.mkdir(parents=True, exist_ok=True)


def names_in(folder: Location) -> list[str]:
    """The names of files and folders directly in a folder, in order, with hidden ones; none if it does not exist."""
    if isinstance(folder, Path):
        return sorted(os.listdir(folder)) if folder.is_dir() else []

    def listed() -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return list(folder.fs.ls(folder.path, detail=False))
        return []

    return sorted({entry.rstrip("/").rsplit("/", 1)[-1] for entry in with_retries(folder, listed)})


def entries_in(folder: Location) -> list[Location]:
    """The files and folders directly in a folder, in order, without hidden ones; none if it does not exist."""
    return [folder / name for name in names_in(folder) if not name.startswith(".")]


def require_writable(folder: Location) -> None:
    """PermissionError or NotADirectoryError if nothing can be created in a local folder, which need not exist."""
    if not is_local(folder):
        return
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise NotADirectoryError(20, "is a file, not a folder", str(folder))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(13, "cannot be written", str(folder))


def require_replaceable(folder: Location) -> None:
    """PermissionError or NotADirectoryError unless `atomic_folder` can make or replace a local folder: it renames another one."""
    for needed in (folder, folder.parent):
        require_writable(needed)


def require_new(place: str | Location, path: str) -> Path:
    """The local folder at a place, for `atomic_folder` to make, checked before the work. ValueError, naming `path`, unless it
    is new or empty; PermissionError or NotADirectoryError if it cannot be made.
    """
    folder = locate(place)
    if not is_local(folder) or names_in(folder):
        raise refuse(path, str(place), "a new or empty folder of this machine")
    require_replaceable(folder)
    return folder


def _errors() -> tuple[type[Exception], ...]:
    """The errors that the file systems in use raise, which are not all OSErrors; only loaded modules can raise any."""
    foreign = (("botocore.exceptions", "BotoCoreError"), ("aiohttp", "ClientError"), ("gcsfs.retry", "HttpError"))
    return (OSError, *(getattr(sys.modules[module], name) for module, name in foreign if module in sys.modules))


def files_below(folder: Location) -> list[str]:
    """The names of all files below a folder, relative to it, hidden ones too. Links are followed, but not one back to a folder
    that it is in. ValueError if a local folder is none; a folder that a store lacks has no files.
    """
    if isinstance(folder, Path):
        if not folder.is_dir():
            is_file = "a file; allowed the folder that it is in" if folder.is_file() else "no such folder"
            raise ValueError(f"{folder}: {is_file}")
        root, paths = str(folder), list[str]()
        for parent, folders, names in os.walk(root, followlinks=True):
            folders[:] = [name for name in folders if not _leads_back(Path(parent, name), folder)]
            paths += [os.path.join(parent, name) for name in names]
    else:
        root = folder.path.rstrip("/")
        paths = with_retries(folder, lambda: list(folder.fs.find(root)))
    above = root.strip("/") + "/"
    return sorted(path.strip("/").removeprefix(above) for path in paths)


def read_ranges(files: Sequence[Location], starts: Sequence[int], ends: Sequence[int]) -> list[bytes]:
    """Parts of files of one store, given by start and end byte, requested at the same time, with retries."""
    if not files:
        return []
    system: Any = LocalFileSystem() if isinstance(files[0], Path) else files[0].fs
    paths = [str(file) if isinstance(file, Path) else file.path for file in files]
    return with_retries(files[0], lambda: list(system.cat_ranges(paths, list(starts), list(ends), on_error="raise")))


def changed_at(file: Location) -> int:
    """When a file was last written, in nanoseconds since 1970; 0 in a store, which would have to be asked."""
    return file.stat().st_mtime_ns if isinstance(file, Path) else 0


def opened(file: Location) -> IO[bytes]:
    """A file to read. A store's file is read with retries; if the store stays unavailable, its reader gets a StorageError."""
    return file.open("rb") if isinstance(file, Path) else io.BufferedReader(_StoredFile(file))


class _StoredFile(io.RawIOBase):
    def __init__(self, file: UPath) -> None:
        self._place, self._file = file, with_retries(file, lambda: file.open("rb"))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return int(self._file.seek(offset, whence))

    def readinto(self, buffer: Any, /) -> int:
        content = with_retries(self._place, lambda: self._file.read(len(buffer)))
        buffer[: len(content)] = content
        return len(content)


@contextlib.contextmanager
def complete_file(file: Location) -> Iterator[IO[bytes]]:
    """A file to write that appears under its name only when it is complete; its folder is made if needed."""
    if isinstance(file, Path):
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(file) as output:
            yield output
    else:
        # Sent when it is complete: a store's own open file becomes an object when it is closed, after an error too.
        with tempfile.NamedTemporaryFile() as output, disk_errors(Path(output.name)):
            yield output
            output.flush()
            with_retries(file, lambda: file.fs.put_file(output.name, file.path))


def rename(file: Location, new: Location) -> None:
    """Rename a file, replacing an older one of the new name."""
    if isinstance(file, Path):
        os.replace(file, str(new))
    else:
        with_retries(file, lambda: file.fs.copy(file.path, file.fs._strip_protocol(str(new))))
        remove_all(file)


def remove_all(place: Location) -> None:
    """Remove a file, or a folder and all in it, if it is there."""
    if isinstance(place, Path):
        if place.is_dir():
            shutil.rmtree(place, ignore_errors=True)
        else:
            place.unlink(missing_ok=True)
        return

    def removed() -> None:
        with contextlib.suppress(FileNotFoundError):
            place.fs.rm(place.path, recursive=True)

    with_retries(place, removed)


def _leads_back(folder: Path, root: Path) -> bool:
    """Whether a folder below a root is a link to one of its parents."""
    if not folder.is_symlink():
        return False
    target = folder.resolve()
    return any(above.resolve().is_relative_to(target) for above in folder.parents if above.is_relative_to(root))
