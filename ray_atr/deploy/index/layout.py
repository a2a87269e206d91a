"""The folder of an index.

    index.json       the manifest with the digests of the files; written last, it alone decides which files count
    1/               the files of one state of the archive; the next update writes 2/, then this one is removed
        vectors.parquet   a row a window: vector (16-bit floats), path, start, end (s), clip_id, captions
        files.arrow       a row a sound, the broken ones too: what an update compares
        windows.arrow     a row a window: its sound, start, end
        search.faiss      FAISS's index
        rows.npy          the 16-bit rows, where FAISS's index has 8-bit codes
    unfinished/      sounds that an interrupted build has encoded

Every file is written atomically, and its digest is checked before it is read. Nothing is unpickled.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError

from ray_atr.common.digests import digest_of_file
from ray_atr.common.settings import refuse
from ray_atr.common.storage import (
    DamagedFileError,
    Location,
    atomic_file,
    atomic_folder,
    disk_errors,
    file_exists,
    read_json,
    remove_folder,
    write_json,
)
from ray_atr.data.schema import CAPTIONS
from ray_atr.deploy.index.structure import EXACT_ROWS, Rows, build_structure, write_structure

INDEX_FILE, FORMAT = "index.json", 1
VECTORS, FILES, WINDOWS, STRUCTURE, ROWS = "vectors.parquet", "files.arrow", "windows.arrow", "search.faiss", "rows.npy"
REMEDY = "make the index again with `ray-atr index build`, or restore the file from a copy"
ROW_GROUP = 16_384

FILE_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("size", pa.int64()),
        ("modified_ns", pa.int64()),
        ("digest", pa.string()),
        ("error", pa.string()),
        ("clip_id", pa.string()),
        ("captions", CAPTIONS),
        ("first", pa.int64()),
        ("count", pa.int64()),
    ]
)
WINDOW_SCHEMA = pa.schema([("file", pa.int64()), ("start", pa.float64()), ("end", pa.float64())])


@dataclass(frozen=True)
class IndexManifest:
    """The manifest of an index."""

    model: Annotated[str, Field(min_length=1)]
    """Fingerprint of the retriever that made the vectors."""
    checkpoint: str
    """Folder or URL of that retriever."""
    archive: str
    """Folder, URL or file that was indexed."""
    distance: Literal["cosine", "euclidean"]
    width: int
    num_windows: int
    num_sounds: int
    num_broken: int
    state: Annotated[int, Field(ge=1)]
    """Number of the folder with the current files."""
    digests: dict[str, str]
    """File name -> digest."""
    part: str = ""
    """`K/N`: the K-th of N parts of the archive's sounds; empty: all of them."""

    @property
    def is_exact(self) -> bool:
        """Whether a query is compared with every window."""
        return ROWS not in self.digests


