"""Any folder of audio with a table of `path, caption[, language, split, clip_id, label]`, one row a caption or a clip."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ray_atr.data.importing.sources.read_table import TABLE_SUFFIXES, Reading, read_table, require_columns
from ray_atr.data.importing.sources.source import (
    Absent,
    Entry,
    ListedClip,
    Note,
    Place,
    Source,
    blank_splits,
    captions_of,
    cell_of,
    is_audio,
    labels_of,
    list_files,
    place_in,
    texts_of,
    without_suffix,
)
from ray_atr.data.schema import check_captions, check_language, check_split
from ray_atr.data.shards import Skipped
from ray_atr.settings import counted, refuse, setting, shortened
from ray_atr.storage import open_folder

NAMED = 3
"""Files that no row names which a note lists."""


@dataclass(frozen=True, kw_only=True)
class TableSource(Source):
    """A folder of audio files and one table (CSV, TSV, JSON lines, Parquet) with the columns path and caption."""

    name: ClassVar[str] = "folder"
    licence: ClassVar[str] = "as given by the owner of the folder"

    table: str = setting("", "the table, below --source; unset: the only one there")
    path_column: str = setting("path", "column with the path of the audio, below --source")
    caption_column: tuple[str, ...] = setting(
        (), "columns of captions, COLUMN or LANGUAGE=COLUMN ...; unset: caption, captions, caption_1, caption_2, ..."
    )
    id_column: str = setting("clip_id", "column of clip ids; clips without one are named after their path")
    language: str = setting("eng", "ISO 639 code of captions without a column language")
    split: str = setting("train", "split of clips without a column split")
    delimiter: str = setting("", "what separates the columns of a CSV table: a character, or tab; unset: detected")
    encoding: str = setting("", "encoding of a text table, such as cp1252; unset: detected")
    drop_bad_rows: bool = setting(False, "leave out the rows that cannot be read, and list them")

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "language", check_language(self.language, "language"))
        check_split(self.split)
        self._columns()

    def entries(self) -> Iterator[Entry | Absent | Note | Skipped]:
        folder = open_folder(self.source)
        files = list_files(folder)
        # A name may be composed on disk and decomposed in the table, or the other way.
        there = {unicodedata.normalize("NFC", path): path for path in files}
        table = folder.file(_choose_table(files, self.table, folder.name))
        reading = Reading(self.delimiter, self.encoding, self.drop_bad_rows)
        clips = self._read(table, reading)
        named: set[str] = set()
        ids = _ids(clips)
        for path, clip in clips.items():
            try:
                # Checked before presence, so that a path outside the folder is refused whether or not it exists.
                place = place_in(folder, clip.place, clip.at)
            except ValueError as error:
                reading.refuse_row(clip.at, str(error))
                continue
            composed = unicodedata.normalize("NFC", path)
            found = there.get(composed, path)
            if composed not in there and not folder.exists(found):
                yield Absent(ids[path], clip.split, f"{clip.place} is not there")
                continue
            named.add(found)
            place = place if found == path else Place(folder.file(found))
            captions, labels = {code: tuple(texts) for code, texts in clip.captions.items()}, tuple(clip.labels)
            yield Entry(clip_id=ids[path], place=place, captions=captions, labels=labels, split=clip.split, alias=path)
        yield from reading.bad_rows
        yield from map(Note, reading.notes)
        if unnamed := [path for path in files if is_audio(path) and path not in named]:
            shown = ", ".join(unnamed[:NAMED]) + (", ..." if len(unnamed) > NAMED else "")
            yield Note(
                f"{counted(len(unnamed), 'audio file is', 'audio files are')} named by no row: {shortened(shown)}"
            )

    def _read(self, table: str, reading: Reading) -> dict[str, ListedClip]:
        """The clips by path, in the order of their first rows. ValueError, or a dropped row, for one that is not right."""
        clips: dict[str, ListedClip] = {}
        blank = 0
        for at, row in read_table(table, [self.path_column], reading):
            try:
                self._add(clips, row, at)
            except ValueError as error:
                reading.refuse_row(at, str(error))
            else:
                blank += "split" in row and not cell_of(row, "split")
        if blank:
            reading.notes.append(blank_splits(blank, self.split))
        return clips

    def _add(self, clips: dict[str, ListedClip], row: Mapping[str, Any], at: str) -> None:
        path = cell_of(row, self.path_column)
        if not path:
            raise ValueError(f"{at}: {self.path_column} is blank")
        captions = self._captions(row, at)
        if not captions:
            raise ValueError(f"{at}: no caption; its columns are {shortened(', '.join(row))}")
        split = check_split(cell_of(row, "split") or self.split, f"{at}, split")
        labels = labels_of(row.get("labels") or row.get("label"), f"{at}, label")
        relative = _relative(path)
        given = cell_of(row, self.id_column)
        clip = clips.setdefault(relative, ListedClip(path, given, split, at))
        if (clip.given_id, clip.split) != (given, split):
            raise ValueError(f"{at}: {path} has another split or clip_id in an earlier row ({clip.at})")
        for language, texts in captions.items():
            clip.captions.setdefault(language, []).extend(texts)
        clip.labels += [label for label in labels if label not in clip.labels]

    def _captions(self, row: Mapping[str, Any], at: str) -> dict[str, list[str]]:
        """The captions of a row by language: from the columns asked for, an object by language, or the usual columns."""
        own = check_language(cell_of(row, "language") or self.language, f"{at}, language")
        if self.caption_column:
            require_columns(at, list(row), [column for _, column in self._columns()])
            found: dict[str, list[str]] = {}
            for language, column in self._columns():
                found.setdefault(language or own, []).extend(texts_of(row[column], f"{at}, {column}"))
            return {language: texts for language, texts in found.items() if texts}
        by_language = next((row[name] for name in ("captions", "caption") if isinstance(row.get(name), dict)), None)
        if by_language is not None:
            texts = {code: texts_of(value, f"{at}, captions[{code}]") for code, value in by_language.items()}
            return {code: list(own) for code, own in check_captions({c: t for c, t in texts.items() if t}, at).items()}
        texts_of_row = captions_of(row, at)
        return {own: texts_of_row} if texts_of_row else {}

    def _columns(self) -> list[tuple[str, str]]:
        """(language, column) of each caption column that was asked for; the language is empty if none was named."""
        columns = []
        for entry in self.caption_column:
            language, equals, column = entry.partition("=")
            columns.append((check_language(language, "caption_column"), column) if equals else ("", entry))
        return columns

    def id_of(self, row: Any) -> str | None:
        given, path = cell_of(row, self.id_column), cell_of(row, self.path_column)
        return given or (_relative(path) if path else super().id_of(row))


def _relative(path: str) -> str:
    return path.replace("\\", "/").removeprefix("./")


def _ids(clips: Mapping[str, ListedClip]) -> dict[str, str]:
    """The id of each path: its own, else the path without its audio suffix, or with it where two would be called alike."""
    short = {path: clip.given_id or without_suffix(path) for path, clip in clips.items()}
    count = Counter(short.values())
    return {path: name if clips[path].given_id or count[name] == 1 else path for path, name in short.items()}


def _choose_table(files: list[str], wanted: str, folder: str) -> str:
    tables = [path for path in files if path.lower().endswith(TABLE_SUFFIXES)]
    if wanted and wanted.removeprefix("./") not in files:
        raise refuse("table", wanted, shortened(", ".join(tables)) or f"a table in {folder}")
    if wanted:
        return wanted.removeprefix("./")
    if not tables:
        raise ValueError(f"{folder}: no table of captions; allowed {', '.join(TABLE_SUFFIXES)} with path, caption")
    if len(tables) > 1:
        raise ValueError(f"{folder}: several tables; choose with --table: {shortened(', '.join(tables))}")
    return tables[0]
