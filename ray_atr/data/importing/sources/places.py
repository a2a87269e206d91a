"""Where the encoded audio of a clip is, and reading it: a file, a span of a tar file, a cell of a Parquet or Arrow table."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ray_atr.data.shards import open_arrow
from ray_atr.settings import refuse
from ray_atr.storage import Folder, open_folder

AUDIO_SUFFIXES = (".wav", ".flac", ".ogg", ".mp3", ".opus", ".aiff", ".aif")


@dataclass(frozen=True)
class Place:
    """`kind` file: the whole of `file`; span: `second` bytes from byte `first` of it; parquet and arrow: `column`, in row
    group or record batch `first`, row `second`."""

    file: str
    kind: str = "file"
    first: int = 0
    second: int = 0
    column: str = ""


def read_place(place: Place) -> bytes:
    """The encoded audio. OSError if it cannot be read, ValueError if the place holds none."""
    if place.kind in ("parquet", "arrow"):
        value = _column(place.file, place.kind, place.first, place.column)[place.second].as_py()
        if isinstance(value, dict):
            value = value["bytes"]
        if not value:
            raise ValueError("the table holds no audio for it")
        return bytes(value)
    if "://" not in place.file:
        with open(place.file, "rb") as local:
            return _take(local, place)
    parent, _, name = place.file.rpartition("/")
    with open_folder(parent).open(name) as remote:
        return _take(remote, place)


def _take(file: Any, place: Place) -> bytes:
    if place.kind == "file":
        return bytes(file.read())
    file.seek(place.first)
    return bytes(file.read(place.second))


@lru_cache(maxsize=1)
def _column(file: str, kind: str, group: int, column: str) -> pa.Array:
    # One group at a time: the clips of a shard follow each other in the table.
    parent, _, name = file.rpartition("/")
    with open_arrow(open_folder(parent), name) as source:
        if kind == "parquet":
            return pq.ParquetFile(source).read_row_group(group, columns=[column]).column(column).combine_chunks()
        for index, batch in enumerate(pa.ipc.open_stream(source)):
            if index == group:
                return batch.column(column)
    raise ValueError(f"{file}: no record batch {group}")


def list_files(folder: Folder) -> list[str]:
    """The paths of all files below a folder, relative to it, sorted; hidden ones left out. ValueError if there are none."""
    files = [path for path in folder.files() if not any(part.startswith(".") for part in path.split("/"))]
    if not files:
        raise ValueError(f"{folder.name}: the folder is empty or does not exist")
    return files


def place_in(folder: Folder, relative: str, at: str) -> Place:
    """The file at a path written in a table of captions. ValueError, beginning with `at`, if it leaves the folder."""
    path = PurePosixPath(relative.replace("\\", "/"))
    depth = 0
    for part in path.parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            break
    if path.is_absolute() or depth < 0 or (path.parts and path.parts[0].endswith(":")):
        raise refuse(f"{at}, path", relative, f"a path inside {folder.name}")
    return Place(folder.file(str(path)))


def stem(path: str) -> str:
    """The file name without folders and without a known audio suffix (`a/b.c.wav` -> `b.c`)."""
    return without_suffix(path.replace("\\", "/").rsplit("/", 1)[-1])


def without_suffix(path: str) -> str:
    return next((path[: -len(suffix)] for suffix in AUDIO_SUFFIXES if path.lower().endswith(suffix)), path)


def is_audio(path: str) -> bool:
    return path.lower().endswith(AUDIO_SUFFIXES)
