"""A trial's files on the node that trains it, and their copy in an object store at each checkpoint.

    checkpoint.json    the files of the last checkpoint: name -> SHA-256; written last, it alone says what is whole
    objects/<sha256>   their contents, each sent once
    best/              the retriever of the best epoch under its own names, when training has ended

If it stops between two objects the previous checkpoint remains, and whichever node resumes fetches that one.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ray_atr.storage.places import Location, StorageError, entries_in, is_there, persistently, safe_name
from ray_atr.storage.records import read_text, write_text
from ray_atr.storage.transfer import get, put, put_folder

if TYPE_CHECKING:
    from upath import UPath

CHECKPOINT_FILE = "checkpoint.json"


@dataclass
class Mirror:
    """The folder of a trial on this node and its copy in a store. Only the trial's first worker puts."""

    local: Path
    remote: UPath
    _hashes: dict[Path, tuple[int, int, str]] = field(default_factory=dict)
    """File -> size, time of change and SHA-256 when it was last read."""

    def fetch(self, folder: str = "") -> None:
        """Bring the last checkpoint's files (those below `folder`) to this node; nothing if there is none yet.

        StorageError if one of them is gone or is not what the checkpoint names; ValueError for a name that leaves the folder.
        """
        for name, digest in self._held().items():
            if not name.startswith(folder):
                continue
            target = self.local / name
            get(self._object(digest), target)
            if self._hash(target) != digest:
                raise StorageError(f"{self._object(digest)}: not the file that {CHECKPOINT_FILE} names as {name}")

    def put(self) -> None:
        """Copy what has changed since the last checkpoint, then its list, then remove what no list names."""
        held = self._held()
        files = dict(self._present())
        for name, digest in files.items():
            if digest not in held.values():
                put(self.local / name, self._object(digest))
        write_text(self.remote / CHECKPOINT_FILE, json.dumps({"files": files}, indent=1))
        kept = set(files.values())
        for stored in entries_in(self.remote / "objects"):
            if stored.name not in kept:
                persistently(stored, partial(stored.unlink, missing_ok=True))

    def share(self, folder: str, *, is_first: bool) -> None:
        """Give a folder of the last checkpoint to every worker; the first puts it under its own name too, for readers."""
        if is_first:
            put_folder(self.local / folder, self.remote / folder)
        else:
            self.fetch(f"{folder}/")

    def _held(self) -> dict[str, str]:
        path = self.remote / CHECKPOINT_FILE
        if not is_there(path):
            return {}
        held: dict[str, str] = json.loads(read_text(path))["files"]
        # They become paths on this node.
        for name, digest in held.items():
            for part in (*name.split("/"), digest):
                safe_name(part, f"{path}: files")
        return held

    def _object(self, digest: str) -> UPath:
        return self.remote / "objects" / digest

    def _present(self) -> Iterator[tuple[str, str]]:
        """Names and hashes of what has its final name: what is being written aside begins with a dot."""
        for path in sorted(self.local.rglob("*")):
            name = path.relative_to(self.local)
            if any(part.startswith(".") for part in name.parts) or not path.is_file():
                continue
            # The knowledge base drops a version that is too old whenever a new one is done.
            with contextlib.suppress(FileNotFoundError):
                yield str(name), self._hash(path)

    def _hash(self, path: Path) -> str:
        stat = path.stat()
        size, changed, digest = self._hashes.get(path, (-1, -1, ""))
        if (size, changed) != (stat.st_size, stat.st_mtime_ns):
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            self._hashes[path] = (stat.st_size, stat.st_mtime_ns, digest)
        return digest


@contextlib.contextmanager
def on_this_node(folder: Location) -> Iterator[tuple[Path, Mirror | None]]:
    """Where this node keeps a trial's files: its own folder, or a temporary one and the mirror of it in the store.

    The temporary folder's path ends in the same three names (run, `trials`, trial).
    """
    if isinstance(folder, Path):
        yield folder, None
        return
    with tempfile.TemporaryDirectory(prefix="ray_atr-") as scratch:
        local = Path(scratch).joinpath(*folder.parts[-3:])
        local.mkdir(parents=True)
        yield local, Mirror(local, folder)
