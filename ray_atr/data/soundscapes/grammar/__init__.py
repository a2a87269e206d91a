"""Grammar of the captions, one file a language; each turns the same `Said` sounds into a sentence."""

from __future__ import annotations

from ray_atr.data.soundscapes.grammar import cat, deu, eng, fra, jpn, nld, spa, zho
from ray_atr.data.soundscapes.grammar.said import TEMPLATES, Said, Sentence

SENTENCES: dict[str, Sentence] = {
    "eng": eng.sentence,
    "fra": fra.sentence,
    "deu": deu.sentence,
    "spa": spa.sentence,
    "nld": nld.sentence,
    "cat": cat.sentence,
    "jpn": jpn.sentence,
    "zho": zho.sentence,
}
"""ISO 639-3 code -> the function that makes a sentence."""

__all__ = ["SENTENCES", "TEMPLATES", "Said", "Sentence"]
