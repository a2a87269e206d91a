"""The embedded default: synthetic clips a person would recognise, captioned in eight languages.

Every clip is a pure function of (seed, split, index), so that anything may make any of them in any order. They exist
for a first comparison on a laptop; nothing measured on them is a result about real audio.
"""

from ray_atr.data.soundscapes import SPLITS, SoundscapesSettings
from ray_atr.workshop.soundscapes.clips import clip, described, ensure_soundscapes, generate
from ray_atr.workshop.soundscapes.kinds import KINDS

__all__ = ["KINDS", "SPLITS", "SoundscapesSettings", "clip", "described", "ensure_soundscapes", "generate"]
