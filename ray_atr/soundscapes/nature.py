"""Weather, water and fire."""

from __future__ import annotations

import numpy as np

from ray_atr.soundscapes.signals import Samples, Synth, place


def rain(synth: Synth, seconds: float, pitch: float) -> Samples:
    drops = synth.noise(seconds, 1500, 6500) * synth.sparks(seconds, 220, 0.002)
    return synth.noise(seconds, 1000 * pitch, 7600, 0.2) + 0.8 * drops


def thunder(synth: Synth, pitch: float) -> Samples:
    seconds = synth.between(1.6, 2.4)
    crack = synth.noise(0.4, 80, 2500, -0.8) * synth.decay(0.4, 0.09)
    rumble = synth.noise(seconds, 25, 180 * pitch, -0.5)
    roll = np.abs(synth.wander(seconds, 0.5, 7)) * synth.decay(seconds, 0.7, 0.05)
    thunderclap = 1.6 * rumble * roll
    place(thunderclap, crack, 0)
    return thunderclap * synth.edge(len(thunderclap), 0.02)


def waves(synth: Synth, seconds: float, pitch: float) -> Samples:
    time = synth.time(seconds)
    phase = np.float32(2 * np.pi / synth.between(1.8, 3.0)) * time + np.float32(synth.between(0, 6.28))
    swell = (0.5 + 0.5 * np.sin(phase)) ** 2
    wash = synth.noise(seconds, 500 * pitch, 4500, -0.5) * swell
    return wash + 0.35 * synth.noise(seconds, 60, 500, -0.5) * (0.3 + np.roll(swell, len(swell) // 10))


def drip(synth: Synth, pitch: float) -> Samples:
    seconds = synth.between(0.09, 0.14)
    start = 900 * pitch * synth.between(0.92, 1.1)
    return synth.tone(synth.glide(seconds, start, 1.9 * start), [1.0, 0.15]) * synth.decay(seconds, 0.025)


def fire(synth: Synth, seconds: float, pitch: float) -> Samples:
    crackle = synth.noise(seconds, 1400 * pitch, 6500) * synth.sparks(seconds, synth.between(12, 26), 0.004)
    return 2.2 * crackle + 0.12 * synth.noise(seconds, 40, 500, -0.7) * synth.wander(seconds, 0.3, 6)
