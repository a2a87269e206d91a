"""One synthetic clip from its place in the set: scene, waveform and captions, each from its own random stream."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
import soundfile

from ray_atr.data.schema import Clip
from ray_atr.languages.codes import language_codes
from ray_atr.settings import Settings, nearest, refuse, setting
from ray_atr.soundscapes.render import render
from ray_atr.soundscapes.scene import Scene, draw_scene
from ray_atr.soundscapes.scene_captions import GRAMMAR_LANGUAGES, NUM_PARAPHRASES, captions, grammar_of

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
    sample_rate: int = setting(16000, "sample rate (Hz)", at_least=8000, at_most=48000)
    num_train_captions: int = setting(1, "captions of a training clip", at_least=1, at_most=NUM_PARAPHRASES)
    languages: tuple[str, ...] = setting(
        GRAMMAR_LANGUAGES, "ISO 639 codes of the captions' languages, each of which needs a grammar"
    )
    seed: int = setting(
        0, "seed that the clips are drawn from; separate from the experiment's, so that runs share clips", at_least=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "languages", language_codes(self.languages))
        for language in self.languages:
            grammar_of(language)

    def num_clips(self, split: str) -> int:
        """The number of clips in a split."""
        return {"train": self.num_train, "val": self.num_val, "test": self.num_test}[split]


def clip(index: int, split: str, settings: SoundscapesSettings) -> Clip:
    """One clip from (settings.seed, split, index) alone: 16-bit FLAC, captions, the kinds of sound as labels.

    About one clip in sixteen repeats the scene of an earlier one of its split in a new rendering: a near-duplicate.
    """
    seed = settings.seed
    scene = _scene(index, split, settings)
    waveform = render(scene, _generator(seed, split, index, "audio"), settings.sample_rate)
    return Clip(
        clip_id=f"soundscapes-{seed}-{split}-{index:06d}",
        audio=_encoded(waveform, settings.sample_rate),
        sample_rate=settings.sample_rate,
        seconds=len(waveform) / settings.sample_rate,
        captions=_captions(scene, index, split, settings),
        labels=_labels(scene),
        split=split,
        source="soundscapes",
    )


def described(index: int, split: str, settings: SoundscapesSettings) -> tuple[dict[str, list[str]], list[str]]:
    """A clip's captions by language and its labels, without its sound, which takes longest to make."""
    scene = _scene(index, split, settings)
    return _captions(scene, index, split, settings), _labels(scene)


def _scene(index: int, split: str, settings: SoundscapesSettings) -> Scene:
    if split not in SPLITS:
        raise refuse("split", split, ", ".join(SPLITS), nearest(split, SPLITS))
    seed = settings.seed
    return draw_scene(_generator(seed, split, _scene_index(seed, split, index), "scene"), settings.seconds)


def _captions(scene: Scene, index: int, split: str, settings: SoundscapesSettings) -> dict[str, list[str]]:
    num_captions = settings.num_train_captions if split == "train" else NUM_PARAPHRASES
    return captions(scene, _generator(settings.seed, split, index, "captions"), num_captions, settings.languages)


def _labels(scene: Scene) -> list[str]:
    return [event.kind for event in scene.events]


def _generator(seed: int, split: str, index: int, stream: str) -> np.random.Generator:
    return np.random.default_rng([seed, SPLITS.index(split), index, _STREAMS[stream]])


def _scene_index(seed: int, split: str, index: int) -> int:
    """Whose scene a clip shows: its own, or now and then that of an earlier clip."""
    rng = _generator(seed, split, index, "duplicate")
    return int(rng.integers(index)) if index > 0 and rng.random() < _NEAR_DUPLICATES else index


def _encoded(waveform: np.ndarray, sample_rate: int) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, waveform, sample_rate, format="FLAC", subtype="PCM_16")
    return file.getvalue()
