"""Settings of the synthetic data set; `ray_atr.workshop.soundscapes` makes the clips when needed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ray_atr.common.language_codes import DEFAULT_LANGUAGES, LANGUAGES, language_codes
from ray_atr.common.progress import Echo
from ray_atr.common.settings import Settings, refuse, setting, wing

NUM_PARAPHRASES = 5
SPLITS = ("train", "val", "test")


@dataclass(frozen=True, kw_only=True)
class SoundscapesSettings(Settings):
    """Number, length and languages of the synthetic clips."""

    num_train: int = setting(1200, "training clips", at_least=1)
    num_val: int = setting(200, "validation clips", at_least=1)
    num_test: int = setting(300, "test clips", at_least=1)
    seconds: float = setting(4.0, "length of a clip in seconds", at_least=2.0, at_most=30.0)
    sample_rate: int = setting(16000, "sample rate (Hz)", at_least=8000, at_most=48000)
    num_train_captions: int = setting(1, "captions of a training clip", at_least=1, at_most=NUM_PARAPHRASES)
    languages: tuple[str, ...] = setting(
        DEFAULT_LANGUAGES, "ISO 639 codes of the captions' languages, each of which needs a grammar"
    )
    seed: int = setting(
        0, "seed that the clips are drawn from; separate from the experiment's, so that runs share clips", at_least=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "languages", language_codes(self.languages))
        for language in self.languages:
            if language not in LANGUAGES:
                raise refuse("languages", language, ", ".join(LANGUAGES) + ", which have a grammar for soundscapes")

    def num_clips(self, split: str) -> int:
        """The number of clips in a split."""
        return {"train": self.num_train, "val": self.num_val, "test": self.num_test}[split]

    def clip_id(self, split: str, index: int) -> str:
        """The id of a clip by its place in a split."""
        return f"soundscapes-{self.seed}-{split}-{index:06d}"


def ensure_soundscapes(settings: SoundscapesSettings, home: Path, echo: Echo = print) -> Path:
    """The folder in `home` with the data set of these settings; made if it does not exist."""
    folder: Path = wing("workshop.soundscapes.clips").ensure_soundscapes(settings, home, echo)
    return folder


def described(index: int, split: str, settings: SoundscapesSettings) -> tuple[dict[str, list[str]], list[str]]:
    """A clip's captions by language and its labels, without rendering its sound."""
    captions, labels = wing("workshop.soundscapes.clips").described(index, split, settings)
    return captions, labels
