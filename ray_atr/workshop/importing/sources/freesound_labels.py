"""FSDnoisy18k and ARCA23K: Freesound clips with one label each, wrong as people's tags are, and clips that were checked.

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
from typing import Any, ClassVar

from ray_atr.common.language_codes import ENGLISH
from ray_atr.common.sampling import uniform
from ray_atr.common.settings import setting
from ray_atr.common.storage import locate
from ray_atr.workshop.importing.sources.read_table import read_table
from ray_atr.workshop.importing.sources.source import (
    Absent,
    AudioLocation,
    Entry,
    Source,
    audio_below,
    copies_of,
    entry_of,
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
        "clips of train: all; noisy, with the tags of Freesound; noisy_small, as many of these as are checked; clean, checked",
        choices=("all", "noisy", "noisy_small", "clean"),
    )
    validation_share: float = setting(
        0.15,
        "share of the checked training clips put into the split val, drawn by id; copies of a file go together",
        at_least=0,
        below=1,
    )

    def entries(self) -> Iterator[Entry | Absent]:
        folder = locate(self.source, keeps_links=True)
        audio = audio_below(folder)
        columns = ["fname", "label", "manually_verified", "noisy_small"]
        table = f"{folder}/FSDnoisy18k.meta/train.csv"
        rows = [(stem(row["fname"]), row) for _, row in read_table(table, required=columns)]
        checked = {clip_id for clip_id, row in rows if _says_yes(row["manually_verified"])}
        paths = {clip_id: audio[clip_id].file.removeprefix(f"{folder}/") for clip_id, _ in rows if clip_id in audio}
        copies = copies_of(folder, paths) if self.validation_share else {}
        # What else is in the split that is trained on, as it is not checked.
        in_train = {copies.get(clip_id) for clip_id, _ in rows if clip_id not in checked} - {None}
        for clip_id, row in rows:
            own = copies.get(clip_id, clip_id)
            is_drawn = own not in in_train and uniform([own], 0, "validation")[0] < self.validation_share
            if clip_id in checked and is_drawn:
                yield _entry(audio, clip_id, row["label"], "val")
            elif self._takes(row, clip_id in checked):
                yield _entry(audio, clip_id, row["label"], "train")
        for _, row in read_table(f"{folder}/FSDnoisy18k.meta/test.csv", required=columns[:2]):
            yield _entry(audio, stem(row["fname"]), row["label"], "test")

    def _takes(self, row: Mapping[str, Any], is_checked: bool) -> bool:
        """Whether a clip of train is one of those asked for."""
        if self.clips == "all":
            return True
        if self.clips == "clean":
            return is_checked
        return not is_checked and (self.clips == "noisy" or _says_yes(row["noisy_small"]))


@dataclass(frozen=True, kw_only=True)
class Arca23k(Source):
    """ARCA23K: labels as captions; train noisy or checked, val and test checked."""

    name: ClassVar[str] = "arca23k"
    licence: ClassVar[str] = "CC BY 4.0 (ARCA23K); audio: per clip, Creative Commons"

    clips: str = setting(
        "noisy",
        "clips of train: noisy, those of ARCA23K; clean, those of ARCA23K-FSD, as many of each class",
        choices=("noisy", "clean"),
    )
    audio: str = setting("", "folder or URL of the audio; unset: anywhere below --source", path="always")

    def entries(self) -> Iterator[Entry | Absent]:
        folder = locate(self.source, keeps_links=True)
        audio = audio_below(locate(self.audio or self.source, keeps_links=True))
        of_train = "ARCA23K" if self.clips == "noisy" else "ARCA23K-FSD"
        for split, name in (("train", of_train), ("val", "ARCA23K-FSD"), ("test", "ARCA23K-FSD")):
            table = f"{folder}/{name}.ground_truth/{split}.csv"
            for _, row in read_table(table, required=["fname", "label"]):
                yield _entry(audio, stem(str(row["fname"])), row["label"], split)


def _entry(audio: Mapping[str, AudioLocation], clip_id: str, label: str, split: str) -> Entry | Absent:
    captions = {ENGLISH: (label_sentence(label.lower()),)}
    return entry_of(clip_id, audio.get(clip_id), captions, split, labels=(label,))


def _says_yes(value: Any) -> bool:
    """Whether a cell says 1."""
    return str(value).strip() in ("1", "1.0", "True", "true")
