"""What happens in a clip: which sounds, when, how loud, how often, over which background. No audio, no words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ray_atr.workshop.soundscapes.kinds import BACKGROUNDS, KINDS, TEMPO_FACTOR, Call, may_join


@dataclass(frozen=True)
class Event:
    """One sound: `start` and `seconds` of its slot, `repeats` calls (1 for a texture), and what captions may say of it.

    `intensity` is loud, soft or None (in between), `tempo` fast, slow or None, `count` the number of calls where a
    caption may state it, else None.
    """

    kind: str
    start: float
    seconds: float
    repeats: int = 1
    intensity: str | None = None
    tempo: str | None = None
    count: int | None = None


@dataclass(frozen=True)
class Scene:
    """The events of a clip; `arrangement` is single, together or sequence (then in the order they are heard)."""

    events: tuple[Event, ...]
    arrangement: str
    background: str
    seconds: float


def draw_scene(rng: np.random.Generator, seconds: float) -> Scene:
    """A random scene of this many seconds."""
    num_events = int(rng.choice([1, 2, 3], p=[0.42, 0.43, 0.15]))
    names = tuple(KINDS)
    chosen: tuple[str, ...] = ()
    while len(chosen) < num_events:
        kind = names[int(rng.integers(len(names)))]
        if may_join(kind, chosen):
            chosen += (kind,)
    joined = "sequence" if rng.random() < 0.55 else "together"
    arrangement = joined if num_events > 1 else "single"
    slots = _slots(rng, num_events, arrangement, seconds)
    events = tuple(_draw_event(rng, kind, *slot) for kind, slot in zip(chosen, slots, strict=True))
    background = BACKGROUNDS[int(rng.choice(len(BACKGROUNDS), p=[0.3, 0.14, 0.14, 0.14, 0.14, 0.14]))]
    return Scene(events, arrangement, background, seconds)


def _slots(rng: np.random.Generator, num_events: int, arrangement: str, seconds: float) -> list[tuple[float, float]]:
    """Start and length of each event in seconds."""
    if arrangement == "sequence":
        weights = rng.uniform(0.8, 1.2, num_events)
        lengths = seconds * weights / weights.sum()
        starts = np.concatenate([[0.0], np.cumsum(lengths)[:-1]])
        return [(float(start), float(0.92 * length)) for start, length in zip(starts, lengths, strict=True)]
    latest = 0.2 * seconds
    starts = rng.uniform(0.0, latest, num_events)
    return [(float(start), float(seconds - start)) for start in starts]


def _draw_event(rng: np.random.Generator, name: str, start: float, seconds: float) -> Event:
    """One event with its attributes; it never has more calls than fit into its slot."""
    kind = KINDS[name]
    intensity = (None, "loud", "soft")[int(rng.choice(3, p=[0.5, 0.25, 0.25]))]
    if not isinstance(kind, Call):
        return Event(name, start, seconds, intensity=intensity)
    tempo = None
    if kind.has_tempo and rng.random() < 0.6:
        tempo = "fast" if rng.random() < 0.5 else "slow"
    spacing = kind.spacing * TEMPO_FACTOR[tempo]
    most = max(1, 1 + int((seconds - kind.seconds) / spacing))
    if kind.is_single:
        return Event(name, start, seconds, 1, intensity)
    if kind.is_steady:
        return Event(name, start, seconds, most, intensity, tempo)
    repeats = int(rng.integers(1, min(most, 5) + 1))
    if repeats == 1:
        tempo = None
    is_counted = kind.is_counted and repeats > 1 and rng.random() < 0.7
    return Event(name, start, seconds, repeats, intensity, tempo, repeats if is_counted else None)
