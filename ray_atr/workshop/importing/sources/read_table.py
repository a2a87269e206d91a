"""Reading tables of captions (CSV, TSV, JSON lines, Parquet) row by row, with errors that name file, line and column.

pyarrow and pandas read such files too, but neither says in which line of a text file something is wrong.
"""

from __future__ import annotations

import codecs
import csv
import io
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from charset_normalizer import from_bytes

from ray_atr.common.settings import RepeatedNameError, each_once, nearest, refuse, shortened
from ray_atr.common.storage import Location, StorageError, file_exists, locate, opened, read_bytes
from ray_atr.data.shards import Skipped

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet")
DELIMITERS = (",", ";", "\t", "|")
MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF32_LE: "utf-32"}
MARKS |= dict.fromkeys((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE), "utf-16")
Row = dict[str, Any]

csv.field_size_limit(2**24)


@dataclass
class Reading:
    """How tables are read (delimiter and encoding, empty: detected; whether bad rows are dropped), and notes on what was read."""

    delimiter: str = ""
    encoding: str = ""
    drops: bool = False
    options: Mapping[str, str] = field(default_factory=dict)  # a required column -> the option that names another
    bad_rows: list[Skipped] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def refuse_row(self, at: str, reason: str) -> None:
        """Count a row as dropped, or raise ValueError if rows are not to be dropped; a reason may begin with its place."""
        rest = reason.removeprefix(at) if reason.startswith((f"{at}: ", f"{at}, ")) else f": {reason}"
        if not self.drops:
            raise ValueError(f"{at}{rest}")
        self.bad_rows.append(Skipped(at, shortened(rest[2:])))


def read_table(file: str, required: Sequence[str] = (), reading: Reading | None = None) -> Iterator[tuple[str, Row]]:
    """The rows of a table, each with its place (`captions.csv, line 7`). `required` names columns that must be there.
    Raises ValueError for a missing file, column or header, an unknown encoding, and, unless they are dropped, a row of
    another length or a line that is no JSON object.
    """
    reading = reading or Reading()
    suffix = next((allowed for allowed in TABLE_SUFFIXES if file.lower().endswith(allowed)), None)
    if suffix is None:
        raise ValueError(f"{file}: not a table of captions; allowed {', '.join(TABLE_SUFFIXES)}")
    if suffix == ".parquet":
        yield from _read_parquet(file, required, reading)
    elif suffix == ".jsonl":
        yield from _read_json_lines(file, required, reading)
    else:
        yield from _read_csv(file, required, reading, "\t" if suffix == ".tsv" else ",")


def require_columns(
    file: str, columns: Sequence[str], required: Sequence[str], options: Mapping[str, str] | None = None
) -> None:
    """ValueError for two columns of one name, and for the first required column that is missing, with the option that names
    another column if there is one.
    """
    try:
        # Columns without a name, as spreadsheets leave them at the end, are not read.
        each_once((column, None) for column in columns if column)
    except RepeatedNameError as error:
        raise ValueError(f"{file}: column {error}") from None
    for column in required:
        if column not in columns:
            has, hint = shortened(", ".join(columns)) or "none", nearest(column, columns)
            if option := (options or {}).get(column):
                hint += f"; {option} says which one it is"
            raise ValueError(f"{file}: column {column} is missing; it has {has}{hint}")


def parse_json(text: str, at: str) -> Any:
    """The value of a JSON text. ValueError, beginning with `at`, for any other text."""
    try:
        value = json.loads(text, object_pairs_hook=each_once)
        if "\\ud" in text.lower():
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except UnicodeEncodeError:
        raise ValueError(f"{at}: half of a pair of surrogates (\\ud800 to \\udfff), which is no character") from None
    except RepeatedNameError as error:
        raise ValueError(f"{at}: {error}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{at}: not JSON ({error.msg} at character {error.pos + 1})") from None
    except (ValueError, RecursionError) as error:
        # A number of thousands of digits, or thousands of brackets within each other.
        raise ValueError(f"{at}: not JSON that can be read ({shortened(str(error))})") from None


def numbered_lines(file: str, reading: Reading | None = None) -> Iterator[tuple[int, str]]:
    """The lines of a text file from 1, decoded. ValueError names the line that cannot be, or a missing file."""
    reading = reading or Reading()
    place = existing(file)
    encoding = _encoding_of(place, reading.encoding)
    if not reading.encoding and encoding not in ("utf-8", "utf-8-sig"):
        reading.notes.append(f"{place.name} was read as {encoding}, which its bytes suggest; --encoding says otherwise")
    with opened(place) as file_of_bytes:
        if encoding.startswith(("utf-16", "utf-32")):
            try:
                yield from enumerate(io.TextIOWrapper(file_of_bytes, encoding=encoding, newline=""), start=1)
            except UnicodeError as error:
                raise ValueError(f"{file}: not {encoding.upper()} ({shortened(str(error))})") from None
            return
        for number, line in enumerate(file_of_bytes, start=1):
            try:
                yield number, line.decode(encoding if number == 1 else encoding.removesuffix("-sig"))
            except UnicodeDecodeError as error:
                wrong_byte = f"byte {error.object[error.start]:#04x} at position {error.start}"
                what = f"not {encoding.removesuffix('-sig').upper()} ({wrong_byte})"
                advice = "save the file as UTF-8, or choose --encoding"
                raise ValueError(f"{file}, line {number}: {what}; {advice}") from None


def file_at(place: str) -> Location:
    """A file here or in a store, by its path or URL."""
    parent, slash, name = place.rpartition("/")
    return locate(parent or slash or ".", keeps_links=True) / name


def existing(file: str) -> Location:
    """A file here or in a store, by its path or URL. ValueError if it is not there."""
    place = file_at(file)
    if not file_exists(place):
        raise ValueError(f"{file}: no such file")
    return place


