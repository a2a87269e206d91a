"""English: how it is called, class labels as captions, and a grammar of captions.

The grammar has finite clause ("a dog barks loudly") and noun with participle ("a dog barking loudly").
"""

from __future__ import annotations

from ray_atr.workshop.languages.language import Adverbs, Grammar, Said, Words, listed, ordered, pattern, words
from ray_atr.workshop.languages.tables import nouns, sounds

# subject | finite verb | participle | what follows the adverb
SOUNDS = sounds("eng")

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
    template=lambda noun: f"This is a sound of {noun}.", nouns=nouns("eng"),
    grammar=Grammar(SOUNDS, PATTERNS, BACKGROUND),
)  # fmt: skip
