"""Files and folders on this machine that appear only when complete: written as `.name.<12 hex digits>`, then renamed.

The temporary file of a killed writer is removed by the next writer of the same name. A live writer holds a lock on its
temporary file, so that two writers never remove each other's.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import IO

PRIVATE = 0o600
"""The mode of files with a library's error messages, which may hold a key that `redact` does not recognise."""
REFUSALS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
"""Error numbers with which a disk refuses a write."""


@contextlib.contextmanager
def atomic_file(file: Path, *, is_synced: bool = False, is_private: bool = False) -> Iterator[IO[bytes]]:
    """A file to write that replaces `file` once everything is written; if that fails, nothing of it remains.

    `is_synced` waits until it and its name are on the disk, to outlive a power cut. An error of the disk, full or failing,
    names the file, which an error of writing to an open file leaves out.
    """
    remove_leftovers(file)
    aside, opened = _open_aside(file, _open_private if is_private else None)
    try:
        with opened as output:
            yield output
            output.flush()
            if is_synced:
                os.fsync(output.fileno())
            os.replace(aside, file)
        if is_synced:
            sync_folder(file.parent)
    except OSError as error:
        # An error of the rename names the temporary file, which is about to be removed. A connection's has no name, and no file.
        is_named = error.filename is not None and error.filename2 is None
        if error.errno is None or is_named or isinstance(error, ConnectionError | TimeoutError):
            raise
        raise OSError(error.errno, error.strerror, str(file)) from None
    finally:
        aside.unlink(missing_ok=True)


def readable_as_its_folder(file: Path) -> None:
    """Give a file the permissions to read and write that its folder has, as any new file.

    For libraries that rename a temporary file: that of safetensors can be read by its owner only.
    """
    # A share whose files belong to another user, as of NFS or SMB, refuses this: there the share decides who may read.
    with contextlib.suppress(PermissionError):
        file.chmod(file.stat().st_mode | file.parent.stat().st_mode & 0o666)


@contextlib.contextmanager
def disk_errors(file: Path) -> Iterator[None]:
    """Raises a library's error about a disk that refuses a write as the original OSError, naming the file.

    torch raises a RuntimeError about positions while it handles the OSError; safetensors has only its number in the message,
    FAISS only its text; shutil and a rename name another file, and writing to an open file or syncing it names none. torch
    does the same to a Ctrl-C in the middle of a write, which is raised as what it was too.
    """
    try:
        yield
    except Exception as error:
        stop = error.__context__
        if isinstance(error, RuntimeError) and stop is not None and not isinstance(stop, Exception):
            raise stop from None
        number = _refusal_behind(error)
        if number is None:
            raise
        raise OSError(number, os.strerror(number), str(file)) from None


def _refusal_behind(error: Exception) -> int | None:
    if isinstance(error, shutil.Error):
        # The error of a copied folder lists source, target and message of each file that failed.
        listed = re.search(r"\[Errno (\d+)\]", str(error))
        return int(listed[1]) if listed else None
    if isinstance(error, OSError) and (error.filename is None or error.filename2 is not None):
        return error.errno
    if isinstance(error, RuntimeError) and isinstance(error.__context__, OSError):
        return error.__context__.errno
    numbered = re.search(r"\(os error (\d+)\)", str(error))
    if numbered:
        return int(numbered[1])
    refused = re.search(r"write error in .*\((.+)\)$", str(error))
    return next((number for number in REFUSALS if refused and os.strerror(number) == refused[1]), None)


