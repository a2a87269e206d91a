"""A local export of a Hugging Face data set that has an Audio column: Parquet files, or a folder of `save_to_disk`.

An Audio column is a struct of `bytes` (the encoded file) and `path`. Splits come from the names that such exports have:
`data/train-00000-of-00004.parquet`, or a folder a split with `data-00000-of-00002.arrow` or `0000.parquet`, as the hub converts
data sets (`default/partial-train/0000.parquet` where it converts the first files alone).
The library `datasets` is not used: it copies Parquet files to a cache of its own before they are read.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from ray_atr.common.language_codes import ENGLISH
from ray_atr.common.settings import nearest, refuse, setting
from ray_atr.common.storage import Location, locate
from ray_atr.data.schema import SPLITS, check_language
from ray_atr.data.shards import arrow_errors, open_arrow
from ray_atr.workshop.importing.sources import source

IN_NAME = re.compile(r"(?P<split>[a-z0-9_]+?)(-\d+(-of-\d+)?)?(-[0-9a-f]{8,})?\.parquet")
ROW_NUMBER = "row"
CAPTION_COLUMNS = re.compile(r"captions?|caption_\d+|texts?")
ID_COLUMNS = ("clip_id", "id", "youtube_id", "file_name", "filename")


@dataclass(frozen=True, kw_only=True)
class HuggingFace(source.Source):
    """A local Hugging Face export (Parquet, or save_to_disk) with an Audio column."""

    name: ClassVar[str] = "huggingface"
    licence: ClassVar[str] = "as stated on the data set's card"
    remedy: ClassVar[str] = " (--id-column row numbers the clips)"

    audio_column: str = setting("", "the Audio column; unset: the only column of bytes and path")
    caption_columns: tuple[str, ...] = setting(
        (),
        "language=column ..., e.g. eng=caption fra=caption_fr; unset: eng from caption, captions, text or caption_1 ..., or an "
        "object by language there",
    )
    id_column: str = setting(
        "",
        "column of clip ids, or row for SPLIT-NUMBER; unset: clip_id, id, youtube_id, file_name, else the audio's path",
    )
    label_column: str = setting("", "column of labels; unset: none")
    split: str = setting("train", "split of files whose name contains none")

    def entries(self) -> Iterator[source.Entry]:
        folder = locate(self.source, keeps_links=True)
        files = source.list_files(folder)
        tables = [path for path in files if path.endswith((".parquet", ".arrow")) and "cache-" not in path]
        if not tables:
            raise ValueError(f"{folder}: no .parquet or .arrow file of a Hugging Face data set")
        names = set(files)
        rows_of_split: Counter[str] = Counter()
        for path in tables:
            split = self._split_of(path)
            rows = enumerate(_rows(folder, path, self._columns), start=1)
            for number, (group, row, values, audio_column) in rows:
                at = f"{folder}/{path}, row {number}"
                clip_id = self._id(values, f"{split}-{rows_of_split[split]:07d}")
                rows_of_split[split] += 1
                if values["has bytes"]:
                    place = source.AudioLocation(f"{folder}/{path}", path.rpartition(".")[2], group, row, audio_column)
                else:
                    inner = values["audio path"] or ""
                    place = source.location_in(folder, inner, at)
                    if inner not in names:
                        absent = f"the table holds no audio, and {inner or 'no path'} is not there"
                        yield source.Entry(clip_id=clip_id, place=None, split=split, absent=absent)
                        continue
                captions = self._captions(values, at)
                if not any(map(any, captions.values())):
                    yield source.Entry(clip_id=clip_id, place=None, split=split, absent=f"{at}: no caption")
                    continue
                labels = source.labels_of(values.get(self.label_column) if self.label_column else None, f"{at}, label")
                yield source.Entry(clip_id=clip_id, place=place, captions=captions, labels=labels, split=split)

    def _split_of(self, path: str) -> str:
        *folders, name = path.split("/")
        match = IN_NAME.fullmatch(name)
        words = [match["split"] if match else "", *(folder.removeprefix("partial-") for folder in reversed(folders))]
        splits = [source.SPLIT_OF.get(word, word) for word in words]
        usual = (split for split in splits if split in SPLITS or split.startswith(("train_", "test_", "val_")))
        return next(usual, self.split)

    def _columns(self, file: str, schema: pa.Schema) -> tuple[str, list[str]]:
        """The Audio column of a file and the others to read. ValueError if one that was asked for is not there."""
        structs = [field for field in schema if pa.types.is_struct(field.type)]
        audio = [field.name for field in structs if {"bytes", "path"} <= {inner.name for inner in field.type}]
        chosen = (self.id_column if self.id_column != ROW_NUMBER else "", self.label_column, self.audio_column)
        wanted = [*self._assigned.values(), *filter(None, chosen)]
        for column in wanted:
            if column not in schema.names:
                has = f"{', '.join(schema.names)}{nearest(column, schema.names)}"
                raise ValueError(f"{file}: column {column} is missing; it has {has}")
        if self.audio_column and self.audio_column not in audio:
            allowed = "a column of bytes and path: " + ", ".join(audio)
            raise refuse(f"{file}, audio_column", self.audio_column, allowed)
        if not self.audio_column and len(audio) != 1:
            kinds = ", ".join(f"{field.name} ({field.type})" for field in schema)
            columns = f"{len(audio)} Audio columns (of bytes and path)"
            raise ValueError(f"{file}: {columns}; choose with --audio-column: {kinds}")
        others = [name for name in schema.names if name not in audio]
        if not self.caption_columns and not any(map(CAPTION_COLUMNS.fullmatch, others)):
            raise ValueError(f"{file}: no caption; choose its column with --caption-columns: {', '.join(others)}")
        return self.audio_column or audio[0], others

    @cached_property
    def _assigned(self) -> dict[str, str]:
        """Language -> column, of `caption_columns`."""
        assigned = {}
        for assignment in self.caption_columns:
            language, equals, column = assignment.partition("=")
            if not equals or not column:
                raise ValueError(f"caption_columns: got {assignment!r}; allowed LANGUAGE=COLUMN such as fra=caption_fr")
            assigned[check_language(language, "caption_columns")] = column
        return assigned

    def _captions(self, values: Mapping[str, Any], at: str) -> dict[str, list[str]]:
        """The captions of a row by language, blank where a list of several languages lacks one."""
        if self._assigned:
            return {
                language: source.texts_of(values[column], f"{at}, {column}", blanks=True)
                for language, column in self._assigned.items()
            }
        return source.texts_by_language(values, at, ENGLISH, ("text", "texts"))

    def _id(self, values: Mapping[str, Any], default: str) -> str:
        if self.id_column == ROW_NUMBER:
            return default
        columns = (*((self.id_column,) if self.id_column else ID_COLUMNS), "audio path")
        given = next(filter(None, (source.cell_of(values, name) for name in columns)), "")
        return source.stem(given) or default

    def id_of(self, row: Mapping[str, Any]) -> str | None:
        # With ROW_NUMBER no column of the export has the ids, and one of that name in another table means something else.
        given = source.cell_of(row, self.id_column) if self.id_column not in ("", ROW_NUMBER) else ""
        return source.stem(given) or super().id_of(row)


def _rows(folder: Location, path: str, choose: Any) -> Iterator[tuple[int, int, dict[str, Any], str]]:
    """Row group (or record batch), row in it, values, Audio column. Of the audio only its path and presence are kept."""
    file = f"{folder}/{path}"
    with open_arrow(folder / path) as opened, arrow_errors(file, "cannot be read"):
        if path.endswith(".parquet"):
            parquet = pq.ParquetFile(opened)
            schema = parquet.schema_arrow
            column, others = choose(file, schema)
            groups = (_rows_of_group(parquet, group, column, others) for group in range(parquet.num_row_groups))
        else:
            reader = pa.ipc.open_stream(opened)
            schema = reader.schema
            column, others = choose(file, schema)
            groups = (_values(batch.select([column, *others]), column) for batch in reader)
        names = _class_names(schema)
        for group, rows in enumerate(groups):
            for row, values in enumerate(rows):
                named = {name: _in_names(values[name], names[name]) for name in names.keys() & values.keys()}
                yield group, row, values | named, column


def _class_names(schema: pa.Schema) -> dict[str, list[str]]:
    """The class names of each column of class labels; rows have the classes' numbers. As `datasets` writes them."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        kinds = {name: kind.get("feature", kind) for name, kind in features.items() if isinstance(kind, dict)}
        return {name: kind["names"] for name, kind in kinds.items() if kind.get("_type") == "ClassLabel"}
    except (KeyError, TypeError, AttributeError, ValueError):
        return {}


