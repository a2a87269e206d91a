"""The kinds of sound a soundscape can hold, and how each repeats."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ray_atr.workshop.soundscapes import living, things
from ray_atr.workshop.soundscapes.signals import Samples, Synth

HOW = ("counted", "tempo", "steady", "single")
"""Words for the last properties of a `Call` in `kinds.csv`, in their order."""


@dataclass(frozen=True)
class Call:
    """A sound of its own length that may come several times: a bark, a knock.

    `seconds` is its usual length, `spacing` the seconds from one onset to the next. `is_counted`: a caption may say how
    often; `is_steady`: it fills its time (a clock); neither: it may come once or more (`is_single`: exactly once).
    """

    make: Callable[[Synth, float], Samples]
    subject: str
    """Who makes it, where other sounds have the same subject in a caption; else nothing."""
    seconds: float
    spacing: float
    is_counted: bool
    has_tempo: bool
    is_steady: bool
    is_single: bool


@dataclass(frozen=True)
class Texture:
    """A sound that continues for as long as it is given: rain, an engine."""

    make: Callable[[Synth, float, float], Samples]
    subject: str


def _read_kinds() -> dict[str, Call | Texture]:
    kinds: dict[str, Call | Texture] = {}
    with (Path(__file__).parent / "kinds.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            name, how = row["kind"], row["how it comes"].split()
            make = getattr(living, name, None) or getattr(things, name)
            if row["seconds"]:
                length = float(row["seconds"]), float(row["spacing"])
                kinds[name] = Call(make, row["subject"], *length, *(one in how for one in HOW))
            else:
                kinds[name] = Texture(make, row["subject"])
    return kinds


KINDS = _read_kinds()
"""Name -> kind, from `kinds.csv`. The names are the labels of a clip, and of what makes the sound in `living` or `things`."""

BACKGROUNDS: tuple[str, ...] = ("quiet", "hum", "street", "wind", "crowd", "fan")

TEMPO_FACTOR = {"fast": 0.6, None: 1.0, "slow": 1.6}
"""What a tempo does to the spacing of calls."""


def may_join(kind: str, others: tuple[str, ...]) -> bool:
    """Whether a kind may share a clip: once a clip, and not with one whose caption has the same subject."""
    subject = KINDS[kind].subject
    return kind not in others and not (subject and subject in {KINDS[other].subject for other in others})
