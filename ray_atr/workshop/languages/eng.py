"""English: how it is called, class labels as captions, and a grammar of captions.

The grammar has finite clause ("a dog barks loudly") and noun with participle ("a dog barking loudly").
"""

from __future__ import annotations

from ray_atr.workshop.languages.language import Adverbs, Grammar, Said, Words, listed, ordered, pattern, words

# Label of ESC-50 -> the noun with its article.
NOUNS: dict[str, str] = {
    "dog": "a dog", "rooster": "a rooster", "pig": "a pig", "cow": "a cow", "frog": "a frog", "cat": "a cat",
    "hen": "a hen", "insects": "insects", "sheep": "a sheep", "crow": "a crow",
    "rain": "rain", "sea_waves": "sea waves", "crackling_fire": "a crackling fire", "crickets": "crickets",
    "chirping_birds": "chirping birds", "water_drops": "water drops", "wind": "wind",
    "pouring_water": "pouring water", "toilet_flush": "a toilet flush", "thunderstorm": "a thunderstorm",
    "crying_baby": "a crying baby", "sneezing": "sneezing", "clapping": "clapping", "breathing": "breathing",
    "coughing": "coughing", "footsteps": "footsteps", "laughing": "laughing", "brushing_teeth": "brushing teeth",
    "snoring": "snoring", "drinking_sipping": "drinking and sipping",
    "door_wood_knock": "a knock on a wooden door", "mouse_click": "a mouse click",
    "keyboard_typing": "typing on a keyboard", "door_wood_creaks": "a creaking wooden door",
    "can_opening": "the opening of a can", "washing_machine": "a washing machine",
    "vacuum_cleaner": "a vacuum cleaner", "clock_alarm": "an alarm clock", "clock_tick": "a ticking clock",
    "glass_breaking": "breaking glass",
    "helicopter": "a helicopter", "chainsaw": "a chainsaw", "siren": "a siren", "car_horn": "a car horn",
    "engine": "an engine", "train": "a train", "church_bells": "church bells", "airplane": "an airplane",
    "fireworks": "fireworks", "hand_saw": "a hand saw",
}  # fmt: skip


# subject | finite verb | participle | what follows the adverb
SOUNDS: dict[str, tuple[str, str, str, str]] = {
    "dog": ("a dog", "barks", "barking", ""),
    "cat": ("a cat", "meows", "meowing", ""),
    "bird": ("a bird", "chirps", "chirping", ""),
    "rooster": ("a rooster", "crows", "crowing", ""),
    "cow": ("a cow", "moos", "mooing", ""),
    "sheep": ("a sheep", "bleats", "bleating", ""),
    "frog": ("a frog", "croaks", "croaking", ""),
    "crickets": ("crickets", "chirp", "chirping", ""),
    "owl": ("an owl", "hoots", "hooting", ""),
    "crow": ("a crow", "caws", "cawing", ""),
    "duck": ("a duck", "quacks", "quacking", ""),
    "bee": ("a bee", "buzzes", "buzzing", ""),
    "wolf": ("a wolf", "howls", "howling", ""),
    "baby": ("a baby", "cries", "crying", ""),
    "cough": ("a man", "coughs", "coughing", ""),
    "sneeze": ("a woman", "sneezes", "sneezing", ""),
    "snore": ("a man", "snores", "snoring", ""),
    "applause": ("an audience", "applauds", "applauding", ""),
    "footsteps": ("someone", "walks", "walking", "on a hard floor"),
    "whistling": ("someone", "whistles a tune", "whistling a tune", ""),
    "heartbeat": ("a heart", "beats", "beating", ""),
    "rain": ("rain", "falls", "falling", ""),
    "thunder": ("thunder", "rumbles", "rumbling", ""),
    "waves": ("waves", "crash", "crashing", "on the shore"),
    "drip": ("water", "drips", "dripping", ""),
    "fire": ("a fire", "crackles", "crackling", ""),
    "car_horn": ("a car", "honks", "honking", ""),
    "siren": ("a siren", "wails", "wailing", ""),
    "engine": ("an engine", "runs", "running", ""),
    "train": ("a train", "rattles past", "rattling past", ""),
    "helicopter": ("a helicopter", "flies", "flying", "overhead"),
    "airplane": ("a plane", "flies past", "flying past", ""),
    "motorcycle": ("a motorcycle", "revs up", "revving up", ""),
    "drill": ("a drill", "whirs", "whirring", ""),
    "vacuum_cleaner": ("a vacuum cleaner", "hums", "humming", ""),
    "clock": ("a clock", "ticks", "ticking", ""),
    "alarm_clock": ("an alarm clock", "beeps", "beeping", ""),
    "telephone": ("a telephone", "rings", "ringing", ""),
    "doorbell": ("a doorbell", "rings", "ringing", ""),
    "knock": ("someone", "knocks", "knocking", "on a door"),
    "door_creak": ("a door", "creaks", "creaking", ""),
    "door_slam": ("a door", "slams shut", "slamming shut", ""),
    "keyboard": ("someone", "types", "typing", "on a keyboard"),
    "glass": ("a glass", "shatters", "shattering", ""),
    "church_bell": ("a church bell", "tolls", "tolling", ""),
    "hammer": ("someone", "hammers", "hammering", "on metal"),
    "fireworks": ("fireworks", "explode", "exploding", ""),
    "piano": ("someone", "plays the piano", "playing the piano", ""),
    "drum": ("someone", "beats a drum", "beating a drum", ""),
    "flute": ("someone", "plays the flute", "playing the flute", ""),
    "guitar": ("someone", "plays the guitar", "playing the guitar", ""),
}

ADVERBS = Adverbs(
    {"sound": ("loudly", "softly"), "force": ("hard", "gently"), "rain": ("heavily", "lightly"),
     "waves": ("violently", "gently")},
    ("quickly", "slowly"),
    ("twice", "three times", "four times", "five times"),
)  # fmt: skip
BACKGROUND = {
    "hum": ", with an electric hum in the background",
    "street": ", with traffic in the background",
    "wind": ", with wind in the background",
    "crowd": ", with people murmuring in the background",
    "fan": ", with a fan running in the background",
}


def clause(said: Said) -> str:
    subject, verb, _, rest = SOUNDS[said.kind]
    return words(subject, verb, ADVERBS.manner(said), rest, ADVERBS.times(said))


def noun(said: Said) -> str:
    subject, _, participle, rest = SOUNDS[said.kind]
    return words(subject, participle, ADVERBS.manner(said), rest, ADVERBS.times(said))


PATTERNS = {
    "plain": pattern("", clause),
    "while": pattern("", clause, ordered(" while ", " and ")),
    "simultaneous": pattern("", clause, listed(" and "), " at the same time"),
    "then": pattern("", clause, ordered(", then ", ", and finally ")),
    "first": pattern("first ", clause, ordered(", and after that ", ", and at last ")),
    "sequence hear": pattern("you can hear ", noun, ordered(", followed by ", " and finally ")),
    "sequence recording": pattern("a recording of ", noun, ordered(" and then ", ", and lastly ")),
    "sequence scene": pattern("in this recording, ", clause, ordered("; after a moment, ", "; in the end, ")),
    "sound": pattern("the sound of ", noun),
    "hear": pattern("you can hear ", noun, listed(" and ")),
    "recording": pattern("a recording of ", noun, listed(" and ")),
    "scene": pattern("in this recording, ", clause, listed(" and ")),
}


WORDS = Words(
    template=lambda noun: f"This is a sound of {noun}.", nouns=NOUNS,
    grammar=Grammar(SOUNDS, PATTERNS, BACKGROUND),
)  # fmt: skip
