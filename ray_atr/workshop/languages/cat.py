"""Catalan: how it is called, class labels as captions, and a grammar of captions.

The grammar has contraction (del, dels), elision (d', l'), agreement of *se sent* and *se senten*.
"""

from __future__ import annotations

from ray_atr.workshop.languages.language import VOWELS, Adverbs, Grammar, Romance, Said, Words, listed, ordered, pattern


def catalan_of(noun: str) -> str:
    """*de* before a noun: del, dels, d'un, de l'aigua."""
    if noun.startswith("el "):
        return "del " + noun[3:]
    if noun.startswith("els "):
        return "dels " + noun[4:]
    return ("d'" if noun[0] in VOWELS else "de ") + noun


# Label of ESC-50 -> the noun with its article.
NOUNS: dict[str, str] = {
    "dog": "un gos", "rooster": "un gall", "pig": "un porc", "cow": "una vaca", "frog": "una granota",
    "cat": "un gat", "hen": "una gallina", "insects": "insectes", "sheep": "una ovella", "crow": "un corb",
    "rain": "la pluja", "sea_waves": "les onades del mar", "crackling_fire": "un foc que crepita",
    "crickets": "grills", "chirping_birds": "ocells que canten", "water_drops": "gotes d'aigua", "wind": "el vent",
    "pouring_water": "aigua que s'aboca", "toilet_flush": "la cisterna d'un vàter", "thunderstorm": "una tempesta",
    "crying_baby": "un nadó que plora", "sneezing": "un esternut", "clapping": "aplaudiments",
    "breathing": "una respiració", "coughing": "algú que tus", "footsteps": "passos", "laughing": "rialles",
    "brushing_teeth": "algú que es raspalla les dents", "snoring": "un ronc",
    "drinking_sipping": "algú que beu a glops",
    "door_wood_knock": "cops a una porta de fusta", "mouse_click": "un clic de ratolí",
    "keyboard_typing": "algú que escriu en un teclat", "door_wood_creaks": "una porta de fusta que grinyola",
    "can_opening": "una llauna que s'obre", "washing_machine": "una rentadora", "vacuum_cleaner": "una aspiradora",
    "clock_alarm": "un despertador", "clock_tick": "un rellotge que fa tic-tac",
    "glass_breaking": "un vidre que es trenca",
    "helicopter": "un helicòpter", "chainsaw": "una motoserra", "siren": "una sirena",
    "car_horn": "el clàxon d'un cotxe", "engine": "un motor", "train": "un tren",
    "church_bells": "campanes d'església", "airplane": "un avió", "fireworks": "focs artificials",
    "hand_saw": "una serra de mà",
}  # fmt: skip


SOUNDS: dict[str, tuple[str, str, str]] = {
    "dog": ("un gos", "borda", ""),
    "cat": ("un gat", "miola", ""),
    "bird": ("un ocell", "canta", ""),
    "rooster": ("un gall", "canta", ""),
    "cow": ("una vaca", "mugeix", ""),
    "sheep": ("una ovella", "bela", ""),
    "frog": ("una granota", "rauca", ""),
    "crickets": ("uns grills", "canten", ""),
    "owl": ("un mussol", "ulula", ""),
    "crow": ("un corb", "gralla", ""),
    "duck": ("un ànec", "claca", ""),
    "bee": ("una abella", "brunzeix", ""),
    "wolf": ("un llop", "udola", ""),
    "baby": ("un nadó", "plora", ""),
    "cough": ("un home", "tus", ""),
    "sneeze": ("una dona", "esternuda", ""),
    "snore": ("un home", "ronca", ""),
    "applause": ("el públic", "aplaudeix", ""),
    "footsteps": ("algú", "camina", "sobre un terra dur"),
    "whistling": ("algú", "xiula una melodia", ""),
    "heartbeat": ("un cor", "batega", ""),
    "rain": ("la pluja", "cau", ""),
    "thunder": ("un tro", "retruny", ""),
    "waves": ("les onades", "trenquen", "a la platja"),
    "drip": ("l'aigua", "degota", ""),
    "fire": ("el foc", "crepita", ""),
    "car_horn": ("un cotxe", "toca el clàxon", ""),
    "siren": ("una sirena", "udola", ""),
    "engine": ("un motor", "funciona", ""),
    "train": ("un tren", "passa", ""),
    "helicopter": ("un helicòpter", "sobrevola la zona", ""),
    "airplane": ("un avió", "passa", "pel cel"),
    "motorcycle": ("una moto", "accelera", ""),
    "drill": ("un trepant", "brunzeix", ""),
    "vacuum_cleaner": ("una aspiradora", "brunzeix", ""),
    "clock": ("un rellotge", "fa tic-tac", ""),
    "alarm_clock": ("un despertador", "pita", ""),
    "telephone": ("un telèfon", "sona", ""),
    "doorbell": ("un timbre", "sona", ""),
    "knock": ("algú", "truca", "a una porta"),
    "door_creak": ("una porta", "grinyola", ""),
    "door_slam": ("una porta", "es tanca de cop", ""),
    "keyboard": ("algú", "escriu", "en un teclat"),
    "glass": ("un got", "es trenca", ""),
    "church_bell": ("una campana d'església", "repica", ""),
    "hammer": ("algú", "martelleja", "sobre metall"),
    "fireworks": ("uns focs artificials", "esclaten", ""),
    "piano": ("algú", "toca el piano", ""),
    "drum": ("algú", "toca el tambor", ""),
    "flute": ("algú", "toca la flauta", ""),
    "guitar": ("algú", "toca la guitarra", ""),
}

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
    template=lambda noun: f"Aquest és el so {catalan_of(noun)}.", nouns=NOUNS,
    grammar=Grammar(SOUNDS, PATTERNS, BACKGROUND),
)  # fmt: skip
