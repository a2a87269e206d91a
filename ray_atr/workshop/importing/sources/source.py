"""What every source yields: entries, which are clips with captions and the location of their audio, not yet read."""

from __future__ import annotations

import difflib
import errno
import math
import os
import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from ray_atr.common.locations import with_retries
from ray_atr.common.settings import Settings, counted, refuse, setting
from ray_atr.common.storage import Location, changed_at, files_below, is_local, opened
from ray_atr.data.decoding import AUDIO_SUFFIXES
from ray_atr.data.schema import SPLITS, aligned_captions, check_captions, check_language
from ray_atr.data.shards import MANIFEST_FILE, Skipped, hash_of_file, open_arrow
from ray_atr.workshop.importing.sources.read_table import file_at


@dataclass(frozen=True)
class AudioLocation:
    """Where a clip's encoded audio is. `kind` file: the whole of `file`; span: `second` bytes from byte `first` of it;
    parquet and arrow: `column`, in row group or record batch `first`, row `second`.
    """

    file: str
    kind: str = "file"
    first: int = 0
    second: int = 0
    column: str = ""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A clip of the source's tables. Without a `place` it is not imported."""

    clip_id: str
    place: AudioLocation | None
    captions: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By language; blank where a sentence lacks the language."""
    labels: Sequence[str] = ()
    split: str
    translated: Sequence[str] = ()
    alias: str = ""
    """Another name of the clip, which tables of further captions may use."""
    absent: str = ""
    """Why there is no `place`, if there is none; empty where some audio is always missing in this data set."""


SPLIT_OF = {
    **{split: split for split in SPLITS},
    **dict.fromkeys(("validation", "valid", "dev"), "val"),
    **dict.fromkeys(("evaluation", "eval", "testing"), "test"),
}
"""The split that a word in the name of a file or folder stands for."""
SHARD = re.compile(r"(.+)/[^/]+-\d{5}\.parquet")
"""A shard of a data set below a folder, and the data set's folder."""
UNUSUAL_SPLIT = "split that training looks for only if --data.train_split or the like names it (not train, val, test)"


def unusual_splits(splits: Iterable[str]) -> list[str]:
    """The splits whose names training does not use by default, each with the name that may be meant."""
    unusual = [split for split in splits if split not in SPLITS]
    close = {split: difflib.get_close_matches(split, SPLIT_OF, n=1, cutoff=0.5) for split in unusual}
    return [split + "".join(f" (did you mean {SPLIT_OF[name]}?)" for name in names) for split, names in close.items()]


def blank_splits(count: int, split: str) -> str:
    """The note on rows with a blank cell in the column of splits."""
    return f"blank splits: {counted(count, 'row')}, taken to be in {split} (--split)"


ID_COLUMNS = ("file_name", "filename", "fname", "path", "youtube_id", "id")


@dataclass(frozen=True, kw_only=True)
class Source(Settings):
    """A data set on disk. Subclasses read one layout: `entries` yields every clip once, in a fixed order."""

    name: ClassVar[str]
    licence: ClassVar[str]
    remedy: ClassVar[str] = ""
    """What the user may do about two clips with one id."""

    source: str = setting(help="folder or URL of the data set", path="always")

    def entries(self) -> Iterator[Entry | Skipped | str]:
        """The clips, with captions read and audio located but not read. Dropped rows of tables are `Skipped`, and what a person
        should know of the import is a text. ValueError if the layout is not that of this source.
        """
        raise NotImplementedError

    def id_of(self, row: Mapping[str, Any]) -> str | None:
        """The clip that a row of an extra caption file speaks of, or None if no column names a clip."""
        given = next(filter(None, (cell_of(row, name) for name in ID_COLUMNS)), "")
        return cell_of(row, "clip_id") or stem(given).strip() or None


@dataclass
class ListedClip:
    """A clip that rows of a table speak of: its path or number there, its id, its split, and where its first row is."""

    place: Any
    given_id: str
    split: str
    at: str
    captions: dict[str, list[str]] = field(default_factory=dict)
    labels: list[str] = field(default_factory=list)


def aligned(entries: Iterable[Entry | Skipped | str]) -> Iterator[Entry | Skipped | str]:
    """What a source yields, with captions `in_place`; at the end a remark on those that were left out for this."""
    lost = 0
    for entry in entries:
        if isinstance(entry, Entry) and entry.place is not None:
            captions, num_lost = in_place(entry.captions)
            lost += num_lost
            entry = replace(
                entry, captions=captions, translated=[code for code in entry.translated if code in captions]
            )
        yield entry
    if lost:
        yield (
            f"{counted(lost, 'caption')} left out: other captions of the clip have blank translations, so caption j would not "
            "be one sentence in every language"
        )


