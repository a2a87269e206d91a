"""*of* before a noun in French, Spanish and Catalan, contracted and elided with the noun's article."""

from __future__ import annotations

VOWELS = "aeiouàâèéêëíïîòóôúœ"


def french_of(noun: str) -> str:
    """*de* before a noun: du, des, d'un, de l'eau; the plural article *des* vanishes (des pas: de pas)."""
    if noun.startswith("le "):
        return "du " + noun[3:]
    if noun.startswith("les "):
        return "des " + noun[4:]
    noun = noun.removeprefix("des ")
    return ("d'" if noun[0] in VOWELS else "de ") + noun


def spanish_of(noun: str) -> str:
    """*de* before a noun; *de el* contracts to *del*."""
    return "del " + noun[3:] if noun.startswith("el ") else "de " + noun


def catalan_of(noun: str) -> str:
    """*de* before a noun: del, dels, d'un, de l'aigua."""
    if noun.startswith("el "):
        return "del " + noun[3:]
    if noun.startswith("els "):
        return "dels " + noun[4:]
    return ("d'" if noun[0] in VOWELS else "de ") + noun
