"""WavCaps: about 400,000 clips of AudioSet, the BBC, FreeSound and SoundBible with captions polished by a language model.

X. Mei et al., "WavCaps: A ChatGPT-Assisted Weakly-Labelled Audio Captioning Dataset", TASLP 2024. Layout: one JSON file
a subset, `{"num_captions_per_audio": 1, "data": [{"id", "caption", "duration", ...}, ...]}`, and FLAC files named by id below
a folder named as the subset. It overlaps with the test sets of others, so its authors publish exclusion lists.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from ray_atr.data.draws import uniform
from ray_atr.data.schema import check_split
from ray_atr.data.shards import Folder, open_folder
from ray_atr.data.sources.base import Absent, Entry, Source
from ray_atr.data.sources.places import Place, file_in, is_audio, list_files, stem
from ray_atr.data.sources.tables import read_lines
from ray_atr.settings import setting

SUBSETS = {
    "audioset": "AudioSet_SL",
    "bbc": "BBC_Sound_Effects",
    "freesound": "FreeSound",
    "soundbible": "SoundBible",
}
"""A word that names a subset in paths and exclusion lists, and the name of its folder."""

BETWEEN = re.compile(r"[\s,]*")


@dataclass(frozen=True, kw_only=True)
class WavCaps(Source):
    """WavCaps: JSON captions and FLAC files, less what the exclusion lists name."""

    name: ClassVar[str] = "wavcaps"
    licence: ClassVar[str] = "captions: CC BY 4.0, academic use (WavCaps); audio: per subset"

    audio: str = setting("", "folder or URL of the audio; unset: anywhere below --source")
    exclude: tuple[str, ...] = setting(
        (), "JSON or text files of clip ids to leave out, such as blacklist_exclude_all_ac.json"
    )
    split: str = setting("train", "name of the split")
    validation_share: float = setting(0.0, "share of clips put into the split val, drawn by id", at_least=0, below=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_split(self.split)

    def entries(self) -> Iterator[Entry | Absent]:
        folder, audio_folder = open_folder(self.source), open_folder(self.audio or self.source)
        excluded = _read_exclusions(self.exclude)
        audio: dict[str, dict[str, str]] = {subset: {} for subset in SUBSETS}
        for path in list_files(audio_folder):
            subset = _subset(path.rpartition("/")[0])
            if is_audio(path) and subset:
                audio[subset][stem(path)] = path
        tables = [path for path in list_files(folder) if path.endswith(".json") and not _is_exclusion_list(path)]
        by_subset = [(_subset(path), path) for path in tables]
        if not any(subset for subset, _ in by_subset):
            raise ValueError(f"{folder.name}: no JSON file of a subset of WavCaps ({', '.join(SUBSETS.values())})")
        for subset, path in by_subset:
            if subset is None:
                continue
            for at, item in read_data(folder, path):
                if "id" not in item or not str(item.get("caption") or "").strip():
                    raise ValueError(f"{at}: id or caption is missing; it has {', '.join(item)}")
                name = stem(str(item["id"]))
                if name in excluded.get(subset, set()) or name in excluded.get("", set()):
                    continue
                clip_id = f"{subset}/{name}"
                split = "val" if _is_held_out(clip_id, self.validation_share) else self.split
                if name not in audio[subset]:
                    yield Absent(clip_id, split, "its audio is absent", is_normal=True)
                    continue
                place = Place(file_in(audio_folder, audio[subset][name]))
                yield Entry(clip_id=clip_id, place=place, captions={"eng": (str(item["caption"]),)}, split=split)


def _subset(path: str) -> str | None:
    """The subset that a path or a name speaks of; the innermost part counts."""
    parts = reversed(path.lower().split("/"))
    return next((subset for part in parts for subset in SUBSETS if subset in part), None)


def _is_exclusion_list(path: str) -> bool:
    return any(word in path.lower() for word in ("blacklist", "exclu"))


def _is_held_out(clip_id: str, share: float) -> bool:
    return share > 0 and float(uniform([clip_id], 0, "validation")[0]) < share


def read_data(folder: Folder, path: str, chunk: int = 2**20) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of the list `data` in a JSON file, one by one, so that a file of any size takes little memory.

    Each comes with where it stands. ValueError where the file is no JSON or holds no such list.
    """
    at = file_in(folder, path)
    decoder = json.JSONDecoder()
    with folder.open(path) as file:
        pieces = _decoded(file, chunk, at)
        buffer = ""
        while True:
            key = buffer.find('"data"')
            start = buffer.find("[", key) if key >= 0 else -1
            if start >= 0:
                break
            piece = next(pieces, "")
            if not piece:
                raise ValueError(f'{at}: no list "data" of clips; not a JSON file of WavCaps')
            buffer += piece
        position, number = start + 1, 0
        while True:
            position = BETWEEN.match(buffer, position).end()  # type: ignore[union-attr]
            if buffer.startswith("]", position):
                return
            try:
                item, end = decoder.raw_decode(buffer, position)
            except json.JSONDecodeError as error:
                piece = next(pieces, "")
                if not piece:
                    raise ValueError(f"{at}, clip {number + 1}: not JSON ({error.msg}) or cut off") from None
                buffer, position = buffer[position:] + piece, 0
                continue
            number, position = number + 1, end
            if not isinstance(item, dict):
                raise ValueError(f"{at}, clip {number}: a JSON object is expected")
            yield f"{at}, clip {number}", item


def _decoded(file: Any, chunk: int, at: str) -> Iterator[str]:
    rest = b""
    while piece := file.read(chunk):
        data = rest + piece
        try:
            text, rest = data.decode(), b""
        except UnicodeDecodeError as error:
            # A character may be cut by the end of the piece; anything earlier is no UTF-8.
            if error.start < len(data) - 3:
                raise ValueError(f"{at}: not UTF-8 ({error.reason} at byte {error.start} of a piece)") from None
            text, rest = data[: error.start].decode(), data[error.start :]
        if text:
            yield text


def _read_exclusions(files: tuple[str, ...]) -> dict[str, set[str]]:
    """Excluded ids by subset; `""` holds those of lists that name no subset."""
    excluded: dict[str, set[str]] = {}
    for file in files:
        text = "".join(line for _, line in read_lines(file))
        if file.lower().endswith(".json"):
            try:
                content = json.loads(text)
            except json.JSONDecodeError as error:
                raise ValueError(f"{file}: not JSON ({error.msg} at character {error.pos + 1})") from None
        else:
            content = [line.strip() for line in text.splitlines() if line.strip()]
        groups = content if isinstance(content, dict) else {"": content}
        for name, ids in groups.items():
            if not isinstance(ids, list):
                raise ValueError(f"{file}: a list of ids, or lists of ids by subset, is expected")
            subset = _subset(name) or ""
            excluded.setdefault(subset, set()).update(stem(str(clip_id)) for clip_id in ids)
    return excluded
