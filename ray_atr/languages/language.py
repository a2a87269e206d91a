"""What the package knows of one language."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ray_atr.languages.said import Sentence


class Grammar(NamedTuple):
    """How a language says what is heard: `sentence` makes a caption of the kinds of sound it has words for."""

    sentence: Sentence
    kinds: Collection[str]


@dataclass(frozen=True)
class Language:
    """One language: `code` is ISO 639-3, `iso_639_1` its two-letter code (if it has one), `tag` its FLORES-200 tag.

    Everything below the names is optional: `template` and `nouns` make captions of the labels of ESC-50, `grammar` those
    of the synthetic soundscapes.
    """

    code: str
    name: str
    endonym: str = ""
    iso_639_1: str = ""
    tag: str = ""
    template: Callable[[str], str] | None = field(default=None, repr=False)
    nouns: Mapping[str, str] = field(default_factory=dict, repr=False)
    grammar: Grammar | None = field(default=None, repr=False)
