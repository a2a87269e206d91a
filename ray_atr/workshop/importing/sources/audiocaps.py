"""AudioCaps: about 50,000 clips of 10 s from YouTube; one caption in train, five in val and test.

C. D. Kim et al., "AudioCaps: Generating Captions for Audios in The Wild", NAACL 2019. Tables `train.csv`, `val.csv`,
`test.csv` in one of two layouts: the original's (audiocap_id, youtube_id, start_time, caption; one row a caption) or the
retrieval split's (file_name, caption or caption_1 ... caption_5). Videos vanish from YouTube, so absent audio is normal.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ray_atr.common.settings import nearest, refuse, setting
from ray_atr.common.storage import Location, locate
from ray_atr.data.schema import SPLITS
from ray_atr.workshop.importing.sources import source
from ray_atr.workshop.importing.sources.read_table import read_table, require_columns

# Downloaders name a clip by its video's id, often after a Y, often followed by its times.
WITH_TIMES = re.compile(r"Y?(?P<id>[\w-]{11})_[\d._-]+")


@dataclass(frozen=True, kw_only=True)
class AudioCaps(source.Source):
    """AudioCaps, original tables or retrieval split, with the audio that is present."""

    name: ClassVar[str] = "audiocaps"
    licence: ClassVar[str] = "captions: MIT (AudioCaps); audio: the uploaders' of each YouTube video"

    audio: str = setting("", "folder or URL of the audio; unset: anywhere below --source", path="always")
    tables: str = setting("", "folder below --source with train.csv, val.csv, test.csv; unset: the one that has them")

    def entries(self) -> Iterator[source.Entry]:
        folder = locate(self.source, keeps_links=True)
        audio_folder = locate(self.audio or self.source, keeps_links=True)
        audio = _audio_by_name(audio_folder)
        for split, table in _find_tables(folder, self.tables).items():
            for clip in _read_clips(table):
                path = _find_audio(audio, clip, split)
                place = None if path is None else source.AudioLocation(f"{audio_folder}/{path}")
                yield source.Entry(clip_id=clip.youtube_id, place=place, captions={"eng": clip.captions}, split=split)

    def id_of(self, row: Mapping[str, Any]) -> str | None:
        file_name = source.cell_of(row, "file_name")
        return source.cell_of(row, "youtube_id") or (youtube_id(file_name) if file_name else super().id_of(row))


@dataclass
class _YouTubeClip:
    youtube_id: str
    start: str = ""
    captions: list[str] = field(default_factory=list)
    audiocap_ids: list[str] = field(default_factory=list)


def youtube_id(file_name: str) -> str:
    """The video's id in the name of an audio file: `Yr1nicOVtvkQ.wav`, `r1nicOVtvkQ.wav` or `r1nicOVtvkQ_130.wav`."""
    name = source.stem(file_name)
    if len(name) == 12 and name.startswith("Y"):
        return name[1:]
    times = WITH_TIMES.fullmatch(name)
    return times["id"] if times else name


def _find_tables(folder: Location, tables: str) -> dict[str, str]:
    """The csv file of each split. ValueError if none is there, or several folders have them and none was chosen."""
    tables_in: dict[str, dict[str, str]] = {}
    for path in source.list_files(folder):
        parent, _, name = path.rpartition("/")
        split = name.removesuffix(".csv")
        if name.endswith(".csv") and split in SPLITS:
            tables_in.setdefault(parent or ".", {})[split] = f"{folder}/{path}"
    wanted = posixpath.normpath(tables.strip("/")) if tables else ""
    if wanted and wanted not in tables_in:
        raise refuse("tables", tables, "one of " + ", ".join(sorted(tables_in)), nearest(wanted, tables_in))
    if not tables_in:
        raise ValueError(f"{folder}: no train.csv, val.csv or test.csv of AudioCaps")
    if len(tables_in) > 1 and not wanted:
        folders = ", ".join(sorted(tables_in))
        raise ValueError(f"{folder}: captions in several folders; choose with --tables: {folders}")
    chosen = tables_in[wanted or next(iter(tables_in))]
    return {split: chosen[split] for split in SPLITS if split in chosen}


def _read_clips(table: str) -> list[_YouTubeClip]:
    """The clips of a table in the order of their first rows, their captions in the order of the rows."""
    clips: dict[str, _YouTubeClip] = {}
    rows: set[str] = set()
    is_original: bool | None = None
    for at, row in read_table(table):
        if is_original is None:
            is_original = "youtube_id" in row or "audiocap_id" in row or "file_name" not in row
            require_columns(table, list(row), ["youtube_id", "caption"] if is_original else ["file_name"])
        captions = source.captions_of(row, at)
        if not captions:
            raise ValueError(f"{at}: no caption; its columns are {', '.join(row)}")
        named = source.cell_of(row, "youtube_id" if is_original else "file_name")
        if not named:
            raise ValueError(f"{at}: the row names no clip")
        clip_id = named if is_original else youtube_id(named)
        if clip_id in clips and not is_original:
            raise ValueError(f"{at}: file {named} occurs twice")
        clip = clips.setdefault(clip_id, _YouTubeClip(clip_id, source.cell_of(row, "start_time")))
        if clip.start != source.cell_of(row, "start_time"):
            # Otherwise its captions would be paired with another segment of the video.
            raise refuse(f"{at}, start_time", row["start_time"], f"{clip.start}, as the row of {clip_id} before has it")
        clip.captions += captions
        if number := source.cell_of(row, "audiocap_id"):
            if number in rows:
                # Two captions of a clip may be equal, but each has its own number.
                raise ValueError(f"{at}: audiocap_id {number} occurs twice")
            rows.add(number)
            clip.audiocap_ids.append(number)
    return list(clips.values())


def _audio_by_name(folder: Location) -> dict[str, list[str]]:
    """The audio files below a folder by the names that downloaders give them; `ID/times` for those with times."""
    files: dict[str, list[str]] = {}
    for path in filter(source.is_audio, source.list_files(folder)):
        files.setdefault(source.stem(path), []).append(path)
        if times := WITH_TIMES.fullmatch(source.stem(path)):
            files.setdefault(f"{times['id']}/times", []).append(path)
    return files


def _find_audio(audio: Mapping[str, list[str]], clip: _YouTubeClip, split: str) -> str | None:
    """The file of a clip: by the video's id, with Y or without, with times, or by a caption's number in its split."""
    names = (f"Y{clip.youtube_id}", clip.youtube_id, f"{clip.youtube_id}/times", *clip.audiocap_ids)
    paths = next((audio[name] for name in names if name in audio), [])
    # If a name occurs in several folders, the file in that of the clip's own split is meant.
    in_split = [path for path in paths if split in path.lower().split("/")[:-1]]
    return next(iter(in_split or paths), None)
