"""ESC-50: 2,000 clips of 5 s in 50 classes and five folds, captioned by a template in every language.

K. J. Piczak, "ESC: Dataset for Environmental Sound Classification", ACM Multimedia 2015. Layout: `audio/` and
`meta/esc50.csv` with the columns filename, fold, category.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ray_atr.common.language_codes import DEFAULT_LANGUAGES, ENGLISH, language_codes
from ray_atr.common.settings import refuse, setting
from ray_atr.common.storage import locate
from ray_atr.data.schema import check_captions, check_split
from ray_atr.workshop.importing.sources import source
from ray_atr.workshop.importing.sources.read_table import Row, read_table
from ray_atr.workshop.languages.grammar import grammar_of
from ray_atr.workshop.languages.templates import caption, label_sentence

DEFAULT_FOLDS = ("train=1,2,3", "val=4", "test=5")


@dataclass(frozen=True, kw_only=True)
class Esc50(source.Source):
    """ESC-50 with template captions; folds become splits."""

    name: ClassVar[str] = "esc50"
    licence: ClassVar[str] = "CC BY-NC 3.0 (https://github.com/karolpiczak/ESC-50), attribution per clip in its LICENSE"

    folds: tuple[str, ...] = setting(
        (), "split=fold,fold ...; unset: train=1,2,3 val=4 and, if fold 5 is there, test=5"
    )
    languages: tuple[str, ...] = setting(
        DEFAULT_LANGUAGES, "ISO 639 codes of the captions, of languages with words for the classes"
    )
    wording: str = setting(
        "sentences",
        "captions: sentences, which name a class in the usual words of each language; labels, with the words of the English "
        "label, as in m-LTM's zero-shot table (needs languages eng)",
        choices=("sentences", "labels"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "languages", language_codes(self.languages))
        if self.wording == "labels" and self.languages != (ENGLISH,):
            raise refuse(
                "wording", "labels", f"sentences with languages {','.join(self.languages)}: labels are English"
            )
        for language in self.languages:
            grammar_of(language)
        _split_of_folds(self.folds)

    def entries(self) -> Iterator[source.Entry]:
        say = caption if self.wording == "sentences" else lambda name, _: label_sentence(name)
        folder = locate(self.source, keeps_links=True)
        audio = source.audio_below(folder, "audio/")
        table = f"{folder}/meta/esc50.csv"
        rows = [row for _, row in read_table(table, required=["filename", "fold", "category"])]
        # pandas writes whole numbers as 1.0 if a cell of their column is empty.
        folds = [source.cell_of(row, "fold").removesuffix(".0") for row in rows]
        split_of = _split_of_folds(self.folds or DEFAULT_FOLDS)
        if self.folds and (absent := split_of.keys() - set(folds)):
            raise refuse("folds", ", ".join(sorted(absent)), "folds of this copy: " + ", ".join(sorted(set(folds))))
        for row, fold in zip(rows, folds, strict=True):
            if (split := split_of.get(fold)) is not None:
                captions = {code: (say(row["category"], code),) for code in self.languages}
                yield _entry(row, audio, captions, split)


@dataclass(frozen=True, kw_only=True)
class Esc50Clotho(source.Source):
    """The ESC-50 clips whose recording is in Clotho, with its five captions of a longer excerpt (a loose match), as one split."""

    name: ClassVar[str] = "esc50_clotho"
    licence: ClassVar[str] = "audio: CC BY-NC 3.0 (ESC-50); captions: Tampere University, non-commercial (Clotho)"

    split: str = setting("test", "name of the one split")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_split(self.split)

    def entries(self) -> Iterator[source.Entry]:
        folder = locate(self.source, keeps_links=True)
        audio = source.audio_below(folder, "audio/")
        table = f"{folder}/meta/esc50_clotho_captions.jsonl"
        for at, row in read_table(table, required=["filename", "category", "captions"]):
            if not isinstance(row["captions"], dict):
                raise refuse(f"{at}, captions", row["captions"], "an object of lists of captions by language")
            yield _entry(row, audio, check_captions(row["captions"], at), self.split)


def _entry(
    row: Row, audio: Mapping[str, source.AudioLocation], captions: Mapping[str, Sequence[str]], split: str
) -> source.Entry:
    clip_id, absent = source.stem(row["filename"]), f"audio/{row['filename']} is not there"
    about: Row = {"labels": (row["category"],), "split": split, "absent": absent}
    return source.Entry(clip_id=clip_id, place=audio.get(clip_id), captions=captions, **about)


def _split_of_folds(assignments: Sequence[str]) -> dict[str, str]:
    """The split of each fold: train of 1 and 2 for `train=1,2`. ValueError on another form or a fold named twice."""
    split_of: dict[str, str] = {}
    for assignment in assignments:
        split, _, values = assignment.partition("=")
        folds = list(filter(None, map(str.strip, values.split(","))))
        if not split or not folds:
            raise ValueError(f"folds: got {assignment!r}; allowed NAME=VALUE,VALUE such as train=1,2,3")
        for fold in folds:
            if fold in split_of:
                raise ValueError(f"folds: {fold} occurs in two splits")
            split_of[fold] = check_split(split, "folds")
    return split_of