def read_index_manifest(folder: Location) -> IndexManifest:
    """The manifest of an index. ValueError for a folder without an index, another format, and a damaged manifest."""
    file = folder / INDEX_FILE
    if not file_exists(file):
        raise refuse("index", str(folder), f"a folder with an {INDEX_FILE}, as `ray-atr index build` writes it")
    content = read_json(file)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise refuse("index", str(file), f"an index of format {FORMAT}")
    try:
        manifest = TypeAdapter(IndexManifest).validate_json(json.dumps(content), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        wrong = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise refuse(str(file), wrong, "what `ray-atr index build` writes") from None
    # The names become paths.
    unknown = set(manifest.digests) - {VECTORS, FILES, WINDOWS, STRUCTURE, ROWS}
    if unknown or {VECTORS, FILES, WINDOWS, STRUCTURE} - set(manifest.digests):
        raise refuse(f"{file}: digests", sorted(manifest.digests), f"{VECTORS}, {FILES}, {WINDOWS}, {STRUCTURE}")
    return manifest


def check_files(folder: Path, manifest: IndexManifest, names: Sequence[str]) -> None:
    """DamagedFileError for the first file whose digest is not that of the manifest."""

    def is_intact(name: str) -> bool:
        file = folder / str(manifest.state) / name
        return file.is_file() and digest_of_file(file) == manifest.digests[name]

    with ThreadPoolExecutor() as threads:
        for name, intact in zip(names, threads.map(is_intact, names), strict=True):
            if not intact:
                raise DamagedFileError(folder / str(manifest.state) / name, REMEDY)


def write_state(
    folder: Path,
    files: pa.Table,
    windows: pa.Table,
    rows: Rows,
    *,
    exact_rows: int = EXACT_ROWS,
    **about: Any,
) -> IndexManifest:
    """Write a new state of an index, then the manifest that names it; until then the index is the older one, or none.

    `about` has the other entries of the manifest: model, checkpoint, archive, distance, part.
    """
    before = read_index_manifest(folder).state if file_exists(folder / INDEX_FILE) else 0
    state = before + 1
    with atomic_folder(folder / str(state), is_synced=True) as aside:
        assert isinstance(aside, Path)
        structure = build_structure(rows, about["distance"], exact_rows=exact_rows)
        write_structure(structure, aside / STRUCTURE)
        if len(rows) > exact_rows:
            with atomic_file(aside / ROWS) as output:
                np.save(output, rows, allow_pickle=False)
        write_table(aside / FILES, files)
        write_table(aside / WINDOWS, windows)
        _write_vectors(aside / VECTORS, files, windows, rows)
        names = sorted(path.name for path in aside.iterdir() if not path.name.startswith("."))
        digests = {name: digest_of_file(aside / name) for name in names}
    errors = files["error"].to_pylist()
    manifest = IndexManifest(
        width=rows.shape[1],
        num_windows=len(rows),
        num_sounds=sum(not error for error in errors),
        num_broken=sum(bool(error) for error in errors),
        state=state,
        digests=digests,
        **about,
    )
    write_index_manifest(folder, manifest)
    return manifest


def write_index_manifest(folder: Path, manifest: IndexManifest) -> None:
    """Write the manifest atomically; from then on the files that it names count."""
    write_json(folder / INDEX_FILE, {"format": FORMAT, **dataclasses.asdict(manifest)})


def remove_other_states(folder: Path, manifest: IndexManifest) -> None:
    """Remove older states of an index, and files of a killed update, from its folder."""
    for other in sorted(folder.iterdir()):
        if other.name.isdecimal() and other.name != str(manifest.state):
            remove_folder(other)


def write_table(file: Path, table: pa.Table) -> None:
    """Write a table atomically as an Arrow file, which can be mapped."""
    with disk_errors(file), atomic_file(file) as output, pa.ipc.new_file(output, table.schema) as writer:
        writer.write_table(table.combine_chunks())


def stored_table(file: Path, *, is_mapped: bool = True) -> pa.Table:
    """A table of an Arrow file whose digest was checked: mapped, or in memory."""
    opened = pa.memory_map(str(file)) if is_mapped else pa.OSFile(str(file))
    return pa.ipc.open_file(opened).read_all()


def _write_vectors(file: Path, files: pa.Table, windows: pa.Table, rows: Rows) -> None:
    vector = pa.list_(pa.field("element", pa.float16(), nullable=False), rows.shape[1])
    columns = [("vector", vector), ("path", pa.string()), ("start", pa.float64()), ("end", pa.float64())]
    schema = pa.schema([*columns, ("clip_id", pa.string()), ("captions", CAPTIONS)])
    options: dict[str, Any] = {"compression": "zstd", "use_dictionary": ["path", "clip_id"], "store_schema": True}
    with disk_errors(file), atomic_file(file) as output, pq.ParquetWriter(output, schema, **options) as writer:
        for start in range(0, len(rows), ROW_GROUP):
            some = windows.slice(start, ROW_GROUP).combine_chunks()
            sounds = files.select(["path", "clip_id", "captions"]).take(some["file"])
            flat = number_array(rows[start : start + ROW_GROUP].reshape(-1))
            vectors = pa.FixedSizeListArray.from_arrays(flat, type=vector)
            of_group = [vectors, sounds["path"], some["start"], some["end"], sounds["clip_id"], sounds["captions"]]
            writer.write_table(pa.table(of_group, schema=schema))


def number_array(values: NDArray[np.generic]) -> pa.Array:
    """The Arrow array of numbers [N], which shares their memory if they are contiguous.

    `pyarrow.array` would import pandas, which takes 0.3 s of a query.
    """
    dense = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(dense.dtype), len(dense), [None, pa.py_buffer(dense)])


def numbers_of(column: pa.ChunkedArray) -> NDArray[np.generic]:
    """The numbers [N] of a column without nulls: not copied if it is in one piece, and then read-only."""
    return np.from_dlpack(column.combine_chunks())
