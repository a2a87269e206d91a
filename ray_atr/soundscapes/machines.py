"""Traffic and machines."""

from __future__ import annotations

import numpy as np

from ray_atr.soundscapes.signals import Samples, Synth


def car_horn(synth: Synth, pitch: float) -> Samples:
    seconds = synth.between(0.3, 0.5)
    steady = np.ones(synth.length(seconds), dtype=np.float32)
    partials = [1.0, 0.8, 0.9, 0.6, 0.5, 0.4, 0.3, 0.2]
    low, high = synth.tone(395 * pitch * steady, partials), synth.tone(498 * pitch * steady, partials)
    return (low + high) * synth.edge(len(steady), 0.02)


def siren(synth: Synth, seconds: float, pitch: float) -> Samples:
    time = synth.time(seconds)
    phase = np.float32(2 * np.pi / synth.between(0.9, 2.2)) * time + np.float32(synth.between(0, 6.28))
    contour: Samples = (pitch * (900 + 330 * np.sin(phase))).astype(np.float32)
    return synth.tone(contour, [1.0, 0.35, 0.3, 0.1])


def engine(synth: Synth, seconds: float, pitch: float) -> Samples:
    contour = 42 * pitch * synth.wander(seconds, 0.03, 5)
    fire = synth.tone(contour, [0.6, 1.0, 0.8, 0.9, 0.6, 0.7, 0.4, 0.5, 0.3, 0.3, 0.2, 0.2, 0.15, 0.1])
    rattle = synth.noise(seconds, 150, 1800, -0.6) * (0.6 + 0.4 * np.abs(fire))
    return (fire + 0.35 * rattle).astype(np.float32)


def train(synth: Synth, seconds: float, pitch: float) -> Samples:
    time = synth.time(seconds)
    place = np.mod(time * np.float32(synth.between(1.6, 2.4)), 1.0)
    clack = np.exp(-place / 0.05) + 0.8 * np.exp(-np.abs(place - 0.22) / 0.03) * (place > 0.22)
    wheels = synth.noise(seconds, 350 * pitch, 2600) * clack
    return 1.6 * wheels + 0.7 * synth.noise(seconds, 45, 350, -0.4)


def helicopter(synth: Synth, seconds: float, pitch: float) -> Samples:
    turn = np.mod(synth.time(seconds) * np.float32(synth.between(10.5, 14.5)), 1.0)
    chop = np.exp(-turn / 0.25)
    return synth.noise(seconds, 70, 1100 * pitch, -0.5) * (0.15 + chop) * synth.wander(seconds, 0.1, 2)


def airplane(synth: Synth, seconds: float, pitch: float) -> Samples:
    passing = synth.arch(seconds, 0.5, 0.5)
    roar = synth.noise(seconds, 90, 1600 * pitch, -0.5)
    whine = synth.tone(synth.glide(seconds, 1500 * pitch, 1420 * pitch, 1000 * pitch, 880 * pitch), [1.0, 0.3])
    return (roar + 0.3 * whine) * passing


def motorcycle(synth: Synth, seconds: float, pitch: float) -> Samples:
    top = synth.between(150, 200) * pitch
    contour = synth.glide(seconds, 60 * pitch, top, 95 * pitch, 1.1 * top, 70 * pitch) * synth.wander(seconds, 0.02, 9)
    exhaust = synth.tone(contour, [0.8, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.5, 0.4, 0.3, 0.3, 0.2, 0.2, 0.15])
    return exhaust * (contour / top + 0.3) + 0.25 * synth.noise(seconds, 200, 3000, -0.3) * (contour / top)


def drill(synth: Synth, seconds: float, pitch: float) -> Samples:
    spin = synth.glide(seconds, 0.55, 1.0, 0.97, 1.0, 0.96, 1.0, 0.6)
    buzz = synth.tone(285 * pitch * spin, [0.6, 0.4, 0.9, 0.4, 0.8, 0.5, 0.6, 0.5, 0.6, 0.4, 0.5, 0.3])
    return buzz + 0.6 * synth.noise(seconds, 2500, 7000)


def vacuum_cleaner(synth: Synth, seconds: float, pitch: float) -> Samples:
    spin = np.minimum(1.0, 0.5 + synth.time(seconds) / 0.35)
    motor = synth.tone(520 * pitch * spin, [1.0, 0.5, 0.35, 0.15])
    return 1.1 * motor + synth.noise(seconds, 250, 5200, -0.35)
