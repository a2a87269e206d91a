"""WavCaps: about 400,000 clips of AudioSet, the BBC, FreeSound and SoundBible with captions polished by a language model.

X. Mei et al., "WavCaps: A ChatGPT-Assisted Weakly-Labelled Audio Captioning Dataset", TASLP 2024. Layout: one JSON file
a subset, `{"num_captions_per_audio": 1, "data": [{"id", "caption", "duration", ...}, ...]}`, and FLAC files named by id below
a folder named as the subset. It overlaps with the test sets of others, so its authors publish exclusion lists.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, ClassVar

import ijson
from ijson.common import ObjectBuilder

from ray_atr.common.sampling import uniform
from ray_atr.common.settings import counted, setting, shortened
from ray_atr.common.storage import Location, locate, opened
from ray_atr.data.schema import check_split
from ray_atr.workshop.importing.sources import source
from ray_atr.workshop.importing.sources.read_table import read_id_lists

SUBSETS = {"audioset": "AudioSet_SL", "bbc": "BBC_Sound_Effects", "freesound": "FreeSound", "soundbible": "SoundBible"}
"""A word that names a subset in paths and exclusion lists, and the name of its folder."""

DEEPEST = 64
"""Levels of lists and objects in a file; real ones have four."""


@dataclass(frozen=True, kw_only=True)
class WavCaps(source.Source):
    """WavCaps: JSON captions and FLAC files, without the clips that exclusion lists name."""

    name: ClassVar[str] = "wavcaps"
    licence: ClassVar[str] = "captions: CC BY 4.0, academic use (WavCaps); audio: per subset"

    audio: str = setting("", "folder or URL of the audio; unset: anywhere below --source", path="always")
    exclude: tuple[str, ...] = setting(
        (), "JSON or text files of clip ids to leave out, such as blacklist_exclude_all_ac.json", path="always"
    )
    split: str = setting("train", "name of the split")
    validation_share: float = setting(
        0.0, "share of clips put into the split val, drawn by id; copies of a file go together", at_least=0, below=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_split(self.split)

    def entries(self) -> Iterator[source.Entry | str]:
        folder = locate(self.source, keeps_links=True)
        audio_folder = locate(self.audio or self.source, keeps_links=True)
        excluded, num_excluded = _read_exclusions(self.exclude), 0
        audio: dict[str, str] = {}
        for path in source.list_files(audio_folder):
            subset = _subset(path.rpartition("/")[0])
            if source.is_audio(path) and subset:
                audio[f"{subset}/{source.stem(path)}"] = path
        copies = source.copies_of(audio_folder, audio) if self.validation_share else {}
        tables = [path for path in source.list_files(folder) if path.endswith(".json") and _subset(path)]
        tables = [path for path in tables if not any(word in path.lower() for word in ("blacklist", "exclu"))]
        if not tables:
            raise ValueError(f"{folder}: no JSON file of a subset of WavCaps ({', '.join(SUBSETS.values())})")
        for table in tables:
            subset = _subset(table)
            for at, item in read_data(folder, table):
                name, captions = source.stem(source.cell_of(item, "id")), source.captions_of(item, at)
                if not name or not captions:
                    raise ValueError(f"{at}: id or caption is missing; it has {', '.join(item)}")
                if name in excluded.get(subset, set()) or name in excluded.get("", set()):
                    num_excluded += 1
                    continue
                clip_id = f"{subset}/{name}"
                is_drawn = uniform([copies.get(clip_id, clip_id)], 0, "validation")[0] < self.validation_share
                split = "val" if is_drawn else self.split
                file_name = audio.get(clip_id)
                place = source.AudioLocation(f"{audio_folder}/{file_name}") if file_name else None
                yield source.Entry(clip_id=clip_id, place=place, captions={"eng": captions}, split=split)
        if self.exclude:
            total = counted(sum(map(len, excluded.values())), "id")
            yield f"excluded: {counted(num_excluded, 'clip')}, by {total} in lists"


def _subset(path: str) -> str:
    """The subset that a path or a name refers to, empty if none; the innermost part decides."""
    parts = reversed(path.lower().split("/"))
    return next((subset for part in parts for subset in SUBSETS if subset in part), "")


def read_data(folder: Location, path: str, chunk: int = 2**16) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of the list `data` in a JSON file, one by one, so that a file of any size takes little memory. Each
    comes with its place. ValueError if the file is no JSON or holds no such list.
    """
    at, number = f"{folder}/{path}", 0
    with opened(folder / path) as file:
        try:
            for number, item in enumerate(_items(file, chunk), start=1):
                if not isinstance(item, dict):
                    raise ValueError(f"{at}, clip {number}: a JSON object is expected")
                yield f"{at}, clip {number}", item
        except (ijson.JSONError, UnicodeDecodeError, RecursionError) as error:
            reason = shortened(str(error), 120)
            raise ValueError(f"{at}, clip {number + 1}: not JSON of WavCaps in UTF-8, or cut off ({reason})") from None


def _items(file: IO[bytes], chunk: int) -> Iterator[Any]:
    """What is in the list `data` of the object that the file holds."""
    # Not ijson.items: its paths of names take memory that is quadratic in the depth, which a file of 100 kB can abuse.
    depth, key, has_list = 0, None, False
    builder: ObjectBuilder | None = None
    for event, value in ijson.basic_parse(file, buf_size=chunk, use_float=True):
        depth -= event in ("end_map", "end_array")
        if depth > DEEPEST:
            raise ijson.JSONError(f"more than {DEEPEST} levels")
        if depth == 1 and event == "map_key":
            key = value
        elif depth == 1 and event == "start_array" and key == "data":
            has_list = True
        elif depth >= 2 and key == "data" and has_list:
            builder = builder or ObjectBuilder()
            builder.event(event, value)
            if depth == 2 and event not in ("start_map", "start_array"):
                yield builder.value
                builder = None
        depth += event in ("start_map", "start_array")
    if not has_list:
        raise ijson.JSONError('no list "data" of clips')


def _read_exclusions(files: tuple[str, ...]) -> dict[str, set[str]]:
    """Excluded ids by subset; `""` holds those of lists that name no subset."""
    excluded: dict[str, set[str]] = {}
    for file in files:
        for name, ids in read_id_lists(file).items():
            excluded.setdefault(_subset(name), set()).update(map(source.stem, ids))
    return excluded
