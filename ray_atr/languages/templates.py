"""Captions for class labels: "This is a sound of {class}" for the 50 classes of ESC-50.

K. J. Piczak, "ESC: Dataset for Environmental Sound Classification", ACM Multimedia 2015, for the classes.
"""

from __future__ import annotations

from ray_atr.languages import eng
from ray_atr.languages.codes import LANGUAGES, require_language
from ray_atr.settings import nearest, refuse

ESC50_CLASSES: tuple[str, ...] = tuple(eng.NOUNS)
"""The class names as `meta/esc50.csv` writes them."""

TEMPLATE_LANGUAGES: tuple[str, ...] = tuple(code for code, language in LANGUAGES.items() if language.template)
"""The languages that have words for the classes."""


def caption(class_name: str, language: str) -> str:
    """The sentence "This is a sound of {class}" in a language. ValueError for an unknown class or language."""
    words = require_language(language)
    if words.template is None:
        raise refuse("language", language, ", ".join(TEMPLATE_LANGUAGES) + ", which have words for the classes")
    if class_name not in ESC50_CLASSES:
        raise refuse("class_name", class_name, "the 50 classes of ESC-50", nearest(class_name, ESC50_CLASSES))
    return words.template(words.nouns[class_name])
