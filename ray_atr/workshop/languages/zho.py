"""Chinese: how it is called, class labels as captions, and a grammar of captions.

The grammar has measure words for nouns and for actions, aspect markers 在, 正, 了.
"""

from __future__ import annotations

from typing import NamedTuple

from ray_atr.workshop.languages.language import MANNER, Adverbs, Grammar, Said, Words, listed, ordered, pattern
from ray_atr.workshop.languages.tables import nouns, sounds


class Row(NamedTuple):
    """A sound's words: `measure` counts the action (三声, 三下), `aspect` marks it as going on (在, 正) or done (了)."""

    subject: str
    verb: str
    object: str
    measure: str
    aspect: str
    place: str


SOUNDS = {kind: Row(*parts) for kind, parts in sounds("zho").items()}

_NOISE = ("train", "helicopter", "airplane", "engine", "motorcycle", "drill", "vacuum_cleaner", "glass", "drip", "fire")
_WEIGHT = ("footsteps", "keyboard", "door_slam")
ADVERBS = Adverbs(
    {
        "voice": ("大声地", "轻声地"),
        "body": ("大声地", "轻轻地"),
        "sound": ("响亮地", "轻轻地"),
        "noise": ("很响地", "轻轻地"),
        "weight": ("重重地", "轻轻地"),
        "force": ("用力地", "轻轻地"),
        "rain": ("猛烈地", "轻柔地"),
        "waves": ("猛烈地", "轻柔地"),
    },
    ("快速地", "缓慢地"),
    ("两", "三", "四", "五"),
    MANNER | dict.fromkeys(_NOISE, "noise") | dict.fromkeys(_WEIGHT, "weight"),
)
BACKGROUND = {
    "hum": "，背景中有电流的嗡嗡声",
    "street": "，背景中有车流声",
    "wind": "，背景中有风声",
    "crowd": "，背景中有人群的低语声",
    "fan": "，背景中有风扇转动的声音",
}


def main(said: Said) -> str:
    """A clause: 一只狗在大声地叫; counted: 一只狗大声地叫了三声."""
    row, manner = SOUNDS[said.kind], ADVERBS.manner(said)
    if said.count is not None:
        return f"{row.subject}{row.place}{manner}{row.verb}了{ADVERBS.times(said)}{row.measure}{row.object}"
    before, after = ("", "了") if row.aspect == "了" else (row.aspect, "")
    return f"{row.subject}{before}{row.place}{manner}{row.verb}{after}{row.object}"


def noun(said: Said) -> str:
    """The sound of it: 一只狗大声地叫三声的声音."""
    row = SOUNDS[said.kind]
    times = ADVERBS.times(said) + row.measure if said.count is not None else ""
    return f"{row.subject}{row.place}{ADVERBS.manner(said)}{row.verb}{times}{row.object}的声音"


PATTERNS = {
    "plain": pattern("", main),
    "while": pattern("", main, ordered("，与此同时，", "，")),
    "simultaneous": pattern("", main, listed("，同时", "，")),
    "then": pattern("", main, ordered("，然后", "，最后")),
    "first": pattern("首先", main, ordered("，接着", "，最后")),
    "sequence hear": pattern("可以听到", noun, ordered("，随后是", "，最后是")),
    "sequence recording": pattern("录音中先是", noun, ordered("，再是", "，最后是")),
    "sequence scene": pattern("在这段录音中，", main, ordered("，过了一会儿，", "，最后")),
    "sound": pattern("", noun),
    "hear": pattern("可以听到", noun, listed("和", "、")),
    "recording": pattern("录音中传来", noun, listed("和", "、")),
    "scene": pattern("在这段录音中，", main, "，".join),
}


WORDS = Words(
    template=lambda noun: f"这是{noun}。", nouns=nouns("zho"),
    grammar=Grammar(SOUNDS, PATTERNS, BACKGROUND, "{opening}{sounds}{background}。"),
)  # fmt: skip
