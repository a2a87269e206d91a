"""Catalan: how it is called, class labels as captions, and a grammar of captions.

The grammar has contraction (del, dels), elision (d', l'), agreement of *se sent* and *se senten*.
"""

from __future__ import annotations

from collections.abc import Sequence

from ray_atr.languages.language import Grammar, Language
from ray_atr.languages.romance import VOWELS, Romance
from ray_atr.languages.said import Said, capitalised, listed, ordered


def catalan_of(noun: str) -> str:
    """*de* before a noun: del, dels, d'un, de l'aigua."""
    if noun.startswith("el "):
        return "del " + noun[3:]
    if noun.startswith("els "):
        return "dels " + noun[4:]
    return ("d'" if noun[0] in VOWELS else "de ") + noun


# Label of ESC-50 -> the noun with its article.
NOUNS: dict[str, str] = {
    "dog": "un gos",
    "rooster": "un gall",
    "pig": "un porc",
    "cow": "una vaca",
    "frog": "una granota",
    "cat": "un gat",
    "hen": "una gallina",
    "insects": "insectes",
    "sheep": "una ovella",
    "crow": "un corb",
    "rain": "la pluja",
    "sea_waves": "les onades del mar",
    "crackling_fire": "un foc que crepita",
    "crickets": "grills",
    "chirping_birds": "ocells que canten",
    "water_drops": "gotes d'aigua",
    "wind": "el vent",
    "pouring_water": "aigua que s'aboca",
    "toilet_flush": "la cisterna d'un vàter",
    "thunderstorm": "una tempesta",
    "crying_baby": "un nadó que plora",
    "sneezing": "un esternut",
    "clapping": "aplaudiments",
    "breathing": "una respiració",
    "coughing": "algú que tus",
    "footsteps": "passos",
    "laughing": "rialles",
    "brushing_teeth": "algú que es raspalla les dents",
    "snoring": "un ronc",
    "drinking_sipping": "algú que beu a glops",
    "door_wood_knock": "cops a una porta de fusta",
    "mouse_click": "un clic de ratolí",
    "keyboard_typing": "algú que escriu en un teclat",
    "door_wood_creaks": "una porta de fusta que grinyola",
    "can_opening": "una llauna que s'obre",
    "washing_machine": "una rentadora",
    "vacuum_cleaner": "una aspiradora",
    "clock_alarm": "un despertador",
    "clock_tick": "un rellotge que fa tic-tac",
    "glass_breaking": "un vidre que es trenca",
    "helicopter": "un helicòpter",
    "chainsaw": "una motoserra",
    "siren": "una sirena",
    "car_horn": "el clàxon d'un cotxe",
    "engine": "un motor",
    "train": "un tren",
    "church_bells": "campanes d'església",
    "airplane": "un avió",
    "fireworks": "focs artificials",
    "hand_saw": "una serra de mà",
}


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

INTENSITY = {"sound": ("fort", "fluix"), "rain": ("amb força", "suaument"), "waves": ("amb força", "suaument")}
BACKGROUND = {
    "hum": "amb un brunzit elèctric de fons",
    "street": "amb trànsit de fons",
    "wind": "amb vent de fons",
    "crowd": "amb un murmuri de veus de fons",
    "fan": "amb un ventilador en marxa de fons",
}
_PLURALS = ("uns ", "unes ", "els ", "les ")


CATALAN = Romance(
    SOUNDS,
    INTENSITY,
    ("ràpidament", "lentament"),
    {2: "dues vegades", 3: "tres vegades", 4: "quatre vegades", 5: "cinc vegades"},
    "que",
    catalan_of,
)


def sentence(arrangement: str, template: str, sounds: Sequence[Said], background: str | None) -> str:
    clauses = [CATALAN.clause(said) for said in sounds]
    of_nouns = [CATALAN.of_noun(said) for said in sounds]
    match arrangement, template:
        case "single", "plain":
            text = clauses[0]
        case _, "while":
            text = f"{clauses[0]} mentre {listed(clauses[1:], ' i ')}"
        case _, "simultaneous":
            text = f"{listed(clauses, ' i ')} alhora"
        case _, "then":
            text = ordered(clauses, ", després ", " i finalment ")
        case _, "first":
            text = "primer " + ordered(clauses, " i tot seguit ", ", i al final ")
        case "sequence", "hear":
            text = "se sent com " + ordered(clauses, " i a continuació ", ", i finalment ")
        case "sequence", "recording":
            text = "un enregistrament " + ordered(of_nouns, " i després ", ", i finalment ")
        case "sequence", "scene":
            text = "en aquest enregistrament, " + ordered(clauses, "; un moment després, ", "; al final, ")
        case "single", "sound":
            text = f"el so {of_nouns[0]}"
        case "single", "hear":
            noun = CATALAN.noun(sounds[0])
            text = ("se senten " if noun.startswith(_PLURALS) else "se sent ") + noun
        case _, "hear":
            text = f"se sent com {listed(clauses, ' i ')}"
        case _, "recording":
            text = f"un enregistrament {listed(of_nouns, ' i ')}"
        case _:
            text = f"en aquest enregistrament, {listed(clauses, ' i ')}"
    return capitalised(text + (f", {BACKGROUND[background]}" if background else ""))


LANGUAGE = Language(
    code="cat",
    name="Catalan",
    endonym="català",
    iso_639_1="ca",
    tag="cat_Latn",
    template=lambda noun: f"Aquest és el so {catalan_of(noun)}.",
    nouns=NOUNS,
    grammar=Grammar(sentence, SOUNDS),
)