def _in_names(value: Any, names: list[str]) -> Any:
    """A class number, or a list of them, as names; None for -1, which stands for no class."""
    if isinstance(value, list):
        return [name for item in value if (name := _in_names(item, names)) is not None]
    return None if value == -1 else names[value] if value in range(len(names)) else value


def _rows_of_group(parquet: pq.ParquetFile, group: int, column: str, others: list[str]) -> Iterator[dict[str, Any]]:
    have_audio = _has_bytes(parquet.metadata.row_group(group), column)
    # The file's statistics mostly tell which rows hold audio; where they do not, the audio itself must be read.
    columns = [f"{column}.path" if have_audio is not None else column, *others]
    for batch in parquet.iter_batches(batch_size=32, row_groups=[group], columns=columns):
        yield from _values(batch, column, have_audio)


def _has_bytes(group: Any, column: str) -> bool | None:
    """Whether all (True) or none (False) of a row group's rows hold audio; None if the statistics do not tell."""
    chunks = map(group.column, range(group.num_columns))
    statistics = next((chunk.statistics for chunk in chunks if chunk.path_in_schema == f"{column}.bytes"), None)
    if statistics is None or not statistics.has_null_count:
        return None
    return {0: True, group.num_rows: False}.get(statistics.null_count)


def _values(batch: pa.RecordBatch, audio_column: str, have_audio: bool | None = None) -> Iterator[dict[str, Any]]:
    """The rows, with `audio path` and whether they hold the audio, `has bytes`: `have_audio`, or each row's own value if None."""
    # Arrow itself trusts the offsets of a file, and reads beyond its end.
    batch.validate(full=True)
    audio = batch.column(audio_column)
    paths = audio.field("path").to_pylist()
    has_bytes = [have_audio] * batch.num_rows if have_audio is not None else audio.field("bytes").is_valid().to_pylist()
    rows = batch.drop_columns([audio_column]).to_pylist() if batch.num_columns > 1 else [{}] * batch.num_rows
    for row, is_there, path in zip(rows, has_bytes, paths, strict=True):
        yield {**row, "has bytes": is_there, "audio path": path}
