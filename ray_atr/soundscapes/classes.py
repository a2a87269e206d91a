"""A sentence for each class of a data set's labels, in the languages that have words for all of them."""

from __future__ import annotations

from collections.abc import Sequence

from ray_atr.languages.codes import ENGLISH
from ray_atr.languages.said import Said
from ray_atr.languages.templates import ESC50_CLASSES, TEMPLATE_LANGUAGES, caption
from ray_atr.soundscapes.kinds import KINDS
from ray_atr.soundscapes.scene_captions import GRAMMAR_LANGUAGES, grammar_of


def class_sentences(classes: Sequence[str], languages: Sequence[str]) -> dict[str, list[str]]:
    """Language -> "This is a sound of {class}" for each class, for zero-shot classification.

    The classes of ESC-50 have words in the languages with a template, the kinds of the soundscapes in those with a grammar.
    Other labels are taken as English words, so that only English is left.
    """
    if set(classes) <= set(ESC50_CLASSES):
        spoken = [language for language in languages if language in TEMPLATE_LANGUAGES]
        return {language: [caption(name, language) for name in classes] for language in spoken}
    if set(classes) <= set(KINDS):
        spoken = [language for language in languages if language in GRAMMAR_LANGUAGES]
        return {
            language: [grammar_of(language).sentence("single", "sound", [Said(name)], None) for name in classes]
            for language in spoken
        }
    return {ENGLISH: [f"This is a sound of {_as_words(name)}." for name in classes]} if ENGLISH in languages else {}


def _as_words(label: str) -> str:
    return " ".join(label.replace("_", " ").split())
