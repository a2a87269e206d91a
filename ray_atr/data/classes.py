"""A sentence for each class of a data set's labels, in the languages that have words for all of them."""

from __future__ import annotations

from collections.abc import Sequence

from ray_atr.data.soundscapes.grammar import SENTENCES, Said
from ray_atr.data.soundscapes.kinds import KINDS
from ray_atr.data.templates import ESC50_CLASSES, caption


def class_sentences(classes: Sequence[str], languages: Sequence[str]) -> dict[str, list[str]]:
    """Language -> "This is a sound of {class}" for each class, for zero-shot classification.

    The classes of ESC-50 and the kinds of the soundscapes have words in all languages. Other labels are taken as English
    words, so that only English is left.
    """
    if set(classes) <= set(ESC50_CLASSES):
        return {language: [caption(name, language) for name in classes] for language in languages}
    if set(classes) <= set(KINDS):
        return {
            language: [SENTENCES[language]("single", "sound", [Said(name)], None) for name in classes]
            for language in languages
        }
    return {"eng": [f"This is a sound of {_as_words(name)}." for name in classes]} if "eng" in languages else {}


def _as_words(label: str) -> str:
    return " ".join(label.replace("_", " ").split())
