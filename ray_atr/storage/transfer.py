"""Files and whole folders between this machine and a store: the same calls for either."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ray_atr.storage.places import Location, persistently
from ray_atr.storage.whole import files_aside, new_folder

if TYPE_CHECKING:
    from upath import UPath


def put(source: Path, target: UPath) -> None:
    """Copy a local file into a store, where it appears when it is whole."""
    persistently(target, lambda: target.fs.put_file(str(source), target.path))


def get(source: UPath, target: Path) -> None:
    """Copy a file of a store to this machine. StorageError if it is absent."""
    target.parent.mkdir(parents=True, exist_ok=True)
    persistently(source, lambda: source.fs.get_file(source.path, str(target)))


def put_folder(source: Path, target: UPath, *, last: str = "") -> None:
    """Copy a local folder's files into a store; `last` is the one that says that the folder is whole."""
    names = sorted(path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file())
    for name in sorted(names, key=lambda name: name == last):
        put(source / name, target / name)


def whole_folder(folder: Location, *, last: str = "", is_synced: bool = False) -> AbstractContextManager[Path]:
    """A new folder on this machine to write into, which takes the place of `folder` once everything is written.

    A store has no renaming: there the file `last` is sent when all others are there.
    """
    return new_folder(folder, is_synced=is_synced) if isinstance(folder, Path) else _sent(folder, last)


@contextmanager
def fetched(folder: Location) -> Iterator[Path]:
    """A folder as one on this machine: itself, or a temporary copy of what a store holds of it, hidden names left out."""
    if isinstance(folder, Path):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="ray_atr-") as scratch:
        local = Path(scratch) / folder.name
        local.mkdir()
        names = persistently(folder, lambda: folder.fs.find(folder.path))
        inside = len(folder.fs._strip_protocol(folder.path).rstrip("/")) + 1
        for name in (name[inside:] for name in names):
            # Any text is a name in a store, `..` and one that begins with a slash too.
            if all(part and not part.startswith(".") for part in name.split("/")):
                get(folder / name, local / name)
        yield local


def sent(folder: Location) -> AbstractContextManager[Path]:
    """An empty folder on this machine to write into, whose files take their places in `folder` at the end, each of them whole.

    What `folder` holds besides stays.
    """
    return files_aside(folder) if isinstance(folder, Path) else _sent(folder)


@contextmanager
def _sent(folder: UPath, last: str = "") -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ray_atr-") as scratch:
        local = Path(scratch) / folder.name
        local.mkdir()
        yield local
        put_folder(local, folder, last=last)
