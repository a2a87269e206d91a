"""Whole texts and JSON, here or in a store: written at once, sealed with a digest, checked when read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ray_atr.settings import shortened
from ray_atr.storage.digests import check_seal, seal, unsealed
from ray_atr.storage.places import Location, is_there, persistently, reaching
from ray_atr.storage.whole import whole_file


def write_bytes(file: Path, content: bytes) -> None:
    """Write a whole file of this machine in the place of an older one, in a folder that exists."""
    with whole_file(file) as output:
        output.write(content)


def write_text(file: Location, content: str, *, is_private: bool = False) -> None:
    """Write a whole file in the place of an older one, in a folder that exists. StorageError if that fails."""
    if not isinstance(file, Path):
        persistently(file, lambda: file.write_text(content, encoding="utf-8"))
        return
    with reaching(file), whole_file(file, is_synced=True, is_private=is_private) as output:
        output.write(content.encode())


def read_bytes(file: Location) -> bytes:
    """The content of a file. StorageError if it is gone."""
    return persistently(file, lambda: bytes(file.read_bytes()))


def read_text(file: Location) -> str:
    """The content of a text file. ValueError names a file that is not UTF-8, StorageError one that is gone."""
    try:
        return read_bytes(file).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not a text ({error.reason} at byte {error.start})") from None


def write_json(file: Location, content: Mapping[str, Any], *, is_private: bool = False) -> None:
    """Write an object as sealed JSON, whole, into a folder that exists."""
    write_text(file, seal(content, indent=1) + "\n", is_private=is_private)


def read_json(file: Location) -> Any:
    """The content of a JSON file, without its digest.

    ValueError names the file if it is not JSON, DamagedFileError if it is not what was written, StorageError if it is gone.
    """
    text = read_bytes(file)
    check_seal(text, file)
    content = _parsed(text, file)
    return unsealed(content) if isinstance(content, dict) else content


def write_lines(file: Location, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write objects as sealed JSON, one a line, whole."""
    write_text(file, "".join(seal(row) + "\n" for row in rows))


def read_lines(file: Location) -> list[dict[str, Any]]:
    """The objects of a file with one a line; none if there is no file.

    A last line that a kill cut off is left out. ValueError names the line that is no object, or not what was written.
    """
    if not is_there(file):
        return []
    lines = read_bytes(file).splitlines()
    rows = []
    for number, line in enumerate(lines, start=1):
        where = f"{file}, line {number}"
        check_seal(line, where)
        try:
            row = _parsed(line, where)
        except ValueError:
            # Lines are sealed since files are written whole: only an older one can end in the middle of a line.
            if number == len(lines) and not any(b'"digest"' in other for other in lines):
                break
            raise
        if not isinstance(row, dict):
            raise ValueError(f"{where}: not a JSON object")
        rows.append(unsealed(row))
    return rows


def _parsed(text: bytes, where: object) -> Any:
    try:
        return json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not JSON ({shortened(str(error), 100)})") from None
