"""AudioCaps and Clotho Multilingual: the test splits with their captions in 34 languages, machine-translated from English.

P. S. Pasi, "Multilingual-To-Multimodal (M2M): Unlocking New Languages with Monolingual Text", arXiv 2601.10096, 2026. Two
layouts, a row for each English caption with its translations in columns:

    test/metadata.csv   file_name, audio_name or youtube_id, caption, and a column a language, beside the audio: as published
    *_cleaned.csv       youtube_id (of Clotho: the name of the file), caption, and the columns of the code that made them

The name of a column says its language: by the English name (`Hebrew`), by a tag of FLORES-200 (`hin_Deva`), or by a tag with more
around it (`aya_translated_eng_Latn-fra_Latn-sentence_fra_Latn_cleaned`). If a language has several columns, the one whose name is
only the language or its tag is read, else the cleaned one: the authors do not use Aya's Hindi beside `hin_Deva`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ray_atr.common.language_codes import ENGLISH
from ray_atr.common.settings import counted, refuse, setting, shortened
from ray_atr.common.storage import Location, locate
from ray_atr.data.schema import check_language
from ray_atr.workshop.importing.sources import source
from ray_atr.workshop.importing.sources.read_table import read_table

METADATA = "metadata.csv"
NAMED = ("audio_name", "youtube_id")
"""Columns that name a clip."""
OWN = {*NAMED, "file_name", "caption", "audiocap_id", "start_time", ""}
NAMES = {
    "Arabic": "arb_Arab", "Bengali": "ben_Beng", "Chinese (Simplified)": "zho_Hans", "Chinese (Traditional)": "zho_Hant",
    "Czech": "ces_Latn", "Dutch": "nld_Latn", "English": "eng_Latn", "French": "fra_Latn", "German": "deu_Latn",
    "Greek": "ell_Grek", "Gujarati": "guj_Gujr", "Hebrew": "heb_Hebr", "Hindi": "hin_Deva",
    "Indonesian": "ind_Latn", "Italian": "ita_Latn", "Japanese": "jpn_Jpan", "Kannada": "kan_Knda",
    "Korean": "kor_Hang", "Malayalam": "mal_Mlym", "Marathi": "mar_Deva", "Nepali": "npi_Deva", "Persian": "pes_Arab",
    "Polish": "pol_Latn", "Portuguese": "por_Latn", "Punjabi": "pan_Guru", "Romanian": "ron_Latn",
    "Russian": "rus_Cyrl", "Spanish": "spa_Latn", "Tamil": "tam_Taml", "Telugu": "tel_Telu",
    "Turkish": "tur_Latn", "Ukrainian": "ukr_Cyrl", "Urdu": "urd_Arab", "Vietnamese": "vie_Latn",
}  # fmt: skip
"""The 34 languages, Chinese in two scripts, by their FLORES-200 tags."""
CLEANED = "_cleaned"
_TAG_AT_END = re.compile(rf".*?([a-z]{{3}}_[A-Z][a-z]{{3}})({CLEANED})?")


@dataclass(frozen=True, kw_only=True)
class Multilingual(source.Source):
    """AudioCaps Multilingual or Clotho Multilingual (M2M): the test clips with captions in 34 languages."""

    name: ClassVar[str] = "m2m"
    licence: ClassVar[str] = (
        "captions: CC BY-NC 4.0 (M2M; of AudioCaps, MIT, or Clotho, non-commercial research); audio: per clip"
    )

    audio: str = setting(
        "", "folder or URL of the audio of a table without file_name; unset: anywhere below --source", path="always"
    )
    chinese: str = setting("Hans", "script of the Chinese captions; the other is left out", choices=("Hans", "Hant"))

    def entries(self) -> Iterator[source.Entry | str]:
        folder = locate(self.source, keeps_links=True)
        tables = [path for path in source.list_files(folder) if path.endswith(".csv")]
        tables = [path for path in tables if path.rsplit("/", 1)[-1] == METADATA] or tables
        if not tables:
            raise ValueError(f"{folder}: no {METADATA}, nor another table of M2M's captions")
        for path in tables:
            yield from self._of_table(folder, path)

    def _of_table(self, folder: Location, path: str) -> Iterator[source.Entry | str]:
        clips: dict[str, source.ListedClip] = {}
        blank = repeated = 0
        columns: dict[str, str] = {}
        seen: set[tuple[str, ...]] = set()
        split = _split_in(path) or "test"
        for at, row in read_table(f"{folder}/{path}", required=("caption",)):
            if not columns:
                columns = self._columns(row, at)
                if unread := [name for name in row if name not in OWN and name not in columns.values()]:
                    yield f"columns that were not read: {shortened(', '.join(unread), 200)}"
            clip_id = _named(row)
            if not clip_id:
                raise ValueError(f"{at}: the row names no clip; its columns are {shortened(', '.join(row))}")
            texts = {language: source.cell_of(row, column) for language, column in columns.items()}
            if not texts[ENGLISH]:
                raise ValueError(f"{at}: caption is blank")
            # The nameless column numbers the rows.
            values = tuple(value for name, value in row.items() if name)
            if values in seen:
                repeated += 1
                continue
            seen.add(values)
            clip = clips.setdefault(clip_id, source.ListedClip(row, clip_id, split, at))
            for name in ("file_name", "start_time"):
                if source.cell_of(row, name) != (before := source.cell_of(clip.place, name)):
                    # Else its captions would be paired with another recording.
                    allowed = f"{before!r}, as the row of {clip_id} before has it"
                    raise refuse(f"{at}, {name}", source.cell_of(row, name), allowed)
            for language, text in texts.items():
                clip.captions.setdefault(language, []).append(text)
                blank += not text
        if blank:
            yield f"{path}: {counted(blank, 'translation is', 'translations are')} blank and left out"
        if repeated:
            yield f"{path}: {counted(repeated, 'row')} left out: another one says the same"
        find = self._audio(folder, path, split)
        for clip_id, clip in clips.items():
            made = [language for language, texts in clip.captions.items() if language != ENGLISH and any(texts)]
            yield source.Entry(clip_id=clip_id, place=find(clip), captions=clip.captions, split=split, translated=made)

    def _audio(
        self, folder: Location, path: str, split: str
    ) -> Callable[[source.ListedClip], source.AudioLocation | None]:
        """A function that finds the audio of a clip of a table: at its path beside the table, or by its name."""
        below, files = path.rpartition("/")[0], frozenset(source.list_files(folder))
        place = locate(self.audio or self.source, keeps_links=True)
        # Clotho has recordings of one name in two splits: the one in a folder of the table's split comes last, and stays.
        found = sorted(source.list_files(place), key=lambda file: _split_in(file.rpartition("/")[0]) == split)
        by_name = {
            source.stem(file).strip(): source.AudioLocation(f"{place}/{file}")
            for file in found
            if source.is_audio(file)
        }

        def find(clip: source.ListedClip) -> source.AudioLocation | None:
            name = source.cell_of(clip.place, "file_name")
            path = f"{below}/{name}".removeprefix("/")
            if name and path in files:
                return source.location_in(folder, path, clip.at)
            return by_name.get(f"Y{clip.given_id}") or by_name.get(clip.given_id)

        return find

    def _columns(self, row: Mapping[str, Any], at: str) -> dict[str, str]:
        """The column of each language, English first. ValueError where no other language has one, or one has several."""
        of: dict[str, list[str]] = {}
        for column in row:
            tag = "" if column in OWN else tag_of(column)
            if tag and tag != NAMES["English"] and (not tag.startswith("zho") or tag.endswith(self.chinese)):
                of.setdefault(check_language(tag, f"{at}, {column}"), []).append(column)
        if not of:
            raise ValueError(f"{at}: no column of a language but English; it has {shortened(', '.join(row))}")
        column_of = {ENGLISH: "caption"}
        for code, columns in of.items():
            alone = [column for column in columns if column in NAMES or len(column) == len("eng_Latn")]
            chosen = alone or [column for column in columns if column.endswith(CLEANED)] or columns
            if len(chosen) > 1:
                raise ValueError(f"{at}: the columns {' and '.join(chosen)} are of one language, {code}")
            column_of[code] = chosen[0]
        return column_of

    def id_of(self, row: Mapping[str, Any]) -> str | None:
        return _named(row) or super().id_of(row)


def tag_of(column: str) -> str:
    """The FLORES-200 tag of the language in a column's name; empty if the name has none.

    >>> tag_of("Greek"), tag_of("npi_Deva"), tag_of("aya_translated_eng_Latn-fra_Latn-sentence_fra_Latn_cleaned")
    ('ell_Grek', 'npi_Deva', 'fra_Latn')
    """
    match = _TAG_AT_END.fullmatch(column.strip())
    return match[1] if match else NAMES.get(column.strip(), "")


def _split_in(path: str) -> str:
    """The split that a word of a path names; empty if there is none."""
    return next((source.SPLIT_OF[word] for word in re.split(r"[/_.]", path.lower()) if word in source.SPLIT_OF), "")


def _named(row: Mapping[str, Any]) -> str:
    """The id of a row's clip: AudioCaps' video, Clotho's file without the blanks that some names begin or end with."""
    return source.stem(next(filter(None, (source.cell_of(row, name) for name in (*NAMED, "file_name"))), "")).strip()
