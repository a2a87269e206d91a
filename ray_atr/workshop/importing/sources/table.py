"""Any folder of audio with a table of `path, caption[, language, split, clip_id, label]`, one row a caption or a clip."""

from __future__ import annotations

import contextlib
import posixpath
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from ray_atr.common.language_codes import has_two_letters, language_by_name
from ray_atr.common.sampling import uniform
from ray_atr.common.settings import counted, nearest, refuse, setting, shortened
from ray_atr.common.storage import Location, file_exists, locate
from ray_atr.data.schema import check_language, check_split
from ray_atr.data.shards import Skipped
from ray_atr.workshop.importing.sources import source
from ray_atr.workshop.importing.sources.read_table import TABLE_SUFFIXES, Reading, read_table, require_columns

LEAST_DRAWN = 20
"""Clips without a split from which a tenth each is drawn for val and test; fewer clips are all in train."""
USUAL_CAPTIONS = re.compile(r"captions?|caption_\d+")
NAMED = 3
"""Number of files without a row that a note lists."""


@dataclass(frozen=True, kw_only=True)
class TableSource(source.Source):
    """A folder of audio files and one table (CSV, TSV, JSON lines, Parquet) with the columns path and caption."""

    name: ClassVar[str] = "folder"
    licence: ClassVar[str] = "as given by the owner of the folder"
    remedy: ClassVar[str] = " (--id-column names another column of them)"

    table: str = setting("", "the table, below --source; unset: the only one there")
    path_column: str = setting("path", "column with the path of the audio, below --source")
    caption_column: tuple[str, ...] = setting(
        (),
        "columns of captions, LANGUAGE=COLUMN or COLUMN ..., which may be named by a language or its code; unset: caption, "
        "captions, caption_1, caption_2, ...",
    )
    split_column: str = setting("split", "column with the split of a clip")
    language_column: str = setting("language", "column with the ISO 639 code of a row's captions")
    id_column: str = setting("clip_id", "column of clip ids; clips without one are named after their path")
    language: str = setting("eng", "ISO 639 code of captions whose row or column names none")
    split: str = setting(
        "", "split of clips whose row names none; unset: train, and a tenth each in val and test if no row names one"
    )
    delimiter: str = setting("", "what separates the columns of a CSV table: a character, or tab; unset: detected")
    encoding: str = setting("", "encoding of a text table, such as cp1252; unset: detected")
    drop_bad_rows: bool = setting(False, "leave out the rows that cannot be read, and list them")

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "language", check_language(self.language, "language"))
        if self.split:
            check_split(self.split)
        _ = self._columns

    def entries(self) -> Iterator[source.Entry | Skipped | str]:
        folder = locate(self.source, keeps_links=True)
        files = source.list_files(folder)
        table = f"{folder}/{_choose_table(files, self.table, str(folder))}"
        reading = Reading(self.delimiter, self.encoding, self.drop_bad_rows, {self.path_column: "--path-column"})
        # A name may be composed on disk and decomposed in the table, or the other way.
        stored = {unicodedata.normalize("NFC", path): path for path in files} | {path: path for path in files}
        clips = self._read(folder, table, reading, stored)
        ids = _ids(clips)
        for path, clip in clips.items():
            is_there = path in stored or file_exists(folder / path)
            yield source.Entry(
                clip_id=ids[path],
                place=source.AudioLocation(f"{folder}/{path}") if is_there else None,
                captions=clip.captions,
                labels=tuple(clip.labels),
                split=clip.split,
                alias=_relative(clip.place),
                absent=f"{clip.place} is not there",
            )
        yield from reading.bad_rows
        yield from reading.notes
        if unnamed := [path for path in files if source.is_audio(path) and path not in clips]:
            shown = ", ".join(unnamed[:NAMED]) + (", ..." if len(unnamed) > NAMED else "")
            yield f"{counted(len(unnamed), 'audio file is', 'audio files are')} named by no row: {shortened(shown)}"

    def _read(
        self, folder: Location, table: str, reading: Reading, stored: Mapping[str, str]
    ) -> dict[str, source.ListedClip]:
        """The clips by path, in the order of their first rows; `stored` has the path on disk of each name that a table may use.
        ValueError for a wrong row, or the row is dropped.
        """
        clips: dict[str, source.ListedClip] = {}
        blank = 0
        columns: dict[str, None] = {}
        usual = TableSource(source="")
        names = ("split_column", "language_column", "id_column")
        chosen = [getattr(self, name) for name in names if getattr(self, name) != getattr(usual, name)]
        for at, row in read_table(table, [self.path_column, *chosen], reading):
            columns.update(dict.fromkeys(row))
            try:
                self._add(clips, row, at, folder, stored)
            except ValueError as error:
                reading.refuse_row(at, str(error))
            else:
                blank += self.split_column in row and not source.cell_of(row, self.split_column)
        # Only now, since a JSON line may leave out a language in which it has no caption.
        require_columns(table, list(columns), [column for _, column in self._columns])
        if blank:
            reading.notes.append(source.blank_splits(blank, self.split or "train"))
        if not self.split and self.split_column not in columns and len(clips) >= LEAST_DRAWN:
            drawn = _draw_splits(clips, source.contents_of(folder, [path for path in clips if path in stored]))
            # The number of training clips is not given: unreadable clips are left out later.
            reading.notes.append(
                f"no column {self.split_column}: of {len(clips):,} clips {drawn['val']:,} were drawn for val and "
                f"{drawn['test']:,} for test; --split train takes all to train"
            )
        named = [f"{column} ({code})" for code, column in self._columns if code and column in self.caption_column]
        if named:
            reading.notes.append(f"columns of captions by language: {', '.join(named)}")
        if unread := self._unread(columns):
            reading.notes.append(f"columns that were not read: {shortened(', '.join(unread), 200)}")
        return clips

    def _add(
        self,
        clips: dict[str, source.ListedClip],
        row: Mapping[str, Any],
        at: str,
        folder: Location,
        stored: Mapping[str, str],
    ) -> None:
        path = source.cell_of(row, self.path_column)
        if not path:
            raise ValueError(f"{at}: {self.path_column} is blank")
        # Refuses a path that leaves the folder, whether or not it exists.
        source.location_in(folder, path, at)
        captions = self._captions(row, at)
        if not captions:
            asked = [column for _, column in self._columns]
            if asked and not any(column in row for column in asked):
                require_columns(at, list(row), asked)
            if blank := asked or [name for name in row if USUAL_CAPTIONS.fullmatch(name)]:
                remedy = "" if self.drop_bad_rows else "; --drop-bad-rows leaves such rows out"
                raise ValueError(f"{at}: no caption in {shortened(', '.join(blank))}{remedy}")
            which = "--caption-column COLUMN or LANGUAGE=COLUMN says which have captions"
            raise ValueError(f"{at}: no caption; its columns are {shortened(', '.join(row))}; {which}")
        split = self._split(row, f"{at}, {self.split_column}")
        labels = source.labels_of(row.get("labels") or row.get("label"), f"{at}, label")
        relative = _relative(path)
        given = source.cell_of(row, self.id_column)
        if not (given or relative).isprintable():
            column, allowed = (
                (self.id_column, "") if given else (self.path_column, f", or an id in column {self.id_column}")
            )
            raise refuse(f"{at}, {column}", given or relative, f"printable text{allowed}")
        stored_path = stored.get(relative) or stored.get(unicodedata.normalize("NFC", relative), relative)
        clip = clips.setdefault(stored_path, source.ListedClip(path, given, split, at))
        if (clip.given_id, clip.split) != (given, split):
            raise ValueError(f"{at}: {path} has another split or clip_id in an earlier row ({clip.at})")
        # In a row with several languages a text is one sentence in all of them, also if an earlier row lacks a language.
        first = max(map(len, clip.captions.values()), default=0) if len(captions) > 1 else 0
        for language, texts in captions.items():
            own_texts = clip.captions.setdefault(language, [])
            own_texts += [""] * (first - len(own_texts)) + texts
        clip.labels += [label for label in labels if label not in clip.labels]

    def _captions(self, row: Mapping[str, Any], at: str) -> dict[str, list[str]]:
        """The captions of a row by language: from the columns asked for, an object by language, or the usual columns."""
        row_language = check_language(
            source.cell_of(row, self.language_column) or self.language, f"{at}, {self.language_column}"
        )
        if self.caption_column:
            captions: dict[str, list[str]] = {}
            several = len({language or row_language for language, _ in self._columns}) > 1
            for language, column in self._columns:
                cell = source.texts_of(row.get(column), f"{at}, {column}", blanks=several)
                captions.setdefault(language or row_language, []).extend(cell)
            return captions if any(map(any, captions.values())) else {}
        return source.texts_by_language(row, at, row_language)

    def _split(self, row: Mapping[str, Any], at: str) -> str:
        """A row's split. ValueError, with what may be meant, for a name that a split cannot have."""
        given = source.cell_of(row, self.split_column)
        try:
            return check_split(given or self.split or "train", at)
        except ValueError as error:
            meant = source.SPLIT_OF.get(given.casefold())
            raise ValueError(f"{error}" + (f" (did you mean {meant}?)" if meant else "")) from None

    def _unread(self, columns: Collection[str]) -> list[str]:
        """The columns of a table that this source does not read, each with the one that may be meant."""
        optional = (self.split_column, self.language_column, self.id_column)
        read = {self.path_column, *optional, "label", "labels", *(column for _, column in self._columns)}
        if not self.caption_column:
            read |= {name for name in columns if USUAL_CAPTIONS.fullmatch(name)}
        absent = [column for column in (*optional, "label", "caption") if column not in columns]
        return [column + nearest(column, absent, 0.7) for column in columns if column and column not in read]

    @cached_property
    def _columns(self) -> list[tuple[str, str]]:
        """(language, column) of each caption column that was asked for; the language is empty if none was named.

        If all columns are named by languages that have a code of two letters, or by their codes, they are in those languages.
        Rarer codes do not count: `txt` and `cap` are codes too. ValueError if only some are, and not by `language`: their texts
        would be taken for captions in `language`.
        """
        called = {entry: _language_called(entry) or "" for entry in self.caption_column if "=" not in entry}
        are_languages = all(called.values())
        others = [entry for entry, code in called.items() if code and check_language(code, entry) != self.language]
        if others and not are_languages:
            allowed = "LANGUAGE=COLUMN for each column, as not all of them are named by a language"
            raise refuse("--caption-column", others[0], allowed)
        columns = []
        for entry in self.caption_column:
            language, _, column = entry.partition("=")
            if entry in called:
                language, column = called[entry] if are_languages else "", entry
            is_named = entry not in called or are_languages
            columns.append((check_language(language, "--caption-column") if is_named else "", column))
        return columns

    def id_of(self, row: Any) -> str | None:
        given, path = source.cell_of(row, self.id_column), source.cell_of(row, self.path_column)
        return given or (_relative(path) if path else super().id_of(row))