def in_place(captions: Mapping[str, Sequence[str]]) -> tuple[dict[str, tuple[str, ...]], int]:
    """Captions by language so that caption j is one sentence in every language. Given ones are blank where a sentence lacks a
    language. Also the number of captions that had to be left out for this; all stay if no sentence has two languages.

    >>> in_place({"eng": ["A dog.", "Rain."], "deu": ["", "Regen."]})
    ({'eng': ('Rain.', 'A dog.'), 'deu': ('Regen.',)}, 0)
    """
    given = {code: {slot: text for slot, text in enumerate(texts) if text} for code, texts in captions.items()}
    if len(set().union(*given.values())) == sum(map(len, given.values())):
        return {code: tuple(texts.values()) for code, texts in given.items() if texts}, 0
    aligned = aligned_captions(given)
    return aligned, sum(map(len, given.values())) - sum(map(len, aligned.values()))


def captions_of(row: Mapping[str, Any], at: str) -> list[str]:
    """The captions in a row: `caption`, `captions`, `caption_1`, `caption_2`, ... in this order, blanks left out. A
    cell may hold one text or a list of them. ValueError, beginning with `at`, for anything else.
    """
    numbers = [name.removeprefix("caption_") for name in row if name.startswith("caption_")]
    numbered = [f"caption_{number}" for number in sorted(filter(str.isdigit, numbers), key=lambda n: (int(n), n))]
    names = [name for name in ("caption", "captions") if name in row] + numbered
    return [text for name in names for text in texts_of(row[name], f"{at}, {name}")]


def texts_of(value: Any, at: str, *, blanks: bool = False) -> list[str]:
    """The texts in a cell that holds one text or a list of texts. An absent or blank text is left out, or with `blanks` becomes
    an empty one. ValueError for anything else.
    """
    values = value if isinstance(value, list | tuple) else [value]
    for text in values:
        if not isinstance(text, str) and not is_absent(text):
            raise refuse(at, text, "a text, or a list of texts")
    texts = [text if isinstance(text, str) and text.strip() else "" for text in values]
    return texts if blanks else list(filter(None, texts))


def texts_by_language(
    row: Mapping[str, Any], at: str, language: str, others: Sequence[str] = ()
) -> dict[str, list[str]]:
    """The captions of a row by language: of an object in `captions` or `caption`, which has a text or a list of texts for each
    language, where a blank text becomes an empty one; else the row's own (`captions_of`), or those of the first of the `others`
    among the columns that has any, in `language`. ValueError for an unknown or repeated language.
    """
    by_language = next((row[name] for name in ("captions", "caption") if isinstance(row.get(name), dict)), None)
    if by_language is None:
        of_others = (texts_of(row.get(name), f"{at}, {name}") for name in others)
        texts = captions_of(row, at) or next(filter(None, of_others), [])
        return {check_language(language, f"{at}, language"): texts} if texts else {}
    cells = {code: texts_of(texts, f"{at}, captions[{code}]", blanks=True) for code, texts in by_language.items()}
    cells = {code: cell for code, cell in cells.items() if any(cell)}
    # Checked without the blanks, which say where a sentence has no translation.
    check_captions({code: list(filter(None, cell)) for code, cell in cells.items()}, at)
    return {check_language(code, at): cell for code, cell in cells.items()}


def labels_of(value: Any, at: str) -> tuple[str, ...]:
    """The labels in a cell that holds one, a list of them, or none. ValueError for anything else."""
    values = value if isinstance(value, list | tuple) else [value]
    for label in values:
        if isinstance(label, dict | list | tuple | bytes):
            raise refuse(at, label, "a label, or a list of labels")
    return tuple(str(label).strip() for label in values if not is_absent(label) and str(label).strip())


def cell_of(row: Mapping[str, Any], column: str) -> str:
    """The text in a cell, without blanks around it; empty if there is none."""
    value = row.get(column)
    return "" if is_absent(value) else str(value).strip()


def is_absent(value: Any) -> bool:
    """Whether a cell holds nothing: None, or the number that stands for nothing in tables of pandas."""
    return value is None or (isinstance(value, float) and math.isnan(value))


# --- places


