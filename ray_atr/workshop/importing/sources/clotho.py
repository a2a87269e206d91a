"""Clotho v2: clips of 15 to 30 s from Freesound with five captions each.

K. Drossos et al., "Clotho: an Audio Captioning Dataset", ICASSP 2020. Layout: `clotho_captions_development.csv` (file_name,
caption_1 ... caption_5) and a folder `development` with the audio; likewise validation and evaluation. A clip's id is the name of
its file; of the five names that are in two of the parts, with the part in front (`evaluation/Bus(Drive_Reverse)_1-2`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from ray_atr.common.settings import setting
from ray_atr.common.storage import locate
from ray_atr.workshop.importing.sources import source
from ray_atr.workshop.importing.sources.read_table import Row, read_table

SPLIT_OF = {"development": "train", "validation": "val", "evaluation": "test"}
CAPTION_COLUMNS = tuple(f"caption_{number}" for number in range(1, 6))


@dataclass(frozen=True, kw_only=True)
class Clotho(source.Source):
    """Clotho v2; development, validation and evaluation become train, val and test."""

    name: ClassVar[str] = "clotho"
    licence: ClassVar[str] = "captions: Tampere University, non-commercial research; audio: Freesound, per clip"

    audio: str = setting("", "folder or URL of the audio folders; unset: anywhere below --source", path="always")

    def entries(self) -> Iterator[source.Entry]:
        folder = locate(self.source, keeps_links=True)
        tables: dict[str, str] = {}
        for path in source.list_files(folder):
            name = path.rsplit("/", 1)[-1]
            if re.fullmatch(r"clotho_captions_\w+\.csv", name) and tables.setdefault(name, path) != path:
                raise ValueError(f"{folder}: {tables[name]} and {path}; allowed one {name}")
        audio_folder = locate(self.audio or self.source, keeps_links=True)
        audio: dict[str, dict[str, str]] = {}
        for path in filter(source.is_audio, source.list_files(audio_folder)):
            for part in path.split("/")[:-1]:
                audio.setdefault(part, {})[source.stem(path).strip()] = path
        parts = [part for part in SPLIT_OF if f"clotho_captions_{part}.csv" in tables]
        if not parts:
            raise ValueError(f"{folder}: no clotho_captions_development.csv, _validation.csv or _evaluation.csv")
        rows = {
            part: list(read_table(f"{folder}/{tables[f'clotho_captions_{part}.csv']}", ("file_name", *CAPTION_COLUMNS)))
            for part in parts
        }
        count = Counter(_name_of(row) for of_part in rows.values() for _, row in of_part)
        for part, of_part in rows.items():
            files = audio.get(part) or audio.get(f"clotho_audio_{part}") or {}
            for at, row in of_part:
                name = _name_of(row)
                if not name:
                    raise ValueError(f"{at}: the row names no clip")
                captions = tuple(row[column] for column in CAPTION_COLUMNS)
                if not all(text.strip() for text in captions):
                    raise ValueError(f"{at}: a caption of {row['file_name']} is blank")
                clip_id = name if count[name] == 1 else f"{part}/{name}"
                place = source.AudioLocation(f"{audio_folder}/{files[name]}") if name in files else None
                yield source.Entry(
                    clip_id=clip_id,
                    place=place,
                    captions={"eng": captions},
                    split=SPLIT_OF[part],
                    absent=f"{row['file_name']} is not in a folder {part}",
                )


def _name_of(row: Row) -> str:
    """The name of a clip's file, without suffix and blanks around it."""
    return source.stem(row["file_name"]).strip()
