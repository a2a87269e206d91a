"""Dutch: how it is called, class labels as captions, and a grammar of captions.

The grammar has verb second, verb last and inverted clauses, separable verbs, *die* and *dat*.
"""

from __future__ import annotations

from ray_atr.workshop.languages.language import Adverbs, Grammar, Said, Words, listed, ordered, pattern, words
from ray_atr.workshop.languages.tables import nouns, sounds

# subject | relative pronoun | finite verb | what is between adverb and verb end | separable prefix
SOUNDS = sounds("nld")

ADVERBS = Adverbs(
    {"sound": ("luid", "zacht")} | dict.fromkeys(("force", "rain", "waves"), ("hard", "zacht")),
    ("snel", "langzaam"),
    ("twee keer", "drie keer", "vier keer", "vijf keer"),
)
BACKGROUND = {
    "hum": ", met een elektrisch gebrom op de achtergrond",
    "street": ", met verkeer op de achtergrond",
    "wind": ", met wind op de achtergrond",
    "crowd": ", met geroezemoes op de achtergrond",
    "fan": ", met een draaiende ventilator op de achtergrond",
}


def _middle(said: Said) -> str:
    return words(ADVERBS.times(said), ADVERBS.manner(said), SOUNDS[said.kind][3])


def main(said: Said) -> str:
    """Verb second: *een deur slaat luid dicht*."""
    subject, _, verb, _, prefix = SOUNDS[said.kind]
    return words(subject, verb, _middle(said), prefix)


def inverted(said: Said) -> str:
    """Subject after the verb, announced by *er* where indefinite and alone: *(dan) slaat er een deur dicht*."""
    subject, _, verb, _, prefix = SOUNDS[said.kind]
    middle = _middle(said)
    is_announced = not middle and not subject.startswith(("de ", "het ", "iemand"))
    return words(verb, "er" * is_announced, subject, middle, prefix)


def subordinate(said: Said) -> str:
    """Verb last, prefix attached: *(terwijl) een deur luid dichtslaat*."""
    subject, _, verb, _, prefix = SOUNDS[said.kind]
    return words(subject, _middle(said), prefix + verb)


def noun(said: Said) -> str:
    """The noun with a relative clause: *een deur die luid dichtslaat*."""
    subject, relative, verb, _, prefix = SOUNDS[said.kind]
    return words(subject, relative, _middle(said), prefix + verb)


PATTERNS = {
    "plain": pattern("", main),
    "while": pattern("", main, ordered(" terwijl ", " en "), later=subordinate),
    "simultaneous": pattern("", main, listed(" en tegelijkertijd "), last=inverted),
    "then": pattern("", main, ordered(", dan ", " en ten slotte "), later=inverted),
    "first": pattern("eerst ", inverted, ordered(", daarna ", " en tot slot ")),
    "sequence hear": pattern("je hoort ", noun, ordered(", gevolgd door ", " en ten slotte ")),
    "sequence recording": pattern("een opname van ", noun, ordered(" en daarna ", ", en ten slotte ")),
    "sequence scene": pattern("in deze opname ", inverted, ordered("; even later ", "; op het einde ")),
    "sound": pattern("het geluid van ", noun),
    "hear": pattern("je hoort ", noun, listed(" en ")),
    "recording": pattern("een opname van ", noun, listed(" en ")),
    "scene": pattern("in deze opname ", inverted, listed(" en ")),
}


WORDS = Words(
    template=lambda noun: f"Dit is het geluid van {noun}.", nouns=nouns("nld"),
    grammar=Grammar(SOUNDS, PATTERNS, BACKGROUND),
)  # fmt: skip
