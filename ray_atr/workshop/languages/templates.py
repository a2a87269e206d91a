"""A sentence for each class of a data set's labels: "This is a sound of {class}".

K. J. Piczak, "ESC: Dataset for Environmental Sound Classification", ACM Multimedia 2015, for the 50 classes of ESC-50.
"""

from __future__ import annotations

from collections.abc import Sequence

from ray_atr.common.language_codes import ENGLISH
from ray_atr.common.settings import nearest, refuse
from ray_atr.workshop.languages.grammar import WITH_WORDS, Said, column, grammar_of

ESC50_CLASSES: tuple[str, ...] = tuple(column("classes.csv", ENGLISH))
"""The class names as `meta/esc50.csv` writes them."""


def caption(class_name: str, language: str) -> str:
    """The sentence of a class of ESC-50 in a language. ValueError for an unknown class or language."""
    grammar = grammar_of(language)
    if class_name not in ESC50_CLASSES:
        raise refuse("class_name", class_name, "the 50 classes of ESC-50", nearest(class_name, ESC50_CLASSES))
    return grammar.class_sentence(class_name)


def label_sentence(class_name: str) -> str:
    """An English sentence with the label's own words, as m-LTM's Table 3 has it: "This is a sound of door wood knock"."""
    return f"This is a sound of {' '.join(class_name.replace('_', ' ').split())}"


def class_sentences(classes: Sequence[str], languages: Sequence[str]) -> dict[str, list[str]]:
    """Language -> the sentence of each class, for zero-shot classification; only languages with words for all of them.

    The classes of ESC-50 and the kinds of the soundscapes have words in the languages of `WITH_WORDS`.
    Other labels are taken as English words.
    """
    grammars = {language: grammar_of(language) for language in languages if language in WITH_WORDS}
    if set(classes) <= set(ESC50_CLASSES):
        return {code: [grammar.class_sentence(name) for name in classes] for code, grammar in grammars.items()}
    if set(classes) <= column("sounds.csv", ENGLISH).keys():
        sounds = [[Said(name)] for name in classes]
        return {
            code: [grammar.sentence("single", "sound", sound, None) for sound in sounds]
            for code, grammar in grammars.items()
        }
    of_labels = [f"{label_sentence(name)}." for name in classes]
    return {ENGLISH: of_labels} if ENGLISH in languages else {}
