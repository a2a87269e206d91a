"""Things in and around a house: clocks, bells, doors, tools, and things that break or explode."""

from __future__ import annotations

import numpy as np

from ray_atr.soundscapes.signals import Samples, Synth, place


def clock(synth: Synth, pitch: float) -> Samples:
    tick = synth.ring(0.05, [(2100 * pitch, 1.0, 0.006), (3700 * pitch, 0.7, 0.004), (900 * pitch, 0.3, 0.006)])
    return tick + 0.3 * synth.noise(0.05, 2000, 6000) * synth.decay(0.05, 0.003, 0.001)


def alarm_clock(synth: Synth, pitch: float) -> Samples:
    beep = synth.tone(np.full(synth.length(0.12), 2050 * pitch, dtype=np.float32), [1.0, 0.0, 0.35])
    return beep * synth.edge(len(beep), 0.006)


def telephone(synth: Synth, pitch: float) -> Samples:
    seconds = synth.between(0.7, 0.9)
    strikes = 0.35 + 0.65 * np.exp(-np.mod(synth.time(seconds) * np.float32(22.0), 1.0) / 0.4)
    bells = synth.ring(seconds, [(1180 * pitch, 1.0, 9.0), (1490 * pitch, 0.9, 9.0), (2980 * pitch, 0.3, 9.0)])
    return bells * strikes * synth.edge(len(bells), 0.02)


def doorbell(synth: Synth, pitch: float) -> Samples:
    chime = np.zeros(synth.length(0.95), dtype=np.float32)
    for start, frequency_hz in ((0.0, 660 * pitch), (0.38, 524 * pitch)):
        note = synth.ring(0.57, [(frequency_hz, 1.0, 0.3), (2 * frequency_hz, 0.3, 0.2), (3 * frequency_hz, 0.15, 0.1)])
        place(chime, note, synth.start(start))
    return chime


def knock(synth: Synth, pitch: float) -> Samples:
    wood = synth.ring(0.12, [(210 * pitch, 1.0, 0.025), (430 * pitch, 0.8, 0.018), (780 * pitch, 0.4, 0.012)])
    return wood + 0.25 * synth.noise(0.12, 300, 2200) * synth.decay(0.12, 0.008, 0.001)


def door_creak(synth: Synth, pitch: float) -> Samples:
    seconds = synth.between(0.8, 1.3)
    contour = pitch * synth.glide(seconds, *synth.rng.uniform(45, 130, 5))
    slip = synth.voice(contour, [(750, 90), (1450, 120), (2500, 200)], 0.5)
    return slip * synth.arch(seconds, 0.2, 0.25) * np.abs(synth.wander(seconds, 0.3, 8))


def door_slam(synth: Synth, pitch: float) -> Samples:
    boom = synth.ring(0.6, [(75 * pitch, 1.6, 0.1), (130 * pitch, 1.1, 0.08), (260 * pitch, 0.6, 0.05)])
    return boom + 0.9 * synth.noise(0.6, 120, 3500, -0.5) * synth.decay(0.6, 0.06, 0.001)


def keyboard(synth: Synth, pitch: float) -> Samples:
    center = 2600 * pitch * synth.between(0.85, 1.2)
    press = synth.noise(0.07, center, 1.7 * center) * synth.decay(0.07, 0.004, 0.001)
    release = 0.4 * synth.noise(0.02, 1.3 * center, 2 * center) * synth.decay(0.02, 0.003, 0.001)
    place(press, release, synth.start(0.045))
    return np.float32(synth.between(0.6, 1.0)) * press


def glass(synth: Synth, pitch: float) -> Samples:
    seconds = synth.between(0.9, 1.2)
    crash = synth.noise(seconds, 2500 * pitch, 7600) * synth.decay(seconds, 0.05, 0.001)
    for _ in range(14):
        frequency_hz = synth.between(2300, 7400) * pitch
        shard = synth.ring(0.3, [(frequency_hz, synth.between(0.2, 0.8), synth.between(0.02, 0.1))])
        place(crash, shard, int(synth.rng.exponential(0.18) * synth.sample_rate))
    return crash


def church_bell(synth: Synth, pitch: float) -> Samples:
    strike = 400 * pitch
    ratios = ((0.5, 0.6, 1.2), (1.0, 1.0, 0.8), (1.19, 0.7, 0.6), (1.5, 0.5, 0.5), (2.0, 0.8, 0.4), (2.66, 0.4, 0.25))
    upper = ((3.01, 0.3, 0.18), (4.17, 0.25, 0.12))
    return synth.ring(1.7, [(strike * ratio, level, decay) for ratio, level, decay in ratios + upper])


def hammer(synth: Synth, pitch: float) -> Samples:
    metal = [(1350 * pitch, 0.8, 0.04), (2870 * pitch, 0.9, 0.035), (4530 * pitch, 0.5, 0.02), (160, 0.8, 0.02)]
    return synth.ring(0.2, metal) + 0.4 * synth.noise(0.2, 1000, 6000) * synth.decay(0.2, 0.005, 0.001)


def firework(synth: Synth, pitch: float) -> Samples:
    seconds = 0.8
    bang = 1.5 * synth.noise(seconds, 40, 1300 * pitch, -0.6) * synth.decay(seconds, 0.09, 0.002)
    crackle = synth.noise(seconds, 2500, 7000) * synth.sparks(seconds, 45, 0.004) * synth.glide(seconds, 0, 0.5, 0.3, 0)
    return bang + crackle
