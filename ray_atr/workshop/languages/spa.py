"""Spanish: how it is called, class labels as captions, and a grammar of captions.

The grammar has contraction (del), personal *a*, agreement of *se oye* and *se oyen*.
"""

from __future__ import annotations

from ray_atr.workshop.languages.language import Adverbs, Grammar, Romance, Said, Words, listed, ordered, pattern


def spanish_of(noun: str) -> str:
    """*de* before a noun; *de el* contracts to *del*."""
    return "del " + noun[3:] if noun.startswith("el ") else "de " + noun


# Label of ESC-50 -> the noun with its article.
NOUNS: dict[str, str] = {
    "dog": "un perro", "rooster": "un gallo", "pig": "un cerdo", "cow": "una vaca", "frog": "una rana",
    "cat": "un gato", "hen": "una gallina", "insects": "insectos", "sheep": "una oveja", "crow": "un cuervo",
    "rain": "la lluvia", "sea_waves": "las olas del mar", "crackling_fire": "un fuego que crepita",
    "crickets": "grillos", "chirping_birds": "pájaros que cantan", "water_drops": "gotas de agua",
    "wind": "el viento", "pouring_water": "agua que se vierte", "toilet_flush": "la cisterna de un inodoro",
    "thunderstorm": "una tormenta",
    "crying_baby": "un bebé que llora", "sneezing": "un estornudo", "clapping": "aplausos",
    "breathing": "una respiración", "coughing": "alguien que tose", "footsteps": "pasos", "laughing": "risas",
    "brushing_teeth": "alguien que se cepilla los dientes", "snoring": "un ronquido",
    "drinking_sipping": "alguien que bebe a sorbos",
    "door_wood_knock": "golpes en una puerta de madera", "mouse_click": "un clic de ratón",
    "keyboard_typing": "alguien que escribe en un teclado", "door_wood_creaks": "una puerta de madera que chirría",
    "can_opening": "una lata que se abre", "washing_machine": "una lavadora", "vacuum_cleaner": "una aspiradora",
    "clock_alarm": "un despertador", "clock_tick": "un reloj que hace tictac",
    "glass_breaking": "un cristal que se rompe",
    "helicopter": "un helicóptero", "chainsaw": "una motosierra", "siren": "una sirena",
    "car_horn": "el claxon de un coche", "engine": "un motor", "train": "un tren",
    "church_bells": "campanas de iglesia", "airplane": "un avión", "fireworks": "fuegos artificiales",
    "hand_saw": "una sierra de mano",
}  # fmt: skip


SOUNDS: dict[str, tuple[str, str, str]] = {
    "dog": ("un perro", "ladra", ""),
    "cat": ("un gato", "maúlla", ""),
    "bird": ("un pájaro", "canta", ""),
    "rooster": ("un gallo", "canta", ""),
    "cow": ("una vaca", "muge", ""),
    "sheep": ("una oveja", "bala", ""),
    "frog": ("una rana", "croa", ""),
    "crickets": ("unos grillos", "cantan", ""),
    "owl": ("un búho", "ulula", ""),
    "crow": ("un cuervo", "grazna", ""),
    "duck": ("un pato", "grazna", ""),
    "bee": ("una abeja", "zumba", ""),
    "wolf": ("un lobo", "aúlla", ""),
    "baby": ("un bebé", "llora", ""),
    "cough": ("un hombre", "tose", ""),
    "sneeze": ("una mujer", "estornuda", ""),
    "snore": ("un hombre", "ronca", ""),
    "applause": ("el público", "aplaude", ""),
    "footsteps": ("alguien", "camina", "sobre un suelo duro"),
    "whistling": ("alguien", "silba una melodía", ""),
    "heartbeat": ("un corazón", "late", ""),
    "rain": ("la lluvia", "cae", ""),
    "thunder": ("un trueno", "retumba", ""),
    "waves": ("las olas", "rompen", "en la orilla"),
    "drip": ("el agua", "gotea", ""),
    "fire": ("el fuego", "crepita", ""),
    "car_horn": ("un coche", "toca la bocina", ""),
    "siren": ("una sirena", "ulula", ""),
    "engine": ("un motor", "funciona", ""),
    "train": ("un tren", "pasa traqueteando", ""),
    "helicopter": ("un helicóptero", "sobrevuela la zona", ""),
    "airplane": ("un avión", "pasa", "por el cielo"),
    "motorcycle": ("una moto", "acelera", ""),
    "drill": ("un taladro", "zumba", ""),
    "vacuum_cleaner": ("una aspiradora", "zumba", ""),
    "clock": ("un reloj", "hace tictac", ""),
    "alarm_clock": ("un despertador", "pita", ""),
    "telephone": ("un teléfono", "suena", ""),
    "doorbell": ("un timbre", "suena", ""),
    "knock": ("alguien", "llama", "a una puerta"),
    "door_creak": ("una puerta", "chirría", ""),
    "door_slam": ("una puerta", "se cierra de golpe", ""),
    "keyboard": ("alguien", "escribe", "en un teclado"),
    "glass": ("un vaso", "se rompe", ""),
    "church_bell": ("una campana de iglesia", "repica", ""),
    "hammer": ("alguien", "martillea", "sobre metal"),
    "fireworks": ("unos fuegos artificiales", "estallan", ""),
    "piano": ("alguien", "toca el piano", ""),
    "drum": ("alguien", "toca el tambor", ""),
    "flute": ("alguien", "toca la flauta", ""),
    "guitar": ("alguien", "toca la guitarra", ""),
}

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
    template=lambda noun: f"Este es el sonido {spanish_of(noun)}.", nouns=NOUNS,
    grammar=Grammar(SOUNDS, PATTERNS, BACKGROUND),
)  # fmt: skip
