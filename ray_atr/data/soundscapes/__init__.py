"""The embedded default: synthetic clips a person would recognise, captioned in eight languages.

Every clip is a pure function of (seed, split, index), so that anything may make any of them in any order. They exist
for a first comparison on a laptop; nothing measured on them is a result about real audio.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import soundfile

from ray_atr.data.languages import LANGUAGES, require_languages
from ray_atr.data.soundscapes.captions import NUM_PARAPHRASES, captions
from ray_atr.data.soundscapes.kinds import KINDS
from ray_atr.data.soundscapes.render import render
from ray_atr.data.soundscapes.scene import draw_scene
from ray_atr.settings import Settings, nearest, refuse, setting

SPLITS = ("train", "val", "test")
_NEAR_DUPLICATES = 0.06
_STREAMS = {"scene": 0, "audio": 1, "captions": 2, "duplicate": 3}


@dataclass(frozen=True, kw_only=True)
class SoundscapesSettings(Settings):
    """How many synthetic clips, how long, in which languages."""

    num_train: int = setting(1200, "training clips", at_least=1)
    num_val: int = setting(200, "validation clips", at_least=1)
    num_test: int = setting(300, "test clips", at_least=1)
    seconds: float = setting(4.0, "length of a clip in seconds", at_least=2.0, at_most=30.0)
    sample_rate: int = setting(16000, "samples a second in Hz", at_least=8000, at_most=48000)
    num_train_captions: int = setting(1, "captions of a training clip", at_least=1, at_most=NUM_PARAPHRASES)
    languages: tuple[str, ...] = setting(tuple(LANGUAGES), "ISO 639-3 codes of the captions' languages")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_languages(self.languages)

    def num_clips(self, split: str) -> int:
        """The number of clips in a split."""
        return {"train": self.num_train, "val": self.num_val, "test": self.num_test}[split]


def clip(index: int, split: str, seed: int, settings: SoundscapesSettings | None = None) -> dict[str, Any]:
    """One clip as a row of the clip schema, from (seed, split, index) alone: 16-bit FLAC, captions, labels.

    About one clip in sixteen repeats the scene of an earlier one of its split in a new rendering: a near-duplicate.
    """
    settings = settings or SoundscapesSettings()
    if split not in SPLITS:
        raise refuse("split", split, ", ".join(SPLITS), nearest(split, SPLITS))
    scene = draw_scene(_generator(seed, split, _scene_index(index, split, seed), "scene"), settings.seconds)
    waveform = render(scene, _generator(seed, split, index, "audio"), settings.sample_rate)
    num_captions = settings.num_train_captions if split == "train" else NUM_PARAPHRASES
    return {
        "clip_id": f"soundscapes-{seed}-{split}-{index:06d}",
        "audio": _encoded(waveform, settings.sample_rate),
        "sample_rate": settings.sample_rate,
        "seconds": len(waveform) / settings.sample_rate,
        "captions": captions(scene, _generator(seed, split, index, "captions"), num_captions, settings.languages),
        "labels": [event.kind for event in scene.events],
        "split": split,
        "source": "soundscapes",
    }


def generate(settings: SoundscapesSettings, seed: int) -> Iterator[dict[str, Any]]:
    """Every clip of the set, split after split, in order."""
    for split in SPLITS:
        for index in range(settings.num_clips(split)):
            yield clip(index, split, seed, settings)


def _generator(seed: int, split: str, index: int, stream: str) -> np.random.Generator:
    return np.random.default_rng([seed, SPLITS.index(split), index, _STREAMS[stream]])


def _scene_index(index: int, split: str, seed: int) -> int:
    """Whose scene a clip shows: its own, or now and then that of an earlier clip."""
    rng = _generator(seed, split, index, "duplicate")
    return int(rng.integers(index)) if index > 0 and rng.random() < _NEAR_DUPLICATES else index


def _encoded(waveform: np.ndarray, sample_rate: int) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, waveform, sample_rate, format="FLAC", subtype="PCM_16")
    return file.getvalue()


__all__ = ["KINDS", "NUM_PARAPHRASES", "SPLITS", "SoundscapesSettings", "clip", "generate"]
