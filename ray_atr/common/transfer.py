"""Copying files and folders between this machine and a store, with the same calls for both; the sync of a trial's folder."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ray_atr.common.atomic import files_aside, new_folder
from ray_atr.common.digests import read_text, write_text
from ray_atr.common.locations import (
    Location,
    StorageError,
    disk_refusal,
    entries_in,
    file_exists,
    safe_name,
    with_retries,
)

if TYPE_CHECKING:
    from upath import UPath

CHECKPOINT_FILE = "checkpoint.json"


def put(source: Path, target: Location) -> None:
    """Copy a local file to another place; in a store it appears when it is complete."""
    if isinstance(target, Path):
        target.parent.mkdir(parents=True, exist_ok=True)
        # Without mode and times, which a share whose files belong to another user refuses to set.
        shutil.copyfile(source, target)
        return
    with_retries(target, lambda: target.fs.put_file(str(source), target.path))


def get(source: UPath, target: Path) -> None:
    """Copy a file of a store to this machine. StorageError if it is absent; OSError if this machine's disk refuses it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with_retries(source, lambda: source.fs.get_file(source.path, str(target)))
    except StorageError as error:
        if refused := disk_refusal(error):
            raise OSError(refused.errno, refused.strerror, str(target)) from None
        raise


def put_folder(source: Path, target: Location, *, last: str = "") -> None:
    """Copy a local folder's files to another place; in a store `last` is copied last, as the sign that the folder is complete."""
    names = sorted(path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file())
    for name in sorted(names, key=lambda name: name == last):
        put(source / name, target / name)


def atomic_folder(folder: Location, *, last: str = "", is_synced: bool = False) -> AbstractContextManager[Path]:
    """A new folder on this machine to write into, which replaces `folder` once everything is written.

    A store cannot rename: the file `last` is sent after all others.
    """
    return new_folder(folder, is_synced=is_synced) if isinstance(folder, Path) else _sent(folder, last)


@contextmanager
def fetched(folder: Location) -> Iterator[Path]:
    """A local form of a folder: itself, or a temporary copy of a folder in a store, without hidden files."""
    if isinstance(folder, Path):
        yield folder
        return
    with _scratch(folder.name) as local:
        names = with_retries(folder, lambda: folder.fs.find(folder.path))
        inside = len(folder.fs._strip_protocol(folder.path).rstrip("/")) + 1
        for name in (name[inside:] for name in names):
            # A store allows any name, also `..` and absolute paths.
            if all(part and not part.startswith(".") for part in name.split("/")):
                get(folder / name, local / name)
        yield local


def sent(folder: Location) -> AbstractContextManager[Path]:
    """An empty local folder whose files are moved to `folder` at the end, each atomically; other files of `folder` stay."""
    return files_aside(folder) if isinstance(folder, Path) else _sent(folder)


@contextmanager
def _sent(folder: UPath, last: str = "") -> Iterator[Path]:
    with _scratch(folder.name) as local:
        yield local
        put_folder(local, folder, last=last)


@contextmanager
def _scratch(*names: str) -> Iterator[Path]:
    """A new temporary folder whose path ends in these names."""
    with tempfile.TemporaryDirectory(prefix="ray_atr-") as scratch:
        local = Path(scratch).joinpath(*names)
        local.mkdir(parents=True)
        yield local


@dataclass
class CheckpointSync:
    """The folder of a trial on the node that trains it, and its copy in a store. Only the trial's first worker
    writes the list.

        checkpoint.json    the files of the last checkpoint: name -> SHA-256; written last; only listed files count
        objects/<sha256>   their contents, each sent once
        best/              the retriever of the best epoch under its own names, when training has ended

    If it stops between two objects the previous checkpoint remains, and whichever node resumes fetches that one.
    """

    local: Path
    remote: UPath
    _hashes: dict[Path, tuple[int, int, str]] = field(default_factory=dict)
    """File -> size, time of change and SHA-256 when it was last read."""

    def fetch(self, folder: str = "") -> None:
        """Copy the last checkpoint's files (those below `folder`) to this node; does nothing if there is none yet.

        StorageError if one of them is gone or has another digest than the list; ValueError for a name outside the folder.
        """
        for name, digest in self._held().items():
            if not name.startswith(folder):
                continue
            target = self.local / name
            get(self._object(digest), target)
            if self._hash(target) != digest:
                raise StorageError(f"{self._object(digest)}: not the file that {CHECKPOINT_FILE} names as {name}")

    def put(self, others: Mapping[str, str] | None = None) -> None:
        """Copy the files that changed since the last checkpoint, then the list, then remove files that are not in it.

        `others` are files that other workers have sent, name -> SHA-256.
        """
        files = self.send("")
        files |= others or {}
        write_text(self.remote / CHECKPOINT_FILE, json.dumps({"files": files}, indent=1))
        for stored in entries_in(self.remote / "objects"):
            if stored.name not in files.values():
                with_retries(stored, partial(stored.unlink, missing_ok=True))

    def send(self, folder: str) -> dict[str, str]:
        """Copy the files below `folder`, which the first worker's `put` then lists: name -> SHA-256."""
        sent = set(self._held().values())
        files = {name: digest for name, digest in self._present() if name.startswith(folder)}
        for name, digest in files.items():
            if digest not in sent:
                put(self.local / name, self._object(digest))
        return files

    def share(self, folder: str, *, is_first: bool) -> None:
        """The first worker copies a folder to the store under its own name; others fetch it from the last checkpoint."""
        if is_first:
            put_folder(self.local / folder, self.remote / folder)
        else:
            self.fetch(f"{folder}/")

    def _held(self) -> dict[str, str]:
        path = self.remote / CHECKPOINT_FILE
        if not file_exists(path):
            return {}
        files: dict[str, str] = json.loads(read_text(path))["files"]
        # The names become paths on this node.
        for name, digest in files.items():
            for part in (*name.split("/"), digest):
                safe_name(part, f"{path}: files")
        return files

    def _object(self, digest: str) -> UPath:
        return self.remote / "objects" / digest

    def _present(self) -> Iterator[tuple[str, str]]:
        """Names and hashes of complete files: names of temporary files begin with a dot."""
        for path in sorted(self.local.rglob("*")):
            name = path.relative_to(self.local)
            if any(part.startswith(".") for part in name.parts) or not path.is_file():
                continue
            # The knowledge base may remove an old version at any moment.
            with suppress(FileNotFoundError):
                yield str(name), self._hash(path)

    def _hash(self, path: Path) -> str:
        stat = path.stat()
        size, changed, digest = self._hashes.get(path, (-1, -1, ""))
        if (size, changed) != (stat.st_size, stat.st_mtime_ns):
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            self._hashes[path] = (stat.st_size, stat.st_mtime_ns, digest)
        return digest


@contextmanager
def on_this_node(folder: Location) -> Iterator[tuple[Path, CheckpointSync | None]]:
    """A trial's local folder, or a temporary one (its path ends in run, `trials`, trial) with its sync in the store."""
    if isinstance(folder, Path):
        yield folder, None
        return
    with _scratch(*folder.parts[-3:]) as local:
        yield local, CheckpointSync(local, folder)