@contextlib.contextmanager
def new_folder(folder: Path, *, is_synced: bool = False) -> Iterator[Path]:
    """A new folder to write into, which takes the place of `folder` once everything is written."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    with _folder_aside(folder) as aside:
        yield aside
        if is_synced:
            for path in (*aside.rglob("*"), aside):
                sync_folder(path)
        older = _aside(folder)
        with contextlib.suppress(FileNotFoundError):
            os.replace(folder, older)
        os.replace(aside, folder)
        if is_synced:
            sync_folder(folder.parent)
        # Last, since it takes long: between the two renames there is none.
        shutil.rmtree(older, ignore_errors=True)


@contextlib.contextmanager
def files_aside(folder: Path) -> Iterator[Path]:
    """A new folder to write into, whose files then replace those of the same name in `folder`, one after the other."""
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    with _folder_aside(folder) as aside:
        yield aside
        for file in sorted(path for path in aside.rglob("*") if path.is_file()):
            target = folder / file.relative_to(aside)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(file, target)


def remove_folder(folder: Path) -> None:
    """Remove a folder, if there is one, so that it is complete or gone at any moment, even if the process is killed."""
    aside = _aside(folder)
    with contextlib.suppress(FileNotFoundError):
        os.replace(folder, aside)
        shutil.rmtree(aside, ignore_errors=True)


def remove_leftovers(path: Path) -> None:
    """Remove temporary files that dead writers of `path` left next to it."""
    start = f".{path.name}."
    with contextlib.suppress(FileNotFoundError), os.scandir(path.parent) as entries:
        remove_leftovers_among(Path(entry.path) for entry in entries if entry.name.startswith(start))


def remove_leftovers_below(folder: Path) -> None:
    """Remove temporary files that dead writers left anywhere below a folder."""
    remove_leftovers_among(entry for entry in entries_below(folder) if entry.name.startswith("."))


def entries_below(folder: Path) -> Iterator[Path]:
    """Everything below a folder, which another process may remove meanwhile: `rglob` would fail then."""
    return (Path(parent, name) for parent, folders, files in os.walk(folder) for name in (*folders, *files))


def remove_leftovers_among(paths: Iterable[Path]) -> None:
    """Remove temporary files that dead writers of these files and folders left; others stay."""
    # Sorted, so that a database is removed before its journal.
    for hidden in sorted(paths):
        name = re.fullmatch(r"(\..+\.[0-9a-f]{12})(-journal|-wal|-shm)?", hidden.name)
        if name and (name[2] is None or not hidden.with_name(name[1]).exists()):
            _remove_if_dead(hidden)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder, or the content of a file, are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _aside(path: Path) -> Path:
    """A name next to a path that no other process or thread writes to."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}")


# From the start, as a share whose files belong to another user refuses to change a mode.
_open_private = partial(os.open, mode=PRIVATE)


def _open_aside(file: Path, opener: Callable[[str, int], int] | None) -> tuple[Path, IO[bytes]]:
    while True:
        aside = _aside(file)
        try:
            output = open(aside, "w+b", opener=opener)  # noqa: SIM115 the caller closes it
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(file)) from None
        _claim(output.fileno())
        # Between the two calls another writer may have removed it as a dead writer's.
        if aside.exists():
            return aside, output
        output.close()


@contextlib.contextmanager
def _folder_aside(folder: Path) -> Iterator[Path]:
    """A new folder next to `folder`, removed at the end. An error of the disk names the file below `folder` that would have
    been written, not the temporary one.
    """
    try:
        while True:
            aside = _aside(folder)
            aside.mkdir()
            with contextlib.suppress(FileNotFoundError):
                descriptor = os.open(aside, os.O_RDONLY)
                _claim(descriptor)
                if aside.exists():
                    break
                os.close(descriptor)
        try:
            yield aside
        finally:
            shutil.rmtree(aside, ignore_errors=True)
            os.close(descriptor)
    except OSError as error:
        named = str(error.filename or aside) if error.filename2 is None else str(aside)
        if not named.startswith(str(aside)) or (error.filename is None and error.errno not in REFUSALS):
            raise
        raise OSError(error.errno, error.strerror, named.replace(str(aside), str(folder))) from None


def _claim(descriptor: int) -> None:
    """Lock this file or folder as that of a live process; skipped on a file system without locks."""
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _remove_if_dead(leftover: Path) -> None:
    try:
        descriptor = os.open(leftover, os.O_RDONLY)
    except OSError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return
    else:
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)
    finally:
        os.close(descriptor)