def read_id_lists(file: str) -> dict[str, list[str]]:
    """Lists of clip ids by name, `""` for one without: of a text file, one a line, or of JSON, a list or lists by name, as
    WavCaps' authors publish them. ValueError for anything else.
    """
    text = "".join(line for _, line in numbered_lines(file))
    content = parse_json(text, file) if file.lower().endswith(".json") else text.splitlines()
    lists = content if isinstance(content, dict) else {"": content}
    if not all(isinstance(ids, list) for ids in lists.values()):
        raise ValueError(f"{file}: a list of ids, or lists of ids by subset, is expected")
    return {name: [str(clip_id).strip() for clip_id in ids if str(clip_id).strip()] for name, ids in lists.items()}


def _encoding_of(file: Location, given: str) -> str:
    """The given encoding of a text file, or the one that it has: that of its byte order mark, UTF-8 if it is valid, else the one
    that its bytes suggest. A file with a few bytes that are not UTF-8 is damaged; it stays UTF-8, so that the line is named.
    """
    if given:
        try:
            name = codecs.lookup(given).name
        except LookupError:
            raise refuse("encoding", given, "an encoding that Python knows, such as utf-8, cp1252, shift_jis") from None
        return "utf-8-sig" if name == "utf-8" else name
    content = read_bytes(file)
    for mark, encoding in MARKS.items():
        if content.startswith(mark):
            return encoding
    text = content.decode("utf-8", errors="replace")
    broken = text.count("\ufffd")
    if not broken or sum(not character.isascii() for character in text) > 2 * broken:
        return "utf-8"
    likely = from_bytes(content[: 2**20], cp_isolation=["cp1252", "cp1251", "cp932", "cp949", "gb18030"]).best()
    return likely.encoding if likely is not None else "cp1252"


def _read_csv(file: str, required: Sequence[str], reading: Reading, usual: str) -> Iterator[tuple[str, Row]]:
    number = 0

    def text() -> Iterator[str]:
        nonlocal number
        for number, line in lines:
            if "\0" in line:
                reading.refuse_row(f"{file}, line {number}", "holds a zero byte; not a text file in UTF-8")
                continue
            yield line

    lines = iter(numbered_lines(file, reading))
    first = next((entry for entry in lines if entry[1].strip()), None)
    if first is None:
        raise ValueError(f"{file}: the file is empty")
    if "\r" in first[1].rstrip("\r\n"):
        raise ValueError(f"{file}: lines end with a carriage return alone; save the file with line feeds")
    match = re.fullmatch(r'"?sep=(.)"?\s*', first[1])
    if match is None:
        lines = itertools.chain([first], lines)
    delimiter = _delimiter(reading.delimiter or (match[1] if match else ""), first[1], required, usual)
    rows = csv.reader(text(), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    is_empty = True
    while True:
        start = number + 1
        try:
            row = next(rows, None)
        except csv.Error as error:
            if "unexpected end" in str(error):
                # Where the field ends is unknown, so no single row can be dropped.
                raise ValueError(f"{file}, line {start}: a quote that opens here is not closed by the end") from None
            reading.refuse_row(f"{file}, line {number}", f"not a CSV row ({error})")
            continue
        if row is None:
            break
        if header is None:
            header = [name.strip() for name in row]
            require_columns(file, header, required, reading.options)
        elif not any(map(str.strip, row)):
            # Spreadsheets write rows of delimiters alone, often at the end.
            continue
        elif len(row) == len(header):
            is_empty = False
            yield f"{file}, line {number}", dict(zip(header, row, strict=True))
        else:
            counts = f"{len(row)} fields where the header has {len(header)}"
            reading.refuse_row(f"{file}, line {number}", f"{counts}; a field that holds the delimiter must be quoted")
    if is_empty and not reading.bad_rows:
        raise ValueError(f"{file}: there are no rows below the header")


def _delimiter(given: str, header: str, required: Sequence[str], usual: str) -> str:
    """The delimiter that was given, or the one that splits the header into the required columns, or into most columns."""
    named = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";"}.get(given, given)
    if named:
        if len(named) != 1:
            raise refuse("delimiter", given, "one character, or tab")
        return named

    def fitness(delimiter: str) -> tuple[int, int, bool]:
        columns = [name.strip() for name in next(csv.reader([header], delimiter=delimiter))]
        return len(set(required) & set(columns)), len(columns), delimiter == usual

    return max(DELIMITERS, key=fitness)


def _read_json_lines(file: str, required: Sequence[str], reading: Reading) -> Iterator[tuple[str, Row]]:
    is_empty = True
    for number, line in numbered_lines(file, reading):
        if not line.strip():
            continue
        at = f"{file}, line {number}"
        is_empty = False
        try:
            row = parse_json(line, at)
            if not isinstance(row, dict):
                raise ValueError(f"{at}: a JSON object is expected, with {', '.join(required)}")
            require_columns(at, list(row), required, reading.options)
        except ValueError as error:
            reading.refuse_row(at, str(error))
            continue
        yield at, row
    if is_empty:
        raise ValueError(f"{file}: the file is empty")


def _read_parquet(file: str, required: Sequence[str], reading: Reading) -> Iterator[tuple[str, Row]]:
    with opened(existing(file)) as source:
        number = 0
        try:
            parquet = pq.ParquetFile(source)
            require_columns(file, parquet.schema_arrow.names, required, reading.options)
            if parquet.metadata.num_rows == 0:
                raise ValueError(f"{file}: the file is empty")
            for batch in parquet.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{file}, row {number}", row
        except StorageError:
            raise
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            what = f"cannot be read after row {number}" if number else "not a Parquet file"
            raise ValueError(f"{file}: {what} ({shortened(str(error))})") from None
