"""German: how it is called, class labels as captions, and a grammar of captions.

The grammar has verb second, verb last and inverted clauses, separable verbs, nouns in all four cases.
"""

from __future__ import annotations

from typing import NamedTuple

from ray_atr.workshop.languages.language import Adverbs, Form, Grammar, Said, Words, listed, ordered, pattern, words

# Label of ESC-50 -> the noun with its article in the genitive.
NOUNS: dict[str, str] = {
    "dog": "eines Hundes", "rooster": "eines Hahns", "pig": "eines Schweins", "cow": "einer Kuh",
    "frog": "eines Froschs", "cat": "einer Katze", "hen": "einer Henne", "insects": "von Insekten",
    "sheep": "eines Schafs", "crow": "einer Krähe",
    "rain": "des Regens", "sea_waves": "von Meereswellen", "crackling_fire": "eines knisternden Feuers",
    "crickets": "von Grillen", "chirping_birds": "von zwitschernden Vögeln", "water_drops": "von Wassertropfen",
    "wind": "des Windes", "pouring_water": "von Wasser, das eingegossen wird",
    "toilet_flush": "einer Toilettenspülung", "thunderstorm": "eines Gewitters",
    "crying_baby": "eines weinenden Babys", "sneezing": "des Niesens", "clapping": "des Klatschens",
    "breathing": "des Atmens", "coughing": "des Hustens", "footsteps": "von Schritten", "laughing": "des Lachens",
    "brushing_teeth": "des Zähneputzens", "snoring": "des Schnarchens",
    "drinking_sipping": "von jemandem, der in kleinen Schlucken trinkt",
    "door_wood_knock": "des Klopfens an einer Holztür", "mouse_click": "eines Mausklicks",
    "keyboard_typing": "des Tippens auf einer Tastatur", "door_wood_creaks": "einer knarrenden Holztür",
    "can_opening": "des Öffnens einer Dose", "washing_machine": "einer Waschmaschine",
    "vacuum_cleaner": "eines Staubsaugers", "clock_alarm": "eines Weckers", "clock_tick": "einer tickenden Uhr",
    "glass_breaking": "von zerbrechendem Glas",
    "helicopter": "eines Hubschraubers", "chainsaw": "einer Kettensäge", "siren": "einer Sirene",
    "car_horn": "einer Autohupe", "engine": "eines Motors", "train": "eines Zuges",
    "church_bells": "von Kirchenglocken", "airplane": "eines Flugzeugs", "fireworks": "eines Feuerwerks",
    "hand_saw": "einer Handsäge",
}  # fmt: skip


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


_MAN, _WOMAN = _noun("m", "Mann", "Mannes"), _noun("f", "Frau")
_DOOR = _noun("f", "Tür")
_SOMEONE = Noun(("jemand", "jemanden", "jemandem", "von jemandem"), "m")

# noun | finite verb | what is between adverb and verb end | separable prefix
SOUNDS: dict[str, tuple[Noun, str, str, str]] = {
    "dog": (_noun("m", "Hund", "Hundes"), "bellt", "", ""),
    "cat": (_noun("f", "Katze"), "miaut", "", ""),
    "bird": (_noun("m", "Vogel", "Vogels"), "zwitschert", "", ""),
    "rooster": (_noun("m", "Hahn", "Hahns"), "kräht", "", ""),
    "cow": (_noun("f", "Kuh"), "muht", "", ""),
    "sheep": (_noun("n", "Schaf", "Schafs"), "blökt", "", ""),
    "frog": (_noun("m", "Frosch", "Froschs"), "quakt", "", ""),
    "crickets": (_noun("p", "Grillen"), "zirpen", "", ""),
    "owl": (_noun("f", "Eule"), "ruft", "", ""),
    "crow": (_noun("f", "Krähe"), "krächzt", "", ""),
    "duck": (_noun("f", "Ente"), "schnattert", "", ""),
    "bee": (_noun("f", "Biene"), "summt", "", ""),
    "wolf": (_noun("m", "Wolf", "Wolfs"), "heult", "", ""),
    "baby": (_noun("n", "Baby", "Babys"), "weint", "", ""),
    "cough": (_MAN, "hustet", "", ""),
    "sneeze": (_WOMAN, "niest", "", ""),
    "snore": (_MAN, "schnarcht", "", ""),
    "applause": (_noun("n", "Publikum", "Publikums"), "applaudiert", "", ""),
    "footsteps": (_SOMEONE, "geht", "über einen harten Boden", ""),
    "whistling": (_SOMEONE, "pfeift", "eine Melodie", ""),
    "heartbeat": (_noun("n", "Herz", "Herzens", "Herzen"), "schlägt", "", ""),
    "rain": (_bare("m", "Regen"), "prasselt", "", ""),
    "thunder": (_bare("m", "Donner"), "grollt", "", ""),
    "waves": (_bare("p", "Wellen"), "schlagen", "ans Ufer", ""),
    "drip": (_bare("n", "Wasser"), "tropft", "", ""),
    "fire": (_noun("n", "Feuer", "Feuers"), "knistert", "", ""),
    "car_horn": (_noun("n", "Auto", "Autos"), "hupt", "", ""),
    "siren": (_noun("f", "Sirene"), "heult", "", ""),
    "engine": (_noun("m", "Motor", "Motors"), "läuft", "", ""),
    "train": (_noun("m", "Zug", "Zuges"), "rattert", "", "vorbei"),
    "helicopter": (_noun("m", "Hubschrauber", "Hubschraubers"), "kreist", "am Himmel", ""),
    "airplane": (_noun("n", "Flugzeug", "Flugzeugs"), "fliegt", "", "vorbei"),
    "motorcycle": (_noun("n", "Motorrad", "Motorrads"), "heult", "", "auf"),
    "drill": (_noun("f", "Bohrmaschine"), "surrt", "", ""),
    "vacuum_cleaner": (_noun("m", "Staubsauger", "Staubsaugers"), "brummt", "", ""),
    "clock": (_noun("f", "Uhr"), "tickt", "", ""),
    "alarm_clock": (_noun("m", "Wecker", "Weckers"), "piept", "", ""),
    "telephone": (_noun("n", "Telefon", "Telefons"), "klingelt", "", ""),
    "doorbell": (_noun("f", "Türklingel"), "läutet", "", ""),
    "knock": (_SOMEONE, "klopft", "an eine Tür", ""),
    "door_creak": (_DOOR, "knarrt", "", ""),
    "door_slam": (_DOOR, "schlägt", "", "zu"),
    "keyboard": (_SOMEONE, "tippt", "auf einer Tastatur", ""),
    "glass": (_noun("n", "Glas", "Glases"), "zerbricht", "", ""),
    "church_bell": (_noun("f", "Kirchenglocke"), "läutet", "", ""),
    "hammer": (_SOMEONE, "hämmert", "auf Metall", ""),
    "fireworks": (_noun("n", "Feuerwerk", "Feuerwerks"), "knallt", "", ""),
    "piano": (_SOMEONE, "spielt", "Klavier", ""),
    "drum": (_SOMEONE, "schlägt", "eine Trommel", ""),
    "flute": (_SOMEONE, "spielt", "Flöte", ""),
    "guitar": (_SOMEONE, "spielt", "Gitarre", ""),
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
    template=lambda noun: f"Das ist das Geräusch {noun}.", nouns=NOUNS,
    grammar=Grammar(SOUNDS, PATTERNS, BACKGROUND),
)  # fmt: skip
