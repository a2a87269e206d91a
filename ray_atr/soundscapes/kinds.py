"""The kinds of sound a soundscape can hold, and how each repeats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ray_atr.soundscapes import animals, household, machines, music, nature, people
from ray_atr.soundscapes.signals import Samples, Synth


@dataclass(frozen=True)
class Call:
    """A sound of its own length that may come several times: a bark, a knock.

    `seconds` is its usual length, `spacing` the seconds from one onset to the next. `is_counted`: a caption may say how
    often; `is_steady`: it fills its time (a clock); neither: it may come once or more (`is_single`: exactly once).
    """

    make: Callable[[Synth, float], Samples]
    seconds: float
    spacing: float
    is_counted: bool = False
    has_tempo: bool = False
    is_steady: bool = False
    is_single: bool = False


@dataclass(frozen=True)
class Texture:
    """A sound that continues for as long as it is given: rain, an engine."""

    make: Callable[[Synth, float, float], Samples]
    has_tempo: bool = False
    is_counted: bool = False


KINDS: dict[str, Call | Texture] = {
    "dog": Call(animals.dog, 0.22, 0.42, is_counted=True, has_tempo=True),
    "cat": Call(animals.cat, 0.7, 1.0, is_counted=True),
    "bird": Call(animals.bird, 0.4, 0.5, is_steady=True),
    "rooster": Call(animals.rooster, 1.2, 1.6, is_counted=True),
    "cow": Call(animals.cow, 1.1, 1.45, is_counted=True),
    "sheep": Call(animals.sheep, 0.75, 1.0, is_counted=True),
    "frog": Call(animals.frog, 0.3, 0.5, is_counted=True, has_tempo=True),
    "crickets": Texture(animals.crickets),
    "owl": Call(animals.owl, 0.75, 1.0, is_counted=True),
    "crow": Call(animals.crow, 0.35, 0.6, is_counted=True),
    "duck": Call(animals.duck, 0.16, 0.3, is_counted=True, has_tempo=True),
    "bee": Texture(animals.bee),
    "wolf": Call(animals.wolf, 1.5, 2.0, is_single=True),
    "baby": Call(people.baby, 0.8, 1.05, is_steady=True),
    "cough": Call(people.cough, 0.3, 0.5, is_counted=True),
    "sneeze": Call(people.sneeze, 0.65, 1.0, is_counted=True),
    "snore": Call(people.snore, 0.95, 1.45, is_steady=True),
    "applause": Texture(people.applause),
    "footsteps": Call(people.footstep, 0.14, 0.5, has_tempo=True, is_steady=True),
    "whistling": Texture(people.whistling),
    "heartbeat": Call(people.heartbeat, 0.45, 0.8, has_tempo=True, is_steady=True),
    "rain": Texture(nature.rain),
    "thunder": Call(nature.thunder, 2.0, 2.5, is_single=True),
    "waves": Texture(nature.waves),
    "drip": Call(nature.drip, 0.12, 0.45, has_tempo=True, is_steady=True),
    "fire": Texture(nature.fire),
    "car_horn": Call(machines.car_horn, 0.4, 0.6, is_counted=True),
    "siren": Texture(machines.siren),
    "engine": Texture(machines.engine),
    "train": Texture(machines.train),
    "helicopter": Texture(machines.helicopter),
    "airplane": Texture(machines.airplane),
    "motorcycle": Texture(machines.motorcycle),
    "drill": Texture(machines.drill),
    "vacuum_cleaner": Texture(machines.vacuum_cleaner),
    "clock": Call(household.clock, 0.05, 0.5, has_tempo=True, is_steady=True),
    "alarm_clock": Call(household.alarm_clock, 0.12, 0.28, is_counted=True, has_tempo=True),
    "telephone": Call(household.telephone, 0.8, 1.15, is_counted=True),
    "doorbell": Call(household.doorbell, 0.95, 1.25, is_counted=True),
    "knock": Call(household.knock, 0.12, 0.3, is_counted=True, has_tempo=True),
    "door_creak": Call(household.door_creak, 1.0, 1.4, is_single=True),
    "door_slam": Call(household.door_slam, 0.6, 1.0, is_single=True),
    "keyboard": Call(household.keyboard, 0.07, 0.15, has_tempo=True, is_steady=True),
    "glass": Call(household.glass, 1.0, 1.2, is_single=True),
    "church_bell": Call(household.church_bell, 1.2, 0.9, is_counted=True),
    "hammer": Call(household.hammer, 0.2, 0.5, is_counted=True, has_tempo=True),
    "fireworks": Call(household.firework, 0.8, 0.6, is_steady=True),
    "piano": Texture(music.piano),
    "drum": Call(music.drum, 0.26, 0.4, has_tempo=True, is_steady=True),
    "flute": Texture(music.flute),
    "guitar": Texture(music.guitar),
}
"""Name -> kind. The names are the labels of a clip."""

BACKGROUNDS: tuple[str, ...] = ("quiet", "hum", "street", "wind", "crowd", "fan")

TEMPO_FACTOR = {"fast": 0.6, None: 1.0, "slow": 1.6}
"""What a tempo does to the spacing of calls."""

_SAME_SUBJECT: tuple[frozenset[str], ...] = (
    frozenset({"footsteps", "whistling", "knock", "keyboard", "hammer", "piano", "drum", "flute", "guitar"}),
    frozenset({"cough", "snore"}),
    frozenset({"door_creak", "door_slam"}),
)


def may_join(kind: str, others: tuple[str, ...]) -> bool:
    """Whether a kind may share a clip: once a clip, and not with one whose caption has the same subject."""
    if kind in others:
        return False
    return not any(kind in group and group & set(others) for group in _SAME_SUBJECT)
