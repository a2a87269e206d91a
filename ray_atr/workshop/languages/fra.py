"""French: how it is called, class labels as captions, and a grammar of captions.

The grammar has contraction (du, des), elision (d', qu'), partitive and plural articles.
"""

from __future__ import annotations

from ray_atr.workshop.languages.language import VOWELS, Adverbs, Grammar, Romance, Said, Words, listed, ordered, pattern
from ray_atr.workshop.languages.tables import nouns, sounds


def french_of(noun: str) -> str:
    """*de* before a noun: du, des, d'un, de l'eau; the plural article *des* vanishes (des pas: de pas)."""
    if noun.startswith("le "):
        return "du " + noun[3:]
    if noun.startswith("les "):
        return "des " + noun[4:]
    noun = noun.removeprefix("des ")
    return ("d'" if noun[0] in VOWELS else "de ") + noun


SOUNDS = sounds("fra")

ADVERBS = Adverbs(
    {"sound": ("bruyamment", "doucement"), "force": ("violemment", "doucement"), "rain": ("à verse", "doucement"),
     "waves": ("violemment", "doucement")},
    ("rapidement", "lentement"),
    ("deux fois", "trois fois", "quatre fois", "cinq fois"),
)  # fmt: skip
BACKGROUND = {
    "hum": ", avec un bourdonnement électrique en arrière-plan",
    "street": ", avec de la circulation en arrière-plan",
    "wind": ", avec du vent en arrière-plan",
    "crowd": ", avec un murmure de voix en arrière-plan",
    "fan": ", avec un ventilateur qui tourne en arrière-plan",
}
FRENCH = Romance(SOUNDS, ADVERBS, "qui", french_of)


def that(said: Said) -> str:
    """*que* before a clause, elided before a vowel."""
    clause = FRENCH.clause(said)
    return "qu'" + clause if clause[0] in VOWELS else "que " + clause


def followed(said: Said) -> str:
    """The noun with *suivi*, agreeing with it."""
    noun = FRENCH.noun(said)
    is_feminine = noun.startswith(("une ", "la ", "l'eau", "les vagues"))
    return f"{noun}, suivi" + "e" * is_feminine + "s" * noun.startswith(("des ", "les "))


PATTERNS = {
    "plain": pattern("", FRENCH.clause),
    "while": pattern("", FRENCH.clause, ordered(" pendant ", " et "), later=that),
    "simultaneous": pattern("", FRENCH.clause, listed(" et "), " en même temps"),
    "then": pattern("", FRENCH.clause, ordered(", puis ", ", et enfin ")),
    "first": pattern("d'abord, ", FRENCH.clause, ordered(", et ensuite ", ", et pour finir ")),
    "sequence hear": pattern("on entend ", followed, ordered(" ", " et enfin "), later=FRENCH.of_noun),
    "sequence recording": pattern("un enregistrement ", FRENCH.of_noun, ordered(" puis ", ", et enfin ")),
    "sequence scene": pattern(
        "dans cet enregistrement, ", FRENCH.clause, ordered(" ; un instant après, ", " ; à la fin, ")
    ),
    "sound": pattern("le bruit ", FRENCH.of_noun),
    "hear": pattern("on entend ", FRENCH.noun, listed(" et ")),
    "recording": pattern("un enregistrement ", FRENCH.of_noun, listed(" et ")),
    "scene": pattern("dans cet enregistrement, ", FRENCH.clause, listed(" et ")),
}


WORDS = Words(
    template=lambda noun: f"C'est le bruit {french_of(noun)}.", nouns=nouns("fra"),
    grammar=Grammar(SOUNDS, PATTERNS, BACKGROUND),
)  # fmt: skip
