"""Japanese: how it is called, class labels as captions, and a grammar of captions.

The grammar has particles, counters, and verbs conjugated by class (ichidan, godan, suru).
"""

from __future__ import annotations

from collections.abc import Sequence

from ray_atr.workshop.languages.language import MANNER, Adverbs, Grammar, Pattern, Said, Words, listed, ordered, pattern
from ray_atr.workshop.languages.tables import nouns, sounds

# subject | object or adverbial with its particle | verb in the dictionary form | class | voice or sound | `once` or nothing
# Verb classes: 1 ichidan, 5 godan, s suru. A verb that does not go on (a glass breaks, once) takes no progressive.
SOUNDS = sounds("jpn")

_NOISE = (
    "footsteps",
    "keyboard",
    "door_slam",
    "glass",
    "drip",
    "train",
    "helicopter",
    "airplane",
    "fire",
    "engine",
    "bee",
)
ADVERBS = Adverbs(
    {
        "voice": ("大きな声で", "小さな声で"),
        "body": ("大きく", "小さく"),
        "sound": ("大きな音で", "小さな音で"),
        "noise": ("大きな音を立てて", "小さな音を立てて"),
        "force": ("強く", "軽く"),
        "rain": ("激しく", "静かに"),
        "waves": ("激しく", "静かに"),
    },
    ("速く", "ゆっくりと"),
    ("二回", "三回", "四回", "五回"),
    MANNER | dict.fromkeys(_NOISE, "noise"),
)
BACKGROUND = {
    "hum": "電気の低いうなりを背景に、",
    "street": "車の往来を背景に、",
    "wind": "風の音を背景に、",
    "crowd": "人々のざわめきを背景に、",
    "fan": "換気扇の音を背景に、",
}

_STEM = dict(zip("うくぐすつぬぶむる", "いきぎしちにびみり", strict=True))
_TE = {
    "う": "って", "つ": "って", "る": "って", "く": "いて", "ぐ": "いで", "す": "して",
    "ぬ": "んで", "ぶ": "んで", "む": "んで",
}  # fmt: skip


def verb_stem(verb: str, group: str) -> str:
    """The continuative form: 吠え, 鳴き, し."""
    if group == "s":
        return verb[:-2] + "し"
    return verb[:-1] + ("" if group == "1" else _STEM[verb[-1]])


def te_form(verb: str, group: str) -> str:
    """The te form: 吠えて, 鳴いて, して."""
    return verb[:-1] + _TE[verb[-1]] if group == "5" else verb_stem(verb, group) + "て"


def _phrase(said: Said, form: str) -> str:
    subject, rest, verb, group, _, _ = SOUNDS[said.kind]
    endings = {"plain": verb, "stem": verb_stem(verb, group), "going": te_form(verb, group) + "いる"}
    return f"{subject}が{rest}{ADVERBS.manner(said)}{ADVERBS.times(said)}{endings[form]}"


def main(said: Said) -> str:
    """The closing clause: progressive for what continues, plain for what happens once or is counted."""
    goes_on = SOUNDS[said.kind][5] != "once" and said.count is None
    return _phrase(said, "going" if goes_on else "plain")


def plain(said: Said) -> str:
    """The closing clause of what comes one after the other: 犬が吠える."""
    return _phrase(said, "plain")


def linked(said: Said) -> str:
    """A clause that another follows: 犬が吠え."""
    return _phrase(said, "stem")


def noun(said: Said) -> str:
    """The sound that the clause makes: 犬が吠える声."""
    return _phrase(said, "plain") + SOUNDS[said.kind][4]


def during(sounds: Sequence[Said]) -> tuple[str, str]:
    """What the first sound is heard during comes before it: 鳥がさえずっている中、犬が吠えている."""
    first, *between, last = sounds
    return "", "、".join([*map(linked, between), main(last)]) + f"中、{main(first)}"


PATTERNS: dict[str, Pattern] = {
    "plain": pattern("", main),
    "while": during,
    "simultaneous": pattern("", linked, listed("、同時に", "、"), last=main),
    "then": pattern("", linked, ordered("、それから", "、最後に"), last=plain),
    "first": pattern("", lambda said: "まず" + linked(said), ordered("、次に", "、最後に"), later=linked, last=plain),
    "sequence hear": pattern("", noun, ordered("に続いて、", "、そして"), "が聞こえる"),
    "sequence recording": pattern("", noun, ordered("、続いて", "、最後に"), "の録音"),
    "sequence scene": pattern("この録音では、", linked, ordered("、少し後に", "、最後に"), last=plain),
    "sound": pattern("", noun),
    "hear": pattern("", noun, "と、".join, "が聞こえる"),
    "recording": pattern("", noun, "と、".join, "の録音"),
    "scene": pattern("この録音では、", linked, "、".join, last=main),
}


WORDS = Words(
    template=lambda noun: f"これは{noun}です。", nouns=nouns("jpn"),
    grammar=Grammar(SOUNDS, PATTERNS, BACKGROUND, "{opening}{background}{sounds}。"),
)  # fmt: skip
