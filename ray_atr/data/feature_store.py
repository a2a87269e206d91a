"""Features kept in a store, for sets that do not fit on a node's disk: rows are read from there as they are needed.

    train-00000.features      the rows' bytes, one after the other; in the store alone
    train-00000.arrow         where each row stands in it: clip_id, start, size, digest (XXH3)
    train.captions.arrow, digests.json, manifest.json     as in a folder on a disk; the manifest comes last, and names the store

A node copies all but the rows to its own disk, some 40 bytes a row. A row is read by a range request, many at a time, and
checked against its digest. Vectors of frozen towers are small: nodes keep copies of whole folders of them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from ray_atr.settings import refuse
from ray_atr.storage import DamagedFileError, Folder, open_folder, read_json, safe_name, whole_file, write_json
from ray_atr.storage.digests import DIGESTS_FILE, check_folder, digests_of, seal_folder

MANIFEST_FILE = "manifest.json"
STORE = "store"
"""The manifest's entry with the URL of the folder that holds the rows."""
PLACES = pa.schema([("clip_id", pa.string()), ("start", pa.int64()), ("size", pa.int64()), ("digest", pa.uint64())])


def write_stored_rows(store: Folder, file: str, batches: Iterable[tuple[list[str], list[np.ndarray]]]) -> None:
    """Write clips' features to the store, then the table `file` that says where they are: if that is there, so are they."""
    sink, end = pa.BufferOutputStream(), 0
    with store.writing(rows_file(file)) as output, pa.ipc.new_file(sink, PLACES) as places:
        for ids, features in batches:
            contents = [feature.tobytes() for feature in features]
            sizes = np.array([len(content) for content in contents], np.int64)
            starts = end + np.cumsum(sizes) - sizes
            digests = np.array([xxhash.xxh3_64_intdigest(content) for content in contents], np.uint64)
            for content in contents:
                output.write(content)
            end += int(sizes.sum())
            places.write_batch(pa.record_batch([pa.array(ids, pa.string()), starts, sizes, digests], schema=PLACES))
    store.write(file, sink.getvalue().to_pybytes())


def read_stored_rows(store: Folder, places: Sequence[tuple[str, int, int, int]]) -> list[bytes]:
    """The rows at places (table's file, start, size, digest), in their order. DamagedFileError if one has changed."""
    if not places:
        return []
    files, starts, sizes, digests = zip(*places, strict=True)
    ends = [start + size for start, size in zip(starts, sizes, strict=True)]
    contents = store.read_ranges([rows_file(file) for file in files], starts, ends)
    for file, content, digest in zip(files, contents, digests, strict=True):
        if xxhash.xxh3_64_intdigest(content) != digest:
            raise DamagedFileError(store.file(rows_file(file)), "delete its folder, and the next start makes it again")
    return contents


def rows_file(file: str) -> str:
    """The name of the file that holds the rows which a table tells the places of."""
    return str(Path(file).with_suffix(".features"))


def fetch_folder(store: Folder, folder: Path) -> bool:
    """Copy to a node's disk what the store holds but for the rows; False if the store holds no whole folder."""
    if not store.exists(MANIFEST_FILE):
        return False
    for name in (DIGESTS_FILE, *_listed(store)):
        with store.open(name) as source, whole_file(folder / name) as output:
            shutil.copyfileobj(source, output)
    check_folder(folder)
    content = read_json(store.place / MANIFEST_FILE)
    # Under the store's name of today, should it have been moved.
    write_json(folder / MANIFEST_FILE, {**content, STORE: store.name} if STORE in content else content)
    return True


def finish_folder(folder: Path, store: Folder | None, manifest: Mapping[str, Any]) -> None:
    """Seal a folder of features or vectors and write its manifest, which makes it whole.

    What it holds is copied to the store before: a node whose folder is whole sends nothing more.
    """
    seal_folder(folder)
    if store is not None:
        for name in (*digests_of(folder), DIGESTS_FILE):
            with (folder / name).open("rb") as source, store.writing(name) as output:
                shutil.copyfileobj(source, output)
        write_json(store.place / MANIFEST_FILE, manifest)
    write_json(folder / MANIFEST_FILE, manifest)


def folder_in(store: str, name: str) -> Folder | None:
    """The folder of a set of features or vectors in the store that a setting names; None if it names none."""
    return open_folder(f"{store}/{name}") if store else None


def _listed(store: Folder) -> list[str]:
    """The names that the store's list of digests holds. ValueError for one that would lead out of a folder."""
    file = store.place / DIGESTS_FILE
    content = read_json(file)
    files = content.get("files") if isinstance(content, dict) else None
    if not isinstance(files, dict):
        raise refuse(f"{file}: files", files, "a list of files and their digests")
    return [safe_name(name, f"{file}: files") for name in files]
