"""Dutch: how it is called, class labels as captions, and a grammar of captions.

The grammar has verb second, verb last and inverted clauses, separable verbs, *die* and *dat*.
"""

from __future__ import annotations

from ray_atr.workshop.languages.language import Adverbs, Grammar, Said, Words, listed, ordered, pattern, words

# Label of ESC-50 -> the noun with its article.
NOUNS: dict[str, str] = {
    "dog": "een hond", "rooster": "een haan", "pig": "een varken", "cow": "een koe", "frog": "een kikker",
    "cat": "een kat", "hen": "een kip", "insects": "insecten", "sheep": "een schaap", "crow": "een kraai",
    "rain": "regen", "sea_waves": "zeegolven", "crackling_fire": "een knetterend vuur", "crickets": "krekels",
    "chirping_birds": "tjilpende vogels", "water_drops": "waterdruppels", "wind": "de wind",
    "pouring_water": "water dat wordt ingeschonken", "toilet_flush": "een toilet dat wordt doorgespoeld",
    "thunderstorm": "een onweersbui",
    "crying_baby": "een huilende baby", "sneezing": "iemand die niest", "clapping": "handgeklap",
    "breathing": "ademhaling", "coughing": "iemand die hoest", "footsteps": "voetstappen", "laughing": "gelach",
    "brushing_teeth": "iemand die tanden poetst", "snoring": "gesnurk",
    "drinking_sipping": "iemand die met kleine slokjes drinkt",
    "door_wood_knock": "geklop op een houten deur", "mouse_click": "een muisklik",
    "keyboard_typing": "iemand die op een toetsenbord typt", "door_wood_creaks": "een krakende houten deur",
    "can_opening": "een blikje dat wordt geopend", "washing_machine": "een wasmachine",
    "vacuum_cleaner": "een stofzuiger", "clock_alarm": "een wekker", "clock_tick": "een tikkende klok",
    "glass_breaking": "brekend glas",
    "helicopter": "een helikopter", "chainsaw": "een kettingzaag", "siren": "een sirene",
    "car_horn": "een autoclaxon", "engine": "een motor", "train": "een trein", "church_bells": "kerkklokken",
    "airplane": "een vliegtuig", "fireworks": "vuurwerk", "hand_saw": "een handzaag",
}  # fmt: skip


# subject | relative pronoun | finite verb | what is between adverb and verb end | separable prefix
SOUNDS: dict[str, tuple[str, str, str, str, str]] = {
    "dog": ("een hond", "die", "blaft", "", ""),
    "cat": ("een kat", "die", "miauwt", "", ""),
    "bird": ("een vogel", "die", "tjilpt", "", ""),
    "rooster": ("een haan", "die", "kraait", "", ""),
    "cow": ("een koe", "die", "loeit", "", ""),
    "sheep": ("een schaap", "dat", "blaat", "", ""),
    "frog": ("een kikker", "die", "kwaakt", "", ""),
    "crickets": ("krekels", "die", "tjirpen", "", ""),
    "owl": ("een uil", "die", "roept", "", ""),
    "crow": ("een kraai", "die", "krast", "", ""),
    "duck": ("een eend", "die", "snatert", "", ""),
    "bee": ("een bij", "die", "zoemt", "", ""),
    "wolf": ("een wolf", "die", "huilt", "", ""),
    "baby": ("een baby", "die", "huilt", "", ""),
    "cough": ("een man", "die", "hoest", "", ""),
    "sneeze": ("een vrouw", "die", "niest", "", ""),
    "snore": ("een man", "die", "snurkt", "", ""),
    "applause": ("een publiek", "dat", "applaudisseert", "", ""),
    "footsteps": ("iemand", "die", "loopt", "over een harde vloer", ""),
    "whistling": ("iemand", "die", "fluit", "een deuntje", ""),
    "heartbeat": ("een hart", "dat", "klopt", "", ""),
    "rain": ("regen", "die", "valt", "", ""),
    "thunder": ("de donder", "die", "rommelt", "", ""),
    "waves": ("golven", "die", "slaan", "tegen de kust", ""),
    "drip": ("water", "dat", "druppelt", "", ""),
    "fire": ("een vuur", "dat", "knettert", "", ""),
    "car_horn": ("een auto", "die", "toetert", "", ""),
    "siren": ("een sirene", "die", "loeit", "", ""),
    "engine": ("een motor", "die", "draait", "", ""),
    "train": ("een trein", "die", "rijdt", "", "voorbij"),
    "helicopter": ("een helikopter", "die", "vliegt", "", "over"),
    "airplane": ("een vliegtuig", "dat", "vliegt", "", "voorbij"),
    "motorcycle": ("een motorfiets", "die", "geeft", "gas", ""),
    "drill": ("een boormachine", "die", "ronkt", "", ""),
    "vacuum_cleaner": ("een stofzuiger", "die", "bromt", "", ""),
    "clock": ("een klok", "die", "tikt", "", ""),
    "alarm_clock": ("een wekker", "die", "piept", "", ""),
    "telephone": ("een telefoon", "die", "rinkelt", "", ""),
    "doorbell": ("een deurbel", "die", "klinkt", "", ""),
    "knock": ("iemand", "die", "klopt", "op een deur", ""),
    "door_creak": ("een deur", "die", "kraakt", "", ""),
    "door_slam": ("een deur", "die", "slaat", "", "dicht"),
    "keyboard": ("iemand", "die", "typt", "op een toetsenbord", ""),
    "glass": ("een glas", "dat", "breekt", "", ""),
    "church_bell": ("een kerkklok", "die", "galmt", "", ""),
    "hammer": ("iemand", "die", "hamert", "op metaal", ""),
    "fireworks": ("vuurwerk", "dat", "knalt", "", ""),
    "piano": ("iemand", "die", "speelt", "piano", ""),
    "drum": ("iemand", "die", "slaat", "op een trommel", ""),
    "flute": ("iemand", "die", "speelt", "fluit", ""),
    "guitar": ("iemand", "die", "speelt", "gitaar", ""),
}

