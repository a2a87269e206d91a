"""French: how it is called, class labels as captions, and a grammar of captions.

The grammar has contraction (du, des), elision (d', qu'), partitive and plural articles.
"""

from __future__ import annotations

from ray_atr.workshop.languages.language import VOWELS, Adverbs, Grammar, Romance, Said, Words, listed, ordered, pattern


def french_of(noun: str) -> str:
    """*de* before a noun: du, des, d'un, de l'eau; the plural article *des* vanishes (des pas: de pas)."""
    if noun.startswith("le "):
        return "du " + noun[3:]
    if noun.startswith("les "):
        return "des " + noun[4:]
    noun = noun.removeprefix("des ")
    return ("d'" if noun[0] in VOWELS else "de ") + noun


# Label of ESC-50 -> the noun with its article.
NOUNS: dict[str, str] = {
    "dog": "un chien", "rooster": "un coq", "pig": "un cochon", "cow": "une vache", "frog": "une grenouille",
    "cat": "un chat", "hen": "une poule", "insects": "des insectes", "sheep": "un mouton", "crow": "un corbeau",
    "rain": "la pluie", "sea_waves": "les vagues de la mer", "crackling_fire": "un feu qui crépite",
    "crickets": "des grillons", "chirping_birds": "des oiseaux qui gazouillent", "water_drops": "des gouttes d'eau",
    "wind": "le vent", "pouring_water": "l'eau que l'on verse", "toilet_flush": "une chasse d'eau",
    "thunderstorm": "un orage",
    "crying_baby": "un bébé qui pleure", "sneezing": "un éternuement", "clapping": "des applaudissements",
    "breathing": "une respiration", "coughing": "quelqu'un qui tousse", "footsteps": "des pas", "laughing": "un rire",
    "brushing_teeth": "quelqu'un qui se brosse les dents", "snoring": "un ronflement",
    "drinking_sipping": "quelqu'un qui boit à petites gorgées",
    "door_wood_knock": "des coups à une porte en bois", "mouse_click": "un clic de souris",
    "keyboard_typing": "quelqu'un qui tape sur un clavier", "door_wood_creaks": "une porte en bois qui grince",
    "can_opening": "une canette que l'on ouvre", "washing_machine": "une machine à laver",
    "vacuum_cleaner": "un aspirateur", "clock_alarm": "un réveil", "clock_tick": "une horloge qui fait tic-tac",
    "glass_breaking": "le verre qui se brise",
    "helicopter": "un hélicoptère", "chainsaw": "une tronçonneuse", "siren": "une sirène",
    "car_horn": "un klaxon de voiture", "engine": "un moteur", "train": "un train",
    "church_bells": "des cloches d'église", "airplane": "un avion", "fireworks": "un feu d'artifice",
    "hand_saw": "une scie à main",
}  # fmt: skip


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
    template=lambda noun: f"C'est le bruit {french_of(noun)}.", nouns=NOUNS,
    grammar=Grammar(SOUNDS, PATTERNS, BACKGROUND),
)  # fmt: skip
