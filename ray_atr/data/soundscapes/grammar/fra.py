"""French captions: contraction (du, des), elision (d', qu'), partitive and plural articles."""

from __future__ import annotations

from collections.abc import Sequence

from ray_atr.data.prepositions import VOWELS, french_of
from ray_atr.data.soundscapes.grammar.romance import Romance
from ray_atr.data.soundscapes.grammar.said import Said, capitalised, listed, ordered

SOUNDS: dict[str, tuple[str, str, str]] = {
    "dog": ("un chien", "aboie", ""),
    "cat": ("un chat", "miaule", ""),
    "bird": ("un oiseau", "gazouille", ""),
    "rooster": ("un coq", "chante", ""),
    "cow": ("une vache", "meugle", ""),
    "sheep": ("un mouton", "bêle", ""),
    "frog": ("une grenouille", "coasse", ""),
    "crickets": ("des grillons", "chantent", ""),
    "owl": ("une chouette", "hulule", ""),
    "crow": ("un corbeau", "croasse", ""),
    "duck": ("un canard", "cancane", ""),
    "bee": ("une abeille", "bourdonne", ""),
    "wolf": ("un loup", "hurle", ""),
    "baby": ("un bébé", "pleure", ""),
    "cough": ("un homme", "tousse", ""),
    "sneeze": ("une femme", "éternue", ""),
    "snore": ("un homme", "ronfle", ""),
    "applause": ("le public", "applaudit", ""),
    "footsteps": ("quelqu'un", "marche", "sur un sol dur"),
    "whistling": ("quelqu'un", "siffle", "un air"),
    "heartbeat": ("un cœur", "bat", ""),
    "rain": ("la pluie", "tombe", ""),
    "thunder": ("le tonnerre", "gronde", ""),
    "waves": ("les vagues", "se brisent", "sur le rivage"),
    "drip": ("l'eau", "goutte", ""),
    "fire": ("le feu", "crépite", ""),
    "car_horn": ("une voiture", "klaxonne", ""),
    "siren": ("une sirène", "hurle", ""),
    "engine": ("un moteur", "tourne", ""),
    "train": ("un train", "passe", ""),
    "helicopter": ("un hélicoptère", "survole", "les lieux"),
    "airplane": ("un avion", "passe", "dans le ciel"),
    "motorcycle": ("une moto", "accélère", ""),
    "drill": ("une perceuse", "vrombit", ""),
    "vacuum_cleaner": ("un aspirateur", "ronronne", ""),
    "clock": ("une horloge", "fait tic-tac", ""),
    "alarm_clock": ("un réveil", "bipe", ""),
    "telephone": ("un téléphone", "sonne", ""),
    "doorbell": ("une sonnette", "retentit", ""),
    "knock": ("quelqu'un", "frappe", "à une porte"),
    "door_creak": ("une porte", "grince", ""),
    "door_slam": ("une porte", "claque", ""),
    "keyboard": ("quelqu'un", "tape", "sur un clavier"),
    "glass": ("un verre", "se brise", ""),
    "church_bell": ("une cloche d'église", "sonne", ""),
    "hammer": ("quelqu'un", "frappe", "sur du métal avec un marteau"),
    "fireworks": ("des feux d'artifice", "éclatent", ""),
    "piano": ("quelqu'un", "joue", "du piano"),
    "drum": ("quelqu'un", "joue", "du tambour"),
    "flute": ("quelqu'un", "joue", "de la flûte"),
    "guitar": ("quelqu'un", "joue", "de la guitare"),
}

INTENSITY = {
    "sound": ("bruyamment", "doucement"),
    "force": ("violemment", "doucement"),
    "rain": ("à verse", "doucement"),
    "waves": ("violemment", "doucement"),
}
BACKGROUND = {
    "hum": "avec un bourdonnement électrique en arrière-plan",
    "street": "avec de la circulation en arrière-plan",
    "wind": "avec du vent en arrière-plan",
    "crowd": "avec un murmure de voix en arrière-plan",
    "fan": "avec un ventilateur qui tourne en arrière-plan",
}


def that(clause: str) -> str:
    """*que* before a clause, elided before a vowel."""
    return "qu'" + clause if clause[0] in VOWELS else "que " + clause


def followed(noun: str) -> str:
    """*suivi*, agreeing with its noun."""
    is_feminine = noun.startswith(("une ", "la ", "l'eau", "les vagues"))
    return "suivi" + "e" * is_feminine + "s" * noun.startswith(("des ", "les "))


FRENCH = Romance(
    SOUNDS,
    INTENSITY,
    ("rapidement", "lentement"),
    {2: "deux fois", 3: "trois fois", 4: "quatre fois", 5: "cinq fois"},
    "qui",
    french_of,
)


def sentence(arrangement: str, template: str, sounds: Sequence[Said], background: str | None) -> str:
    clauses = [FRENCH.clause(said) for said in sounds]
    nouns, of_nouns = [FRENCH.noun(said) for said in sounds], [FRENCH.of_noun(said) for said in sounds]
    match arrangement, template:
        case "single", "plain":
            text = clauses[0]
        case _, "while":
            text = f"{clauses[0]} pendant {listed([that(clause) for clause in clauses[1:]], ' et ')}"
        case _, "simultaneous":
            text = f"{listed(clauses, ' et ')} en même temps"
        case _, "then":
            text = ordered(clauses, ", puis ", ", et enfin ")
        case _, "first":
            text = "d'abord, " + ordered(clauses, ", et ensuite ", ", et pour finir ")
        case "sequence", "hear":
            text = "on entend " + ordered([nouns[0], *of_nouns[1:]], f", {followed(nouns[0])} ", " et enfin ")
        case "sequence", "recording":
            text = "un enregistrement " + ordered(of_nouns, " puis ", ", et enfin ")
        case "sequence", "scene":
            text = "dans cet enregistrement, " + ordered(clauses, " ; un instant après, ", " ; à la fin, ")
        case "single", "sound":
            text = f"le bruit {of_nouns[0]}"
        case _, "hear":
            text = f"on entend {listed(nouns, ' et ')}"
        case _, "recording":
            text = f"un enregistrement {listed(of_nouns, ' et ')}"
        case _:
            text = f"dans cet enregistrement, {listed(clauses, ' et ')}"
    return capitalised(text + (f", {BACKGROUND[background]}" if background else ""))
