"""A file of sealed JSON lines that grows by one line at a time, at the same cost however long it is.

On a file system a line is appended and synced. A kill can leave the last line without its end: it is not read, and the next
line takes its place. An object store cannot append: there the whole file is written again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from ray_atr.common import digests
from ray_atr.common.atomic import disk_errors, sync_folder
from ray_atr.common.locations import Location, file_exists, storage_errors

BLOCK = 1 << 16
"""Bytes that are read at once from the end of a file."""


def append_line(file: Location, row: Mapping[str, Any]) -> None:
    """Add a line to a file in a folder that exists, and make the file if it is not there. StorageError if that fails."""
    if not isinstance(file, Path):
        digests.write_lines(file, [*read_appended(file), row])
        return
    with storage_errors(file), disk_errors(file):
        is_new = not file.exists()
        with file.open("x+b" if is_new else "r+b") as opened:
            opened.seek(_whole_bytes(opened))
            opened.truncate()
            opened.write((digests.seal(row) + "\n").encode())
            opened.flush()
            os.fsync(opened.fileno())
        if is_new:
            sync_folder(file.parent)


def read_appended(file: Location) -> list[dict[str, Any]]:
    """The lines of a file in order, without a last one that has no end; none if there is no file.

    ValueError names the line that is no object, or not what was written.
    """
    if not file_exists(file):
        return []
    whole, line_break, rest = digests.read_bytes(file).rpartition(b"\n")
    if digests.is_sealed(rest) and not rest.endswith((b'"', b"}")):
        # A kill cuts a line off before its digest, or within what follows it; it puts nothing behind it.
        raise digests.DamagedFileError(file)
    return list(digests.rows_of(whole + line_break, file))


def newest_lines(file: Location) -> Iterator[dict[str, Any]]:
    """The same from the last line on to the first; of a file on this machine no more is read than is asked for."""
    if not isinstance(file, Path):
        yield from reversed(read_appended(file))
        return
    if not file.is_file():
        return
    with file.open("rb") as opened:
        start, later = _whole_bytes(opened) - 1, b""
        if start < 0:
            return
        while start > 0:
            end, start = start, max(0, start - BLOCK)
            opened.seek(start)
            later, *lines = (opened.read(end - start) + later).split(b"\n")
            for line in reversed(lines):
                yield from digests.rows_of(line, file)
        yield from digests.rows_of(later, file)


def _whole_bytes(opened: IO[bytes]) -> int:
    """How long a file is without what follows its last line break."""
    start = opened.seek(0, os.SEEK_END)
    while start:
        end, start = start, max(0, start - BLOCK)
        opened.seek(start)
        place = opened.read(end - start).rfind(b"\n")
        if place >= 0:
            return start + place + 1
    return 0
