"""Any folder of audio with a table of `path, caption[, language, split, clip_id, label]`, one row a caption or a clip."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ray_atr.data.schema import check_language, check_split
from ray_atr.data.shards import open_folder
from ray_atr.data.sources.base import Absent, Entry, Source, captions_of
from ray_atr.data.sources.places import AUDIO_SUFFIXES, Place, file_in, list_files, place_in
from ray_atr.data.sources.tables import TABLE_SUFFIXES, read_table
from ray_atr.settings import refuse, setting


@dataclass(frozen=True, kw_only=True)
class TableSource(Source):
    """A folder of audio files and one table (CSV, TSV, JSON lines, Parquet) with the columns path and caption."""

    name: ClassVar[str] = "folder"
    licence: ClassVar[str] = "as given by the owner of the folder"

    table: str = setting("", "the table, below --source; unset: the only one there")
    language: str = setting("eng", "ISO 639-3 code of captions without a column language")
    split: str = setting("train", "split of clips without a column split")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_language(self.language, "language")
        check_split(self.split)

    def entries(self) -> Iterator[Entry | Absent]:
        folder = open_folder(self.source)
        files = list_files(folder)
        table = file_in(folder, _choose_table(files, self.table, folder.name))
        there = set(files)
        for clip in self._read(table).values():
            # Checked before presence, so that a path outside the folder is refused whether or not it exists.
            place = place_in(folder, clip.path, clip.at)
            relative = clip.path.replace("\\", "/").removeprefix("./")
            if relative not in there and not folder.exists(relative):
                yield Absent(clip.clip_id, clip.split, f"{clip.path} is not there")
                continue
            yield Entry(
                clip_id=clip.clip_id,
                place=Place(place.file),
                captions={code: tuple(texts) for code, texts in clip.captions.items()},
                labels=tuple(clip.labels),
                split=clip.split,
            )

    def _read(self, table: str) -> dict[str, _Clip]:
        """The clips by path, in the order of their first rows. ValueError where two rows of a clip disagree."""
        clips: dict[str, _Clip] = {}
        for at, row in read_table(table, required=["path"]):
            path = str(row["path"] or "").strip()
            captions = captions_of(row)
            if not path:
                raise ValueError(f"{at}: path is blank")
            if not captions:
                raise ValueError(f"{at}: no caption; its columns are {', '.join(row)}")
            language = check_language(str(row.get("language") or self.language).strip(), f"{at}, language")
            split = check_split(str(row.get("split") or self.split).strip(), f"{at}, split")
            clip_id = str(row.get("clip_id") or _id_from(path))
            clip = clips.setdefault(path, _Clip(path, clip_id, split, at))
            if (clip.clip_id, clip.split) != (clip_id, split):
                raise ValueError(f"{at}: {path} has another split or clip_id in an earlier row ({clip.at})")
            clip.captions.setdefault(language, []).extend(captions)
            clip.labels += [label for label in _labels(row) if label not in clip.labels]
        return clips

    def id_of(self, row: Any) -> str | None:
        if row.get("path") and not row.get("clip_id"):
            return _id_from(str(row["path"]))
        return super().id_of(row)


@dataclass
class _Clip:
    path: str
    clip_id: str
    split: str
    at: str
    captions: dict[str, list[str]] = field(default_factory=dict)
    labels: list[str] = field(default_factory=list)


def _id_from(path: str) -> str:
    """The path without its audio suffix: two clips of different folders may share a file name."""
    path = path.strip().replace("\\", "/").removeprefix("./")
    return next((path[: -len(suffix)] for suffix in AUDIO_SUFFIXES if path.lower().endswith(suffix)), path)


def _labels(row: dict[str, Any]) -> list[str]:
    value = row.get("labels") or row.get("label") or []
    return [value.strip()] if isinstance(value, str) else [str(label) for label in value]


def _choose_table(files: list[str], wanted: str, folder: str) -> str:
    tables = [path for path in files if path.lower().endswith(TABLE_SUFFIXES)]
    if wanted:
        if wanted.removeprefix("./") not in files:
            raise refuse("table", wanted, ", ".join(tables) or f"a table in {folder}")
        return wanted.removeprefix("./")
    if not tables:
        raise ValueError(f"{folder}: no table of captions; allowed {', '.join(TABLE_SUFFIXES)} with path, caption")
    if len(tables) > 1:
        raise ValueError(f"{folder}: several tables; choose with --table: {', '.join(tables)}")
    return tables[0]
