"""German captions: verb second, verb last and inverted clauses, separable verbs, nouns in all four cases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ray_atr.data.soundscapes.grammar.said import Said, adverb, capitalised, listed, words

_ARTICLES = {
    "ein": {
        "m": ("ein", "einen", "einem", "eines"),
        "f": ("eine", "eine", "einer", "einer"),
        "n": ("ein", "ein", "einem", "eines"),
        "p": ("mehrere", "mehrere", "mehreren", "mehrerer"),
    },
    "der": {
        "m": ("der", "den", "dem", "des"),
        "f": ("die", "die", "der", "der"),
        "n": ("das", "das", "dem", "des"),
        "p": ("die", "die", "den", "der"),
    },
}
_RELATIVE = {"m": "der", "f": "die", "n": "das", "p": "die"}
NOMINATIVE, ACCUSATIVE, DATIVE, GENITIVE = range(4)


@dataclass(frozen=True)
class Noun:
    """A noun phrase in its four cases (nominative, accusative, dative, genitive) and its gender (m, f, n, p plural)."""

    cases: tuple[str, str, str, str]
    gender: str


def _noun(article: str, gender: str, noun: str, genitive: str | None = None, dative: str | None = None) -> Noun:
    forms = (noun, noun, dative or noun, genitive or noun)
    phrases = [f"{word} {form}" for word, form in zip(_ARTICLES[article][gender], forms, strict=True)]
    return Noun((phrases[0], phrases[1], phrases[2], phrases[3]), gender)


_MAN, _WOMAN = _noun("ein", "m", "Mann", "Mannes"), _noun("ein", "f", "Frau")
_DOOR = _noun("ein", "f", "Tür")
_SOMEONE = Noun(("jemand", "jemanden", "jemandem", "von jemandem"), "m")

# noun | finite verb | what stands between adverb and verb end | separable prefix
SOUNDS: dict[str, tuple[Noun, str, str, str]] = {
    "dog": (_noun("ein", "m", "Hund", "Hundes"), "bellt", "", ""),
    "cat": (_noun("ein", "f", "Katze"), "miaut", "", ""),
    "bird": (_noun("ein", "m", "Vogel", "Vogels"), "zwitschert", "", ""),
    "rooster": (_noun("ein", "m", "Hahn", "Hahns"), "kräht", "", ""),
    "cow": (_noun("ein", "f", "Kuh"), "muht", "", ""),
    "sheep": (_noun("ein", "n", "Schaf", "Schafs"), "blökt", "", ""),
    "frog": (_noun("ein", "m", "Frosch", "Froschs"), "quakt", "", ""),
    "crickets": (_noun("ein", "p", "Grillen"), "zirpen", "", ""),
    "owl": (_noun("ein", "f", "Eule"), "ruft", "", ""),
    "crow": (_noun("ein", "f", "Krähe"), "krächzt", "", ""),
    "duck": (_noun("ein", "f", "Ente"), "schnattert", "", ""),
    "bee": (_noun("ein", "f", "Biene"), "summt", "", ""),
    "wolf": (_noun("ein", "m", "Wolf", "Wolfs"), "heult", "", ""),
    "baby": (_noun("ein", "n", "Baby", "Babys"), "weint", "", ""),
    "cough": (_MAN, "hustet", "", ""),
    "sneeze": (_WOMAN, "niest", "", ""),
    "snore": (_MAN, "schnarcht", "", ""),
    "applause": (_noun("ein", "n", "Publikum", "Publikums"), "applaudiert", "", ""),
    "footsteps": (_SOMEONE, "geht", "über einen harten Boden", ""),
    "whistling": (_SOMEONE, "pfeift", "eine Melodie", ""),
    "heartbeat": (_noun("ein", "n", "Herz", "Herzens", "Herzen"), "schlägt", "", ""),
    "rain": (_noun("der", "m", "Regen", "Regens"), "prasselt", "", ""),
    "thunder": (_noun("der", "m", "Donner", "Donners"), "grollt", "", ""),
    "waves": (_noun("der", "p", "Wellen"), "schlagen", "ans Ufer", ""),
    "drip": (_noun("der", "n", "Wasser", "Wassers"), "tropft", "", ""),
    "fire": (_noun("ein", "n", "Feuer", "Feuers"), "knistert", "", ""),
    "car_horn": (_noun("ein", "n", "Auto", "Autos"), "hupt", "", ""),
    "siren": (_noun("ein", "f", "Sirene"), "heult", "", ""),
    "engine": (_noun("ein", "m", "Motor", "Motors"), "läuft", "", ""),
    "train": (_noun("ein", "m", "Zug", "Zuges"), "rattert", "", "vorbei"),
    "helicopter": (_noun("ein", "m", "Hubschrauber", "Hubschraubers"), "kreist", "am Himmel", ""),
    "airplane": (_noun("ein", "n", "Flugzeug", "Flugzeugs"), "fliegt", "", "vorbei"),
    "motorcycle": (_noun("ein", "n", "Motorrad", "Motorrads"), "heult", "", "auf"),
    "drill": (_noun("ein", "f", "Bohrmaschine"), "surrt", "", ""),
    "vacuum_cleaner": (_noun("ein", "m", "Staubsauger", "Staubsaugers"), "brummt", "", ""),
    "clock": (_noun("ein", "f", "Uhr"), "tickt", "", ""),
    "alarm_clock": (_noun("ein", "m", "Wecker", "Weckers"), "piept", "", ""),
    "telephone": (_noun("ein", "n", "Telefon", "Telefons"), "klingelt", "", ""),
    "doorbell": (_noun("ein", "f", "Türklingel"), "läutet", "", ""),
    "knock": (_SOMEONE, "klopft", "an eine Tür", ""),
    "door_creak": (_DOOR, "knarrt", "", ""),
    "door_slam": (_DOOR, "schlägt", "", "zu"),
    "keyboard": (_SOMEONE, "tippt", "auf einer Tastatur", ""),
    "glass": (_noun("ein", "n", "Glas", "Glases"), "zerbricht", "", ""),
    "church_bell": (_noun("ein", "f", "Kirchenglocke"), "läutet", "", ""),
    "hammer": (_SOMEONE, "hämmert", "auf Metall", ""),
    "fireworks": (_noun("ein", "n", "Feuerwerk", "Feuerwerks"), "knallt", "", ""),
    "piano": (_SOMEONE, "spielt", "Klavier", ""),
    "drum": (_SOMEONE, "schlägt", "eine Trommel", ""),
    "flute": (_SOMEONE, "spielt", "Flöte", ""),
    "guitar": (_SOMEONE, "spielt", "Gitarre", ""),
}

INTENSITY = {
    "sound": ("laut", "leise"),
    "force": ("kräftig", "sacht"),
    "rain": ("heftig", "sanft"),
    "waves": ("heftig", "sanft"),
}
TEMPO = ("schnell", "langsam")
COUNT = {2: "zweimal", 3: "dreimal", 4: "viermal", 5: "fünfmal"}
BACKGROUND = {
    "hum": "mit elektrischem Brummen im Hintergrund",
    "street": "mit Straßenverkehr im Hintergrund",
    "wind": "mit Wind im Hintergrund",
    "crowd": "mit Stimmengewirr im Hintergrund",
    "fan": "mit einem laufenden Ventilator im Hintergrund",
}


def _middle(said: Said) -> str:
    return words(COUNT.get(said.count or 0, ""), adverb(said, INTENSITY, TEMPO), SOUNDS[said.kind][2])


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


def noun(said: Said, case: int) -> str:
    """The noun in a case with a relative clause: *eines Zuges, der laut vorbeirattert*."""
    phrase, verb, _, prefix = SOUNDS[said.kind]
    return f"{phrase.cases[case]}, {words(_RELATIVE[phrase.gender], _middle(said), prefix + verb)}"


def sentence(arrangement: str, template: str, sounds: Sequence[Said], background: str | None) -> str:
    first, others = sounds[0], sounds[1:]
    is_three = len(sounds) == 3
    match arrangement, template:
        case "single", "plain":
            text = main(first)
        case _, "while":
            text = f"{main(first)}, während {listed([subordinate(said) for said in others], ' und ')}"
        case _, "simultaneous":
            text = f"{listed([main(said) for said in sounds[:-1]], ' und ')}, und gleichzeitig {inverted(sounds[-1])}"
        case _, "then":
            text = f"{main(first)}, dann {inverted(others[0])}" + (f", und zuletzt {inverted(sounds[-1])}" * is_three)
        case _, "first":
            text = f"zuerst {inverted(first)}, danach {inverted(others[0])}"
            text += f", und zum Schluss {inverted(sounds[-1])}" * is_three
        case "sequence", "hear":
            text = f"man hört {noun(first, ACCUSATIVE)}, und danach {noun(others[0], ACCUSATIVE)}"
            text += f", und schließlich {noun(sounds[-1], ACCUSATIVE)}" * is_three
        case "sequence", "recording":
            text = f"eine Aufnahme von {noun(first, DATIVE)}, und dann von {noun(others[0], DATIVE)}"
            text += f", und schließlich von {noun(sounds[-1], DATIVE)}" * is_three
        case "sequence", "scene":
            text = f"in dieser Aufnahme {inverted(first)}; kurz darauf {inverted(others[0])}"
            text += f"; am Ende {inverted(sounds[-1])}" * is_three
        case "single", "sound":
            text = f"das Geräusch {noun(first, GENITIVE)}"
        case _, "hear":
            text = f"man hört {listed([noun(said, ACCUSATIVE) for said in sounds], ', und ')}"
        case _, "recording":
            text = f"eine Aufnahme von {listed([noun(said, DATIVE) for said in sounds], ', und ')}"
        case _:
            text = f"in dieser Aufnahme {inverted(first)}"
            text += f" und {listed([main(said) for said in others], ' und ')}" if others else ""
    return capitalised(text + (f", {BACKGROUND[background]}" if background else ""))
