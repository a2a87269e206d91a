"""Catalan: how it is called, class labels as captions, and a grammar of captions.

The grammar has contraction (del, dels), elision (d', l'), agreement of *se sent* and *se senten*.
"""

from __future__ import annotations

from ray_atr.workshop.languages.language import VOWELS, Adverbs, Grammar, Romance, Said, Words, listed, ordered, pattern
from ray_atr.workshop.languages.tables import nouns, sounds


def catalan_of(noun: str) -> str:
    """*de* before a noun: del, dels, d'un, de l'aigua."""
    if noun.startswith("el "):
        return "del " + noun[3:]
    if noun.startswith("els "):
        return "dels " + noun[4:]
    return ("d'" if noun[0] in VOWELS else "de ") + noun


SOUNDS = sounds("cat")

ADVERBS = Adverbs(
    {"sound": ("fort", "fluix"), "rain": ("amb força", "suaument"), "waves": ("amb força", "suaument")},
    ("ràpidament", "lentament"),
    ("dues vegades", "tres vegades", "quatre vegades", "cinc vegades"),
)
BACKGROUND = {
    "hum": ", amb un brunzit elèctric de fons",
    "street": ", amb trànsit de fons",
    "wind": ", amb vent de fons",
    "crowd": ", amb un murmuri de veus de fons",
    "fan": ", amb un ventilador en marxa de fons",
}
CATALAN = Romance(SOUNDS, ADVERBS, "que", catalan_of)


def is_heard(said: Said) -> str:
    """*se sent* with its noun, plural before a plural."""
    noun = CATALAN.noun(said)
    return ("se senten " if noun.startswith(("uns ", "unes ", "els ", "les ")) else "se sent ") + noun


PATTERNS = {
    "plain": pattern("", CATALAN.clause),
    "while": pattern("", CATALAN.clause, ordered(" mentre ", " i ")),
    "simultaneous": pattern("", CATALAN.clause, listed(" i "), " alhora"),
    "then": pattern("", CATALAN.clause, ordered(", després ", " i finalment ")),
    "first": pattern("primer ", CATALAN.clause, ordered(" i tot seguit ", ", i al final ")),
    "sequence hear": pattern("se sent com ", CATALAN.clause, ordered(" i a continuació ", ", i finalment ")),
    "sequence recording": pattern("un enregistrament ", CATALAN.of_noun, ordered(" i després ", ", i finalment ")),
    "sequence scene": pattern(
        "en aquest enregistrament, ", CATALAN.clause, ordered("; un moment després, ", "; al final, ")
    ),
    "sound": pattern("el so ", CATALAN.of_noun),
    "single hear": pattern("", is_heard),
    "hear": pattern("se sent com ", CATALAN.clause, listed(" i ")),
    "recording": pattern("un enregistrament ", CATALAN.of_noun, listed(" i ")),
    "scene": pattern("en aquest enregistrament, ", CATALAN.clause, listed(" i ")),
}


WORDS = Words(
    template=lambda noun: f"Aquest és el so {catalan_of(noun)}.", nouns=nouns("cat"),
    grammar=Grammar(SOUNDS, PATTERNS, BACKGROUND),
)  # fmt: skip
