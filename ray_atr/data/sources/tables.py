"""Reading tables of captions (CSV, TSV, JSON lines, Parquet) row by row, with errors that name file, line and column."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ray_atr.data.shards import open_folder
from ray_atr.settings import nearest

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
Row = dict[str, Any]

csv.field_size_limit(2**24)


def read_table(file: str, required: Sequence[str] = ()) -> Iterator[tuple[str, Row]]:
    """The rows of a table, each with where it stands (`captions.csv, line 7`).

    `required` names columns that must be there. Raises ValueError for a missing file, column or header, another
    delimiter, bytes that are no UTF-8, a row of another length, a line that is no JSON object.
    """
    suffix = next((known for known in TABLE_SUFFIXES if file.lower().endswith(known)), None)
    if suffix is None:
        raise ValueError(f"{file}: not a table of captions; allowed {', '.join(TABLE_SUFFIXES)}")
    if suffix == ".parquet":
        yield from _read_parquet(file, required)
    elif suffix == ".jsonl":
        yield from _read_json_lines(file, required)
    else:
        yield from _read_csv(file, required, "\t" if suffix == ".tsv" else ",")


def require_columns(file: str, found: Sequence[str], required: Sequence[str]) -> None:
    """ValueError naming the first required column that is not among those found."""
    for column in required:
        if column not in found:
            hint = nearest(column, found)
            raise ValueError(f"{file}: column {column} is missing; it has {', '.join(found) or 'none'}{hint}")


def read_lines(file: str) -> Iterator[tuple[int, str]]:
    """The lines of a text file from 1, decoded as UTF-8. ValueError names the line that is none, or a missing file."""
    parent, _, name = file.rpartition("/")
    folder = open_folder(parent or ".")
    if not folder.exists(name):
        raise ValueError(f"{file}: no such file")
    with folder.open(name) as lines:
        for number, line in enumerate(lines, start=1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"{file}, line {number}: not UTF-8 (byte {error.object[error.start]:#04x} at position"
                    f" {error.start}); save the file as UTF-8"
                ) from None
            yield number, text


def _read_csv(file: str, required: Sequence[str], delimiter: str) -> Iterator[tuple[str, Row]]:
    number = 0

    def lines() -> Iterator[str]:
        nonlocal number
        for number, line in read_lines(file):
            if "\0" in line:
                raise ValueError(f"{file}, line {number}: holds a zero byte; not a text file in UTF-8")
            yield line

    rows = csv.reader(lines(), delimiter=delimiter, strict=True)
    try:
        header = [name.strip() for name in next(rows, [])]
        if not header:
            raise ValueError(f"{file}: the file is empty")
        _refuse_other_delimiter(file, header, required, delimiter)
        require_columns(file, header, required)
        is_empty = True
        for row in rows:
            if not row:
                continue
            if len(row) != len(header):
                raise ValueError(
                    f"{file}, line {number}: {len(row)} fields where the header has {len(header)};"
                    " a field that holds the delimiter must be quoted"
                )
            is_empty = False
            yield f"{file}, line {number}", dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise ValueError(f"{file}, line {number}: not a CSV row ({error})") from None
    if is_empty:
        raise ValueError(f"{file}: there are no rows below the header")


def _refuse_other_delimiter(file: str, header: list[str], required: Sequence[str], delimiter: str) -> None:
    if len(header) > 1 or (required and set(required) <= set(header)):
        return
    for other, name in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars"), (",", "commas")):
        if other != delimiter and other in header[0]:
            wanted = "commas" if delimiter == "," else "tabs"
            raise ValueError(f"{file}: its columns are separated by {name}; allowed {wanted}")


def _read_json_lines(file: str, required: Sequence[str]) -> Iterator[tuple[str, Row]]:
    is_empty = True
    for number, line in read_lines(file):
        if not line.strip():
            continue
        at = f"{file}, line {number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{at}: not JSON ({error.msg} at character {error.pos + 1})") from None
        if not isinstance(row, dict):
            raise ValueError(f"{at}: a JSON object is expected, with {', '.join(required)}")
        require_columns(at, list(row), required)
        is_empty = False
        yield at, row
    if is_empty:
        raise ValueError(f"{file}: the file is empty")


def _read_parquet(file: str, required: Sequence[str]) -> Iterator[tuple[str, Row]]:
    parent, _, name = file.rpartition("/")
    folder = open_folder(parent or ".")
    if not folder.exists(name):
        raise ValueError(f"{file}: no such file")
    with folder.open(name) as source:
        try:
            parquet = pq.ParquetFile(source)
        except pa.ArrowInvalid as error:
            raise ValueError(f"{file}: not a Parquet file ({error})") from None
        require_columns(file, parquet.schema_arrow.names, required)
        if parquet.metadata.num_rows == 0:
            raise ValueError(f"{file}: the file is empty")
        number = 0
        for batch in parquet.iter_batches(batch_size=1024):
            for row in batch.to_pylist():
                number += 1
                yield f"{file}, row {number}", row
