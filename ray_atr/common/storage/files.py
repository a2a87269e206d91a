"""Files here or in a store, by the same calls: listed, read in parts, written whole, renamed, removed."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from fsspec.implementations.local import LocalFileSystem

from ray_atr.common.storage.atomic import atomic_file
from ray_atr.common.storage.locations import Location, storage_errors, with_retries


def files_below(folder: Location) -> list[str]:
    """The names of all files below a folder, relative to it, hidden ones too. ValueError if it is no folder.

    Links are followed, but not one back to a folder that it is in.
    """
    if isinstance(folder, Path):
        if not folder.is_dir():
            raise ValueError(f"{folder}: no such folder")
        root, found = str(folder), list[str]()
        for parent, folders, names in os.walk(root, followlinks=True):
            folders[:] = [name for name in folders if not _leads_back(os.path.join(parent, name), root)]
            found += [os.path.join(parent, name) for name in names]
    else:
        root = folder.path.rstrip("/")
        with storage_errors(folder):
            found = folder.fs.find(root)
    above = root.strip("/") + "/"
    return sorted(path.strip("/").removeprefix(above) for path in found)


def read_ranges(files: Sequence[Location], starts: Sequence[int], ends: Sequence[int]) -> list[bytes]:
    """Parts of files of one store, from a byte up to another, asked for all at the same time, and again if it is away."""
    if not files:
        return []
    system: Any = LocalFileSystem() if isinstance(files[0], Path) else files[0].fs
    paths = [str(file) if isinstance(file, Path) else file.path for file in files]
    return with_retries(files[0], lambda: list(system.cat_ranges(paths, list(starts), list(ends), on_error="raise")))


@contextlib.contextmanager
def whole_file(file: Location) -> Iterator[IO[bytes]]:
    """A file to write, of a folder that is made if need be, that appears under its name only when it is whole."""
    if isinstance(file, Path):
        file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(file) as output:
            yield output
    else:
        # An object in a store appears when it is closed.
        with file.fs.open(file.path, "wb") as output:
            yield output


def rename(file: Location, new: Location) -> None:
    """Give a file another name, where it takes the place of an older one."""
    if isinstance(file, Path):
        os.replace(file, str(new))
    else:
        file.fs.mv(file.path, file.fs._strip_protocol(str(new)))


def remove_all(folder: Location) -> None:
    """Remove a folder and all in it, if it is there."""
    if isinstance(folder, Path):
        shutil.rmtree(folder, ignore_errors=True)
    else:
        with contextlib.suppress(FileNotFoundError):
            folder.fs.rm(folder.path, recursive=True)


def _leads_back(folder: str, root: str) -> bool:
    """Whether a folder below a root is a link to one of those on the way to it, or to one above them."""
    if not os.path.islink(folder):
        return False
    target = os.path.join(os.path.realpath(folder), "")
    above = os.path.dirname(folder)
    while not os.path.join(os.path.realpath(above), "").startswith(target):
        if above == root or not above.startswith(root):
            return False
        above = os.path.dirname(above)
    return True
