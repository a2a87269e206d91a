"""German: how it is called, class labels as captions, and a grammar of captions.

The grammar has verb second, verb last and inverted clauses, separable verbs, nouns in all four cases.
"""

from __future__ import annotations

from typing import NamedTuple

from ray_atr.workshop.languages.language import Adverbs, Form, Grammar, Said, Words, listed, ordered, pattern, words
from ray_atr.workshop.languages.tables import nouns, sounds

_ARTICLES = {
    "m": ("ein", "einen", "einem", "eines"),
    "f": ("eine", "eine", "einer", "einer"),
    "n": ("ein", "ein", "einem", "eines"),
    "p": ("mehrere", "mehrere", "mehreren", "mehrerer"),
}
_RELATIVE = {"m": "der", "f": "die", "n": "das", "p": "die"}
NOMINATIVE, ACCUSATIVE, DATIVE, GENITIVE = range(4)


class Noun(NamedTuple):
    """A noun phrase in its four cases (nominative, accusative, dative, genitive) and its gender (m, f, n, p plural)."""

    cases: tuple[str, str, str, str]
    gender: str


def _noun(gender: str, noun: str, genitive: str | None = None, dative: str | None = None) -> Noun:
    forms = (noun, noun, dative or noun, genitive or noun)
    phrases = [f"{word} {form}" for word, form in zip(_ARTICLES[gender], forms, strict=True)]
    return Noun((phrases[0], phrases[1], phrases[2], phrases[3]), gender)


def _bare(gender: str, noun: str) -> Noun:
    """A noun without article: its genitive is said with *von*."""
    return Noun((noun, noun, noun, f"von {noun}"), gender)


_SOMEONE = Noun(("jemand", "jemanden", "jemandem", "von jemandem"), "m")


def _noun_of(text: str) -> Noun:
    """`m Hund, Hundes`: gender, noun, its genitive and its dative where they differ; `-m Regen`: without article."""
    if text == "jemand":
        return _SOMEONE
    gender, _, forms = text.partition(" ")
    return _bare(gender[1:], forms) if gender.startswith("-") else _noun(gender, *forms.split(", "))


# noun | finite verb | what is between adverb and verb end | separable prefix
SOUNDS: dict[str, tuple[Noun, str, str, str]] = {
    kind: (_noun_of(noun), verb, between, prefix) for kind, (noun, verb, between, prefix) in sounds("deu").items()
}

ADVERBS = Adverbs(
    {
        "sound": ("laut", "leise"),
        "force": ("kräftig", "sacht"),
        "rain": ("heftig", "sanft"),
        "waves": ("heftig", "sanft"),
    },
    ("schnell", "langsam"),
    ("zweimal", "dreimal", "viermal", "fünfmal"),
)
BACKGROUND = {
    "hum": ", mit elektrischem Brummen im Hintergrund",
    "street": ", mit Straßenverkehr im Hintergrund",
    "wind": ", mit Wind im Hintergrund",
    "crowd": ", mit Stimmengewirr im Hintergrund",
    "fan": ", mit einem laufenden Ventilator im Hintergrund",
}


def _middle(said: Said) -> str:
    return words(ADVERBS.times(said), ADVERBS.manner(said), SOUNDS[said.kind][2])


def main(said: Said) -> str:
    """Verb second: *ein Zug rattert laut vorbei*."""
    noun, verb, _, prefix = SOUNDS[said.kind]
    return words(noun.cases[NOMINATIVE], verb, _middle(said), prefix)


def inverted(said: Said) -> str:
    """Subject after the verb: *(dann) rattert ein Zug laut vorbei*."""
    noun, verb, _, prefix = SOUNDS[said.kind]
    return words(verb, noun.cases[NOMINATIVE], _middle(said), prefix)


def subordinate(said: Said) -> str:
    """Verb last, prefix attached: *(während) ein Zug laut vorbeirattert*."""
    noun, verb, _, prefix = SOUNDS[said.kind]
    return words(noun.cases[NOMINATIVE], _middle(said), prefix + verb)


def noun(case: int) -> Form:
    """The noun in a case with a relative clause: *eines Zuges, der laut vorbeirattert*."""

    def in_case(said: Said) -> str:
        phrase, verb, _, prefix = SOUNDS[said.kind]
        return f"{phrase.cases[case]}, {words(_RELATIVE[phrase.gender], _middle(said), prefix + verb)}"

    return in_case


PATTERNS = {
    "plain": pattern("", main),
    "while": pattern("", main, ordered(", während ", " und "), later=subordinate),
    "simultaneous": pattern("", main, listed(", und gleichzeitig "), last=inverted),
    "then": pattern("", main, ordered(", dann ", ", und zuletzt "), later=inverted),
    "first": pattern("zuerst ", inverted, ordered(", danach ", ", und zum Schluss ")),
    "sequence hear": pattern("man hört ", noun(ACCUSATIVE), ordered(", und danach ", ", und schließlich ")),
    "sequence recording": pattern(
        "eine Aufnahme von ", noun(DATIVE), ordered(", und dann von ", ", und schließlich von ")
    ),
    "sequence scene": pattern("in dieser Aufnahme ", inverted, ordered("; kurz darauf ", "; am Ende ")),
    "sound": pattern("das Geräusch ", noun(GENITIVE)),
    "hear": pattern("man hört ", noun(ACCUSATIVE), listed(", und ")),
    "recording": pattern("eine Aufnahme von ", noun(DATIVE), listed(", und ")),
    "scene": pattern("in dieser Aufnahme ", inverted, listed(" und ")),
}


WORDS = Words(
    template=lambda noun: f"Das ist das Geräusch {noun}.", nouns=nouns("deu"),
    grammar=Grammar(SOUNDS, PATTERNS, BACKGROUND),
)  # fmt: skip