def read_location(place: AudioLocation) -> bytes:
    """The encoded audio. OSError if it cannot be read, ValueError if the place holds none."""
    location = file_at(place.file)
    if place.kind in ("parquet", "arrow"):
        value = _column(place.file, place.kind, place.first, place.column, changed_at(location))[place.second].as_py()
        if isinstance(value, dict):
            value = value["bytes"]
        if not value:
            raise ValueError("the table holds no audio for it")
        return bytes(value)
    if is_local(location) and location.exists() and not location.is_file():
        # A pipe would be waited for.
        raise OSError(errno.EINVAL, "is no file", place.file)
    with opened(location) as file:
        file.seek(place.first)
        return bytes(file.read(-1 if place.kind == "file" else place.second))


@lru_cache(maxsize=1)
def _column(file: str, kind: str, group: int, column: str, _changed: int) -> pa.Array:
    # One group at a time: the clips of a shard follow each other in the table.
    with open_arrow(file_at(file)) as source:
        if kind == "parquet":
            return pq.ParquetFile(source).read_row_group(group, columns=[column]).column(column).combine_chunks()
        for index, batch in enumerate(pa.ipc.open_stream(source)):
            if index == group:
                return batch.column(column)
    raise ValueError(f"{file}: no record batch {group}")


def list_files(folder: Location) -> list[str]:
    """The paths of all files below a folder, relative to it, sorted. Left out are hidden files, files whose names are not UTF-8,
    which no table can name, and data sets that were imported to folders below it. ValueError if there are none.
    """
    shown = (path for path in files_below(folder) if not any(part.startswith(".") for part in path.split("/")))
    files = [path for path in shown if path == path.encode(errors="ignore").decode()]
    if not files:
        raise ValueError(f"{folder}: the folder is empty or does not exist")
    manifests = {path for path in files if path.endswith(f"/{MANIFEST_FILE}")}
    imported = {
        match[1] for match in map(SHARD.fullmatch, files) if match and f"{match[1]}/{MANIFEST_FILE}" in manifests
    }
    return [path for path in files if path.rpartition("/")[0] not in imported]


def contents_of(folder: Location, paths: Sequence[str]) -> dict[str, str]:
    """A text for each of these files of a folder, equal where their contents are equal. Only files of equal size are read."""
    sizes: dict[str, int] = {}
    if isinstance(folder, Path):
        readable = (path for path in paths if os.path.isfile(folder / path) and os.access(folder / path, os.R_OK))
        sizes = {path: os.path.getsize(folder / path) for path in readable}
    else:
        root = f"{folder.path.strip('/')}/"
        found = with_retries(folder, lambda: folder.fs.find(folder.path, detail=True))
        sizes = {name.strip("/").removeprefix(root): int(about["size"]) for name, about in found.items()}
    count = Counter(sizes[path] for path in paths if path in sizes)
    # A file that cannot be read is reported when its audio is read.
    return {path: hash_of_file(folder / path) if count[sizes.get(path, -1)] > 1 else path for path in paths}


def copies_of(folder: Location, paths: Mapping[str, str]) -> dict[str, str]:
    """The content (`contents_of`) of each clip's file, at its path in the folder, if another clip's file has the same content.

    Splits that are drawn by content keep all copies of a recording together: in two splits they would be a leak.
    """
    contents = contents_of(folder, list(paths.values()))
    count = Counter(contents.values())
    return {clip_id: contents[path] for clip_id, path in paths.items() if count[contents[path]] > 1}


def audio_below(folder: Location, part: str = "") -> dict[str, AudioLocation]:
    """Where the audio files of a folder, or of a part of it, are, by their names without suffix."""
    files = [path for path in list_files(folder) if path.startswith(part) and is_audio(path)]
    return {stem(path): AudioLocation(f"{folder}/{path}") for path in files}


def location_in(folder: Location, relative: str, at: str) -> AudioLocation:
    """The file at a path written in a table of captions. ValueError, beginning with `at`, if it leaves the folder."""
    path = PurePosixPath(relative.replace("\\", "/"))
    leaves = posixpath.normpath(path).split("/")[0] == ".."
    if path.is_absolute() or leaves or (path.parts and path.parts[0].endswith(":")):
        raise refuse(f"{at}, path", relative, f"a path inside {folder}, relative to it")
    return AudioLocation(f"{folder}/{path}")


def stem(path: str) -> str:
    """The file name without folders and without a known audio suffix (`a/b.c.wav` -> `b.c`)."""
    return without_suffix(path.replace("\\", "/").rsplit("/", 1)[-1])


def without_suffix(path: str) -> str:
    return next((path[: -len(suffix)] for suffix in AUDIO_SUFFIXES if path.lower().endswith(suffix)), path)


def is_audio(path: str) -> bool:
    return path.lower().endswith(AUDIO_SUFFIXES)
