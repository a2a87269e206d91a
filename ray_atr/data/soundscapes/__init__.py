"""The embedded default: synthetic clips a person would recognise, captioned in eight languages.

Every clip is a pure function of (seed, split, index), so that anything may make any of them in any order. They exist
for a first comparison on a laptop; nothing measured on them is a result about real audio.
"""

from ray_atr.data.soundscapes.captions import NUM_PARAPHRASES
from ray_atr.data.soundscapes.clips import SPLITS, SoundscapesSettings, clip
from ray_atr.data.soundscapes.kinds import KINDS
from ray_atr.data.soundscapes.making import ensure_soundscapes, generate

__all__ = ["KINDS", "NUM_PARAPHRASES", "SPLITS", "SoundscapesSettings", "clip", "ensure_soundscapes", "generate"]
