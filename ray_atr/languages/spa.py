"""Spanish: how it is called, class labels as captions, and a grammar of captions.

The grammar has contraction (del), personal *a*, agreement of *se oye* and *se oyen*.
"""

from __future__ import annotations

from collections.abc import Sequence

from ray_atr.languages.language import Grammar, Language
from ray_atr.languages.romance import Romance
from ray_atr.languages.said import Said, capitalised, listed, ordered


def spanish_of(noun: str) -> str:
    """*de* before a noun; *de el* contracts to *del*."""
    return "del " + noun[3:] if noun.startswith("el ") else "de " + noun


# Label of ESC-50 -> the noun with its article.
NOUNS: dict[str, str] = {
    "dog": "un perro",
    "rooster": "un gallo",
    "pig": "un cerdo",
    "cow": "una vaca",
    "frog": "una rana",
    "cat": "un gato",
    "hen": "una gallina",
    "insects": "insectos",
    "sheep": "una oveja",
    "crow": "un cuervo",
    "rain": "la lluvia",
    "sea_waves": "las olas del mar",
    "crackling_fire": "un fuego que crepita",
    "crickets": "grillos",
    "chirping_birds": "pájaros que cantan",
    "water_drops": "gotas de agua",
    "wind": "el viento",
    "pouring_water": "agua que se vierte",
    "toilet_flush": "la cisterna de un inodoro",
    "thunderstorm": "una tormenta",
    "crying_baby": "un bebé que llora",
    "sneezing": "un estornudo",
    "clapping": "aplausos",
    "breathing": "una respiración",
    "coughing": "alguien que tose",
    "footsteps": "pasos",
    "laughing": "risas",
    "brushing_teeth": "alguien que se cepilla los dientes",
    "snoring": "un ronquido",
    "drinking_sipping": "alguien que bebe a sorbos",
    "door_wood_knock": "golpes en una puerta de madera",
    "mouse_click": "un clic de ratón",
    "keyboard_typing": "alguien que escribe en un teclado",
    "door_wood_creaks": "una puerta de madera que chirría",
    "can_opening": "una lata que se abre",
    "washing_machine": "una lavadora",
    "vacuum_cleaner": "una aspiradora",
    "clock_alarm": "un despertador",
    "clock_tick": "un reloj que hace tictac",
    "glass_breaking": "un cristal que se rompe",
    "helicopter": "un helicóptero",
    "chainsaw": "una motosierra",
    "siren": "una sirena",
    "car_horn": "el claxon de un coche",
    "engine": "un motor",
    "train": "un tren",
    "church_bells": "campanas de iglesia",
    "airplane": "un avión",
    "fireworks": "fuegos artificiales",
    "hand_saw": "una sierra de mano",
}


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
INTENSITY = {"sound": ("ruidosamente", "suavemente")}
INTENSITY |= dict.fromkeys(("voice", "body", "force", "rain", "waves"), _FORCE)
BACKGROUND = {
    "hum": "con un zumbido eléctrico de fondo",
    "street": "con tráfico de fondo",
    "wind": "con viento de fondo",
    "crowd": "con un murmullo de voces de fondo",
    "fan": "con un ventilador en marcha de fondo",
}
_PEOPLE = ("alguien", "un hombre", "una mujer", "un bebé")
_PLURALS = ("unos ", "unas ", "los ", "las ")


def is_heard(noun: str) -> str:
    """*se oye* with its noun: personal *a* before people, plural verb before a plural."""
    if noun.startswith("el público"):
        return "se oye al " + noun[3:]
    if noun.startswith(_PEOPLE):
        return "se oye a " + noun
    return ("se oyen " if noun.startswith(_PLURALS) else "se oye ") + noun


SPANISH = Romance(
    SOUNDS,
    INTENSITY,
    ("rápidamente", "lentamente"),
    {2: "dos veces", 3: "tres veces", 4: "cuatro veces", 5: "cinco veces"},
    "que",
    spanish_of,
)


def sentence(arrangement: str, template: str, sounds: Sequence[Said], background: str | None) -> str:
    clauses = [SPANISH.clause(said) for said in sounds]
    of_nouns = [SPANISH.of_noun(said) for said in sounds]
    match arrangement, template:
        case "single", "plain":
            text = clauses[0]
        case _, "while":
            text = f"{clauses[0]} mientras {listed(clauses[1:], ' y ')}"
        case _, "simultaneous":
            text = f"{listed(clauses, ' y ')} al mismo tiempo"
        case _, "then":
            text = ordered(clauses, ", luego ", " y por último ")
        case _, "first":
            text = "primero " + ordered(clauses, " y después ", ", y al final ")
        case "sequence", "hear":
            text = "se oye cómo " + ordered(clauses, " y a continuación ", ", y por último ")
        case "sequence", "recording":
            text = "una grabación " + ordered(of_nouns, " y luego ", ", y por último ")
        case "sequence", "scene":
            text = "en esta grabación, " + ordered(clauses, "; un momento después, ", "; al final, ")
        case "single", "sound":
            text = f"el sonido {of_nouns[0]}"
        case "single", "hear":
            text = is_heard(SPANISH.noun(sounds[0]))
        case _, "hear":
            text = f"se oye cómo {listed(clauses, ' y ')}"
        case _, "recording":
            text = f"una grabación {listed(of_nouns, ' y ')}"
        case _:
            text = f"en esta grabación, {listed(clauses, ' y ')}"
    return capitalised(text + (f", {BACKGROUND[background]}" if background else ""))


LANGUAGE = Language(
    code="spa",
    name="Spanish",
    endonym="español",
    iso_639_1="es",
    tag="spa_Latn",
    template=lambda noun: f"Este es el sonido {spanish_of(noun)}.",
    nouns=NOUNS,
    grammar=Grammar(sentence, SOUNDS),
)
