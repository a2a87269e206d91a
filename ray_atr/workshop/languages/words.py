"""The words of each language that can say what is heard, by its code."""

from __future__ import annotations

from ray_atr.common.settings import refuse
from ray_atr.data.language_codes import require_language
from ray_atr.workshop.languages import cat, deu, eng, fra, jpn, nld, spa, zho
from ray_atr.workshop.languages.language import Grammar, Words

WORDS: dict[str, Words] = {
    "eng": eng.WORDS,
    "fra": fra.WORDS,
    "deu": deu.WORDS,
    "spa": spa.WORDS,
    "nld": nld.WORDS,
    "cat": cat.WORDS,
    "jpn": jpn.WORDS,
    "zho": zho.WORDS,
}


def words_of(language: str) -> Words:
    """The words of a language. ValueError if it has none here."""
    code = require_language(language).code
    if code not in WORDS:
        raise refuse("languages", language, ", ".join(WORDS) + ", which have words for sounds and classes")
    return WORDS[code]


def grammar_of(language: str) -> Grammar:
    """What says a scene in a language. ValueError if it has none."""
    return words_of(language).grammar
