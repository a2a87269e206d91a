"""A folder by the names in it, here or in a store: what data sets are read from and written into."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from fsspec.implementations.local import LocalFileSystem

from ray_atr.common.settings import local_path
from ray_atr.common.storage.atomic import atomic_file
from ray_atr.common.storage.locations import Location, StorageError, locate, storage_errors, with_retries


@dataclass(frozen=True)
class Folder:
    """A folder that need not exist. Names in it may have slashes; hidden ones count."""

    place: Location

    @property
    def is_local(self) -> bool:
        return isinstance(self.place, Path)

    @property
    def name(self) -> str:
        """As a user writes it: an absolute path, or a URL."""
        return str(self.place).rstrip("/")

    def file(self, name: str) -> str:
        """The whole name of a file in it, as a user writes it."""
        return f"{self.name}/{name}"

    def exists(self, name: str) -> bool:
        """Whether there is such a file or folder. StorageError if that cannot be known."""
        return self._is_there(self._inner(name))

    def names(self) -> list[str]:
        """The names of the files and folders directly inside; none if the folder does not exist."""
        with storage_errors(self.place):
            found = self._system.ls(self._root, detail=False) if self._is_there(self._root) else ()
        return sorted(entry.rstrip("/").rsplit("/", 1)[-1] for entry in found)

    def files(self) -> list[str]:
        """The names of all files below it, relative to it. ValueError if it is no folder.

        Links are followed, but not one back to a folder that it is in.
        """
        if self.is_local:
            if not os.path.isdir(self._root):
                raise ValueError(f"{self.name}: no such folder")
            found = []
            for parent, folders, names in os.walk(self._root, followlinks=True):
                folders[:] = [name for name in folders if not _leads_back(os.path.join(parent, name), self._root)]
                found += [os.path.join(parent, name) for name in names]
        else:
            with storage_errors(self.place):
                found = self._system.find(self._root)
        above = self._root.strip("/") + "/"
        return sorted(path.strip("/").removeprefix(above) for path in found)

    def open(self, name: str) -> IO[bytes]:
        return self._system.open(self._inner(name), "rb")

    def read(self, name: str) -> bytes:
        with self.open(name) as file:
            return file.read()

    def read_ranges(self, names: Sequence[str], starts: Sequence[int], ends: Sequence[int]) -> list[bytes]:
        """Parts of files, from a byte up to another; a store is asked for all at the same time, and again if it is away."""
        paths = [self._inner(name) for name in names]
        bounds = list(starts), list(ends)
        return with_retries(self.place, lambda: list(self._system.cat_ranges(paths, *bounds, on_error="raise")))

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        """A file to write that appears under its name only when it is whole."""
        self._system.makedirs(self._root, exist_ok=True)
        if self.is_local:
            with atomic_file(Path(self._inner(name))) as file:
                yield file
        else:
            # An object in a store appears when it is closed.
            with self._system.open(self._inner(name), "wb") as file:
                yield file

    def write(self, name: str, content: bytes) -> None:
        with self.writing(name) as file:
            file.write(content)

    def rename(self, name: str, new: str) -> None:
        self._system.mv(self._inner(name), self._inner(new))

    def remove(self, name: str) -> None:
        self._system.rm(self._inner(name))

    def remove_all(self) -> None:
        """Remove the folder and all in it, if it is there."""
        if self.is_local:
            shutil.rmtree(self._root, ignore_errors=True)
        elif self._is_there(self._root):
            self._system.rm(self._root, recursive=True)

    @cached_property
    def _system(self) -> Any:
        return LocalFileSystem() if isinstance(self.place, Path) else self.place.fs

    @property
    def _root(self) -> str:
        return str(self.place) if isinstance(self.place, Path) else self.place.path.rstrip("/")

    def _inner(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _is_there(self, path: str) -> bool:
        # fsspec's own `exists` says no if the store cannot be reached.
        try:
            with storage_errors(self.place):
                self._system.info(path)
        except StorageError as error:
            if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
                return False
            raise
        return True


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


def open_folder(path: str | Path) -> Folder:
    """The folder of a local path, made absolute with its links kept, or of a URL."""
    local = local_path(str(path))
    return Folder(locate(path) if local is None else Path(os.path.abspath(local)))
