"""A file of sealed JSON lines that grows by one line at a time; only the lines that are requested are parsed.

On a file system a line is appended and synced. If the process is killed, the last line may lack its end: it is not read, and
the next line replaces it. An object store cannot append: there all of the file is written again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ray_atr.common import digests
from ray_atr.common.atomic import disk_errors, sync_folder
from ray_atr.common.locations import Location, file_exists, storage_errors


def append_line(file: Location, row: Mapping[str, Any]) -> None:
    """Add a line to a file in a folder that exists, and make the file if it is not there. StorageError if that fails."""
    if not isinstance(file, Path):
        digests.write_lines(file, [*read_appended(file), row])
        return
    with storage_errors(file), disk_errors(file):
        is_new = not file.exists()
        with file.open("a+b") as opened:
            opened.seek(0)
            opened.truncate(opened.read().rfind(b"\n") + 1)
            opened.write((digests.seal(row) + "\n").encode())
            opened.flush()
            os.fsync(opened.fileno())
        if is_new:
            sync_folder(file.parent)


def read_appended(file: Location) -> list[dict[str, Any]]:
    """The lines of a file in order, without a last one that has no end; none if there is no file.

    ValueError names a line that is not an object or was changed.
    """
    return [digests.row_of(*line) for line in _whole_lines(file)]


def newest_lines(file: Location) -> Iterator[dict[str, Any]]:
    """The same lines, last one first; those after the last one requested are not parsed."""
    return (digests.row_of(*line) for line in reversed(_whole_lines(file)))


def _whole_lines(file: Location) -> list[tuple[bytes, str]]:
    """The lines that have an end, and where each is."""
    if not file_exists(file):
        return []
    lines, line_break, rest = digests.read_bytes(file).rpartition(b"\n")
    if digests.is_sealed(rest) and not rest.endswith((b'"', b"}")):
        # A killed write is cut off in or before the digest; it never adds bytes after it.
        raise digests.DamagedFileError(file)
    numbered = enumerate((lines + line_break).splitlines(), start=1)
    return [(line, f"{file}, line {number}") for number, line in numbered]