ADVERBS = Adverbs(
    {"sound": ("luid", "zacht")} | dict.fromkeys(("force", "rain", "waves"), ("hard", "zacht")),
    ("snel", "langzaam"),
    ("twee keer", "drie keer", "vier keer", "vijf keer"),
)
BACKGROUND = {
    "hum": ", met een elektrisch gebrom op de achtergrond",
    "street": ", met verkeer op de achtergrond",
    "wind": ", met wind op de achtergrond",
    "crowd": ", met geroezemoes op de achtergrond",
    "fan": ", met een draaiende ventilator op de achtergrond",
}


def _middle(said: Said) -> str:
    return words(ADVERBS.times(said), ADVERBS.manner(said), SOUNDS[said.kind][3])


def main(said: Said) -> str:
    """Verb second: *een deur slaat luid dicht*."""
    subject, _, verb, _, prefix = SOUNDS[said.kind]
    return words(subject, verb, _middle(said), prefix)


def inverted(said: Said) -> str:
    """Subject after the verb, announced by *er* where indefinite and alone: *(dan) slaat er een deur dicht*."""
    subject, _, verb, _, prefix = SOUNDS[said.kind]
    middle = _middle(said)
    is_announced = not middle and not subject.startswith(("de ", "het ", "iemand"))
    return words(verb, "er" * is_announced, subject, middle, prefix)


def subordinate(said: Said) -> str:
    """Verb last, prefix attached: *(terwijl) een deur luid dichtslaat*."""
    subject, _, verb, _, prefix = SOUNDS[said.kind]
    return words(subject, _middle(said), prefix + verb)


def noun(said: Said) -> str:
    """The noun with a relative clause: *een deur die luid dichtslaat*."""
    subject, relative, verb, _, prefix = SOUNDS[said.kind]
    return words(subject, relative, _middle(said), prefix + verb)


PATTERNS = {
    "plain": pattern("", main),
    "while": pattern("", main, ordered(" terwijl ", " en "), later=subordinate),
    "simultaneous": pattern("", main, listed(" en tegelijkertijd "), last=inverted),
    "then": pattern("", main, ordered(", dan ", " en ten slotte "), later=inverted),
    "first": pattern("eerst ", inverted, ordered(", daarna ", " en tot slot ")),
    "sequence hear": pattern("je hoort ", noun, ordered(", gevolgd door ", " en ten slotte ")),
    "sequence recording": pattern("een opname van ", noun, ordered(" en daarna ", ", en ten slotte ")),
    "sequence scene": pattern("in deze opname ", inverted, ordered("; even later ", "; op het einde ")),
    "sound": pattern("het geluid van ", noun),
    "hear": pattern("je hoort ", noun, listed(" en ")),
    "recording": pattern("een opname van ", noun, listed(" en ")),
    "scene": pattern("in deze opname ", inverted, listed(" en ")),
}


WORDS = Words(
    template=lambda noun: f"Dit is het geluid van {noun}.", nouns=NOUNS,
    grammar=Grammar(SOUNDS, PATTERNS, BACKGROUND),
)  # fmt: skip
