"""FSDnoisy18k and ARCA23K: Freesound clips with one label each, from people's tags and so partly wrong, and checked clips.

E. Fonseca et al., "Learning Sound Event Classifiers from Web Audio with Noisy Labels", ICASSP 2019: 20 classes;
`FSDnoisy18k.meta/train.csv` (fname, label, manually_verified, noisy_small) and `test.csv`, audio in `FSDnoisy18k.audio_*`.

T. Iqbal et al., "ARCA23K: An Audio Dataset for Investigating Open-Set Label Noise", DCASE 2021: 70 classes;
`ARCA23K.ground_truth/train.csv` (fname, label) of noisy labels with `ARCA23K.audio`, and `ARCA23K-FSD.ground_truth/*.csv` of
checked ones of the same classes, whose audio is FSD50K's.

Neither says of each clip whether its label is wrong, so a training on the noisy clips is compared with one on checked ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from ray_atr.common.language_codes import ENGLISH
from ray_atr.common.sampling import uniform
from ray_atr.common.settings import refuse, setting
from ray_atr.common.storage import locate
from ray_atr.workshop.importing.sources.read_table import read_table
from ray_atr.workshop.importing.sources.source import (
    AudioLocation,
    Entry,
    Source,
    audio_below,
    cell_of,
    copies_of,
    stem,
)
from ray_atr.workshop.languages.templates import label_sentence


@dataclass(frozen=True, kw_only=True)
class FsdNoisy18k(Source):
    """FSDnoisy18k: labels as captions, of noisy clips, of checked ones, or of both."""

    name: ClassVar[str] = "fsdnoisy18k"
    licence: ClassVar[str] = "CC BY 4.0 (FSDnoisy18k); audio: per clip, CC0 or CC BY"

    clips: str = setting(
        "all",
        "training clips: all; noisy, labelled by Freesound's tags; noisy_small, as many of these as are checked; clean, "
        "the checked ones",
        choices=("all", "noisy", "noisy_small", "clean"),
    )
    validation_share: float = setting(
        0.15,
        "share of the checked training clips put into the split val, drawn by id; copies of a file go together",
        at_least=0,
        below=1,
    )

    def entries(self) -> Iterator[Entry]:
        folder = locate(self.source, keeps_links=True)
        audio, absent = audio_below(folder), f"its audio is not below {folder}"
        rows = list(_read(f"{folder}/FSDnoisy18k.meta/train.csv", "manually_verified", "noisy_small"))
        paths = {
            row.clip_id: audio[row.clip_id].file.removeprefix(f"{folder}/") for row in rows if row.clip_id in audio
        }
        copies = copies_of(folder, paths) if self.validation_share else {}
        # The contents of training clips that are not checked: their copies must not be in val.
        in_train = {copies.get(row.clip_id) for row in rows if not row.flags[0]} - {None}
        for row in rows:
            drawn_by = copies.get(row.clip_id, row.clip_id)
            is_drawn = drawn_by not in in_train and uniform([drawn_by], 0, "validation")[0] < self.validation_share
            if row.flags[0] and is_drawn:
                yield row.entry(audio, "val", absent)
            elif self._takes(*row.flags):
                yield row.entry(audio, "train", absent)
        for row in _read(f"{folder}/FSDnoisy18k.meta/test.csv"):
            yield row.entry(audio, "test", absent)

    def _takes(self, is_checked: bool, is_small: bool) -> bool:
        """Whether a clip of train is one of those asked for."""
        taken = {"all": True, "noisy": not is_checked, "noisy_small": not is_checked and is_small, "clean": is_checked}
        return taken[self.clips]


@dataclass(frozen=True, kw_only=True)
class Arca23k(Source):
    """ARCA23K: labels as captions; train noisy or checked, val and test checked."""

    name: ClassVar[str] = "arca23k"
    licence: ClassVar[str] = "CC BY 4.0 (ARCA23K); audio: per clip, Creative Commons"

    clips: str = setting(
        "noisy",
        "training clips: noisy, those of ARCA23K; clean, those of ARCA23K-FSD, with as many of each class",
        choices=("noisy", "clean"),
    )
    audio: str = setting("", "folder or URL of the audio; unset: anywhere below --source", path="always")

    def entries(self) -> Iterator[Entry]:
        folder = locate(self.source, keeps_links=True)
        audio_folder = locate(self.audio or self.source, keeps_links=True)
        audio, absent = audio_below(audio_folder), f"its audio is not below {audio_folder}"
        of_train = "ARCA23K" if self.clips == "noisy" else "ARCA23K-FSD"
        for split, name in (("train", of_train), ("val", "ARCA23K-FSD"), ("test", "ARCA23K-FSD")):
            for row in _read(f"{folder}/{name}.ground_truth/{split}.csv"):
                # The audio of the others is FSD50K's, which may not have been downloaded.
                yield row.entry(audio, split, absent if name == "ARCA23K" else "")


class _LabelledClip(NamedTuple):
    """A row of a table: a clip's id, its label, and what the columns of 0 and 1 say."""

    clip_id: str
    label: str
    flags: tuple[bool, ...]

    def entry(self, audio: Mapping[str, AudioLocation], split: str, absent: str) -> Entry:
        place, captions = audio.get(self.clip_id), {ENGLISH: (label_sentence(self.label.lower()),)}
        labels = (self.label,)
        return Entry(clip_id=self.clip_id, place=place, captions=captions, labels=labels, split=split, absent=absent)


def _read(table: str, *flags: str) -> Iterator[_LabelledClip]:
    """The rows of a table with these columns of 0 and 1. ValueError for a blank cell, or another flag, with the line."""
    for at, row in read_table(table, required=["fname", "label", *flags]):
        name, label = cell_of(row, "fname"), cell_of(row, "label")
        if not name or not label:
            raise ValueError(f"{at}: fname or label is blank")
        yield _LabelledClip(stem(name), label, tuple(_is_set(row, column, at) for column in flags))


def _is_set(row: Mapping[str, Any], column: str, at: str) -> bool:
    """Whether a cell says 1, as programs write it: 1, 1.0, True, TRUE."""
    says = cell_of(row, column).lower().removesuffix(".0")
    if says not in ("0", "1", "false", "true"):
        raise refuse(f"{at}, {column}", says, "0 or 1")
    return says in ("1", "true")
