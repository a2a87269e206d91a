"""A scene as samples: every event rendered in its slot, at its level, over its background."""

from __future__ import annotations

import numpy as np

from ray_atr.workshop.soundscapes.kinds import KINDS, TEMPO_FACTOR, Call
from ray_atr.workshop.soundscapes.scene import Event, Scene
from ray_atr.workshop.soundscapes.signals import Samples, Synth, place

_EVENT_RMS = 0.11
_INTENSITY_DB = {"loud": (6.0, 9.0), None: (-2.0, 2.0), "soft": (-13.0, -9.0)}
_BACKGROUND_DB = {"quiet": (-60.0, -48.0)}
_USUAL_BACKGROUND_DB = (-36.0, -27.0)


def render(scene: Scene, rng: np.random.Generator, sample_rate: int) -> Samples:
    """The clip's waveform, float32 [S] in (-1, 1)."""
    synth = Synth(rng, sample_rate)
    low, high = _BACKGROUND_DB.get(scene.background, _USUAL_BACKGROUND_DB)
    canvas = _gain(synth, low, high) * _background(synth, scene.background, scene.seconds)
    for event in scene.events:
        samples = _event(synth, event)
        low, high = _INTENSITY_DB[event.intensity]
        place(canvas, _EVENT_RMS * _gain(synth, low, high) * samples / _active_rms(samples), synth.start(event.start))
    return np.tanh(canvas).astype(np.float32)


def _gain(synth: Synth, low_db: float, high_db: float) -> np.float32:
    return np.float32(10.0 ** (synth.between(low_db, high_db) / 20.0))


def _event(synth: Synth, event: Event) -> Samples:
    """The event's samples at any level; one voice (`pitch`) for all of its calls."""
    kind = KINDS[event.kind]
    pitch = float(np.exp(synth.rng.normal(0.0, 0.12)))
    if not isinstance(kind, Call):
        samples = kind.make(synth, event.seconds, pitch)
        return samples * synth.edge(len(samples), 0.08)
    spacing = kind.spacing * TEMPO_FACTOR[event.tempo]
    calls = np.zeros(synth.length(event.seconds), dtype=np.float32)
    needed = (event.repeats - 1) * spacing + kind.seconds
    start = synth.between(0.0, 0.6) * max(0.0, event.seconds - needed)
    for _ in range(event.repeats):
        call = kind.make(synth, pitch * synth.between(0.97, 1.03))
        place(calls, np.float32(synth.between(0.85, 1.0)) * call, synth.start(start))
        start += spacing * synth.between(0.93, 1.07)
    return calls * synth.edge(len(calls), 0.005)


def _active_rms(samples: Samples) -> np.float32:
    """Root mean square over the loud half of the signal, so that pauses between calls do not count."""
    power = samples**2
    return np.float32(np.sqrt(np.mean(power[power > 0.01 * power.max()])) + 1e-9)


def _background(synth: Synth, name: str, seconds: float) -> Samples:
    """Unit-power background noise of a place."""
    if name == "hum":
        steady = np.full(synth.length(seconds), 50.0 if synth.rng.random() < 0.5 else 60.0, dtype=np.float32)
        samples = synth.tone(steady, [0.3, 1.0, 0.2, 0.6, 0.1, 0.4, 0.05, 0.2])
    elif name == "street":
        samples = synth.noise(seconds, 40, 700, -0.7) * np.abs(synth.wander(seconds, 0.4, 1.5))
    elif name == "wind":
        samples = synth.noise(seconds, 150, 900, -0.5) * np.abs(synth.wander(seconds, 0.6, 2.5))
    elif name == "crowd":
        samples = np.zeros(synth.length(seconds), dtype=np.float32)
        for low, high in ((200, 500), (450, 900), (900, 1800), (1700, 3000)):
            samples += synth.noise(seconds, low, high, -0.3) * np.abs(synth.wander(seconds, 0.6, 9)) / (low / 200)
    elif name == "fan":
        samples = synth.noise(seconds, 80, 2500, -0.6) + synth.tone(
            np.full(synth.length(seconds), synth.between(110, 150), dtype=np.float32), [0.5, 0.3, 0.15]
        )
    else:
        samples = synth.noise(seconds, 30, 4000, -0.5)
    return samples / np.float32(np.sqrt(np.mean(samples**2)) + 1e-9)