def _language_called(name: str) -> str | None:
    """The language whose code or name a column has, if that language, or one of its family, has a code of two letters."""
    code = name if len(name) in (2, 3) and name.isascii() else language_by_name(name)
    with contextlib.suppress(ValueError):
        return code if code is not None and has_two_letters(code) else None
    return None


def _relative(path: str) -> str:
    """The one way to write a path of a table: `a.wav` for `./a.wav`, `b//../a.wav` and `.\\a.wav`."""
    return posixpath.normpath(path.replace("\\", "/"))


def _ids(clips: Mapping[str, source.ListedClip]) -> dict[str, str]:
    """The id of each path: its own, else the path without its audio suffix, or with it where another clip has that id or path."""
    full = {path: _relative(clip.place) for path, clip in clips.items()}
    short = {path: clip.given_id or source.without_suffix(full[path]) for path, clip in clips.items()}
    count = Counter(short.values()) + Counter(full.values())
    return {path: name if clips[path].given_id or count[name] == 1 else full[path] for path, name in short.items()}


def _draw_splits(clips: Mapping[str, source.ListedClip], contents: Mapping[str, str]) -> Counter[str]:
    """Put a tenth of the clips into val and a tenth into test, by their paths alone; the count of each split.

    Files with the same content go together, into train if they are more than val and test have room for: a recording in two
    splits would be a leak.
    """
    copies: dict[str, list[str]] = {}
    for path in clips:
        copies.setdefault(contents.get(path, path), []).append(path)
    room = dict.fromkeys(("val", "test"), len(clips) // 10)
    paths, drawn = list(clips), uniform([_relative(clip.place) for clip in clips.values()], 0, "splits of a folder")
    for number in np.argsort(drawn, kind="stable"):
        same_content = copies.pop(contents.get(paths[number], paths[number]), [])
        split = next((split for split, left in room.items() if len(same_content) <= left), "train")
        for path in same_content:
            clips[path].split = split
        if split in room:
            room[split] -= len(same_content)
    return Counter(clip.split for clip in clips.values())


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
