"""The kinds of sound a soundscape can hold, and how each repeats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ray_atr.workshop.soundscapes import living, things
from ray_atr.workshop.soundscapes.signals import Samples, Synth


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


KINDS: dict[str, Call | Texture] = {
    "dog": Call(living.dog, 0.22, 0.42, is_counted=True, has_tempo=True),
    "cat": Call(living.cat, 0.7, 1.0, is_counted=True),
    "bird": Call(living.bird, 0.4, 0.5, is_steady=True),
    "rooster": Call(living.rooster, 1.2, 1.6, is_counted=True),
    "cow": Call(living.cow, 1.1, 1.45, is_counted=True),
    "sheep": Call(living.sheep, 0.75, 1.0, is_counted=True),
    "frog": Call(living.frog, 0.3, 0.5, is_counted=True, has_tempo=True),
    "crickets": Texture(living.crickets),
    "owl": Call(living.owl, 0.75, 1.0, is_counted=True),
    "crow": Call(living.crow, 0.35, 0.6, is_counted=True),
    "duck": Call(living.duck, 0.16, 0.3, is_counted=True, has_tempo=True),
    "bee": Texture(living.bee),
    "wolf": Call(living.wolf, 1.5, 2.0, is_single=True),
    "baby": Call(living.baby, 0.8, 1.05, is_steady=True),
    "cough": Call(living.cough, 0.3, 0.5, is_counted=True),
    "sneeze": Call(living.sneeze, 0.65, 1.0, is_counted=True),
    "snore": Call(living.snore, 0.95, 1.45, is_steady=True),
    "applause": Texture(living.applause),
    "footsteps": Call(living.footstep, 0.14, 0.5, has_tempo=True, is_steady=True),
    "whistling": Texture(living.whistling),
    "heartbeat": Call(living.heartbeat, 0.45, 0.8, has_tempo=True, is_steady=True),
    "rain": Texture(things.rain),
    "thunder": Call(things.thunder, 2.0, 2.5, is_single=True),
    "waves": Texture(things.waves),
    "drip": Call(things.drip, 0.12, 0.45, has_tempo=True, is_steady=True),
    "fire": Texture(things.fire),
    "car_horn": Call(things.car_horn, 0.4, 0.6, is_counted=True),
    "siren": Texture(things.siren),
    "engine": Texture(things.engine),
    "train": Texture(things.train),
    "helicopter": Texture(things.helicopter),
    "airplane": Texture(things.airplane),
    "motorcycle": Texture(things.motorcycle),
    "drill": Texture(things.drill),
    "vacuum_cleaner": Texture(things.vacuum_cleaner),
    "clock": Call(things.clock, 0.05, 0.5, has_tempo=True, is_steady=True),
    "alarm_clock": Call(things.alarm_clock, 0.12, 0.28, is_counted=True, has_tempo=True),
    "telephone": Call(things.telephone, 0.8, 1.15, is_counted=True),
    "doorbell": Call(things.doorbell, 0.95, 1.25, is_counted=True),
    "knock": Call(things.knock, 0.12, 0.3, is_counted=True, has_tempo=True),
    "door_creak": Call(things.door_creak, 1.0, 1.4, is_single=True),
    "door_slam": Call(things.door_slam, 0.6, 1.0, is_single=True),
    "keyboard": Call(things.keyboard, 0.07, 0.15, has_tempo=True, is_steady=True),
    "glass": Call(things.glass, 1.0, 1.2, is_single=True),
    "church_bell": Call(things.church_bell, 1.2, 0.9, is_counted=True),
    "hammer": Call(things.hammer, 0.2, 0.5, is_counted=True, has_tempo=True),
    "fireworks": Call(things.firework, 0.8, 0.6, is_steady=True),
    "piano": Texture(things.piano),
    "drum": Call(things.drum, 0.26, 0.4, has_tempo=True, is_steady=True),
    "flute": Texture(things.flute),
    "guitar": Texture(things.guitar),
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
