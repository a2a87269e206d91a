"""Spanish: how it is called, class labels as captions, and a grammar of captions.

The grammar has contraction (del), personal *a*, agreement of *se oye* and *se oyen*.
"""

from __future__ import annotations

from ray_atr.workshop.languages.language import Adverbs, Grammar, Romance, Said, Words, listed, ordered, pattern
from ray_atr.workshop.languages.tables import nouns, sounds


def spanish_of(noun: str) -> str:
    """*de* before a noun; *de el* contracts to *del*."""
    return "del " + noun[3:] if noun.startswith("el ") else "de " + noun


SOUNDS = sounds("spa")

_FORCE = ("con fuerza", "suavemente")
ADVERBS = Adverbs(
    {"sound": ("ruidosamente", "suavemente")} | dict.fromkeys(("voice", "body", "force", "rain", "waves"), _FORCE),
    ("rápidamente", "lentamente"),
    ("dos veces", "tres veces", "cuatro veces", "cinco veces"),
)
BACKGROUND = {
    "hum": ", con un zumbido eléctrico de fondo",
    "street": ", con tráfico de fondo",
    "wind": ", con viento de fondo",
    "crowd": ", con un murmullo de voces de fondo",
    "fan": ", con un ventilador en marcha de fondo",
}
SPANISH = Romance(SOUNDS, ADVERBS, "que", spanish_of)


def is_heard(said: Said) -> str:
    """*se oye* with its noun: personal *a* before people, plural verb before a plural."""
    noun = SPANISH.noun(said)
    if noun.startswith("el público"):
        return "se oye al " + noun[3:]
    if noun.startswith(("alguien", "un hombre", "una mujer", "un bebé")):
        return "se oye a " + noun
    return ("se oyen " if noun.startswith(("unos ", "unas ", "los ", "las ")) else "se oye ") + noun


PATTERNS = {
    "plain": pattern("", SPANISH.clause),
    "while": pattern("", SPANISH.clause, ordered(" mientras ", " y ")),
    "simultaneous": pattern("", SPANISH.clause, listed(" y "), " al mismo tiempo"),
    "then": pattern("", SPANISH.clause, ordered(", luego ", " y por último ")),
    "first": pattern("primero ", SPANISH.clause, ordered(" y después ", ", y al final ")),
    "sequence hear": pattern("se oye cómo ", SPANISH.clause, ordered(" y a continuación ", ", y por último ")),
    "sequence recording": pattern("una grabación ", SPANISH.of_noun, ordered(" y luego ", ", y por último ")),
    "sequence scene": pattern("en esta grabación, ", SPANISH.clause, ordered("; un momento después, ", "; al final, ")),
    "sound": pattern("el sonido ", SPANISH.of_noun),
    "single hear": pattern("", is_heard),
    "hear": pattern("se oye cómo ", SPANISH.clause, listed(" y ")),
    "recording": pattern("una grabación ", SPANISH.of_noun, listed(" y ")),
    "scene": pattern("en esta grabación, ", SPANISH.clause, listed(" y ")),
}


WORDS = Words(
    template=lambda noun: f"Este es el sonido {spanish_of(noun)}.", nouns=nouns("spa"),
    grammar=Grammar(SOUNDS, PATTERNS, BACKGROUND),
)  # fmt: skip
