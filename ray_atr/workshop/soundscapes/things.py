"""Weather, water and fire; traffic and machines; things in and around a house; instruments."""

from __future__ import annotations

import numpy as np

from ray_atr.workshop.soundscapes.signals import Samples, Synth, joined, place

_SCALE = np.array([0, 2, 4, 7, 9, 12, 14, 16])


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
    beat = np.mod(time * np.float32(synth.between(1.6, 2.4)), 1.0)
    clack = np.exp(-beat / 0.05) + 0.8 * np.exp(-np.abs(beat - 0.22) / 0.03) * (beat > 0.22)
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


def fireworks(synth: Synth, pitch: float) -> Samples:
    seconds = 0.8
    bang = 1.5 * synth.noise(seconds, 40, 1300 * pitch, -0.6) * synth.decay(seconds, 0.09, 0.002)
    crackle = synth.noise(seconds, 2500, 7000) * synth.sparks(seconds, 45, 0.004) * synth.glide(seconds, 0, 0.5, 0.3, 0)
    return bang + crackle


def piano(synth: Synth, seconds: float, pitch: float) -> Samples:
    melody = np.zeros(synth.length(seconds), dtype=np.float32)
    step, start = synth.between(0.22, 0.4), 0.0
    while start < seconds - 0.1:
        note_hz = 262 * pitch * 2.0 ** (float(synth.rng.choice(_SCALE)) / 12)
        partials = [(k * note_hz * (1 + 0.0004 * k * k), 1.0 / k**1.3, 0.5 / k**0.6) for k in range(1, 7)]
        place(melody, synth.ring(min(0.9, seconds - start), partials), synth.start(start))
        start += step * float(synth.rng.choice([1.0, 1.0, 2.0]))
    return melody


def drum(synth: Synth, pitch: float) -> Samples:
    seconds = 0.26
    skin = synth.tone(synth.glide(seconds, 190 * pitch, 95 * pitch, 75 * pitch, 70 * pitch), [1.0, 0.25])
    stick = 0.35 * synth.noise(seconds, 200, 2500) * synth.decay(seconds, 0.015, 0.001)
    return skin * synth.decay(seconds, 0.07) + stick


def flute(synth: Synth, seconds: float, pitch: float) -> Samples:
    notes = []
    left = seconds
    while left > 0.05:
        note = min(left, synth.between(0.35, 0.7))
        note_hz = 587 * pitch * 2.0 ** (float(synth.rng.choice(_SCALE)) / 12)
        vibrato = 1.0 + 0.006 * np.sin(np.float32(2 * np.pi * 5.0) * synth.time(note))
        breath = 0.1 * synth.noise(note, note_hz, 2.5 * note_hz)
        notes.append((synth.tone(note_hz * vibrato, [1.0, 0.5, 0.18, 0.06]) + breath) * synth.arch(note, 0.12, 0.15))
        left -= note
    return joined(*notes)


def guitar(synth: Synth, seconds: float, pitch: float) -> Samples:
    melody = np.zeros(synth.length(seconds), dtype=np.float32)
    partials = [1.0 / k**0.8 for k in range(1, 9)]
    step, start = synth.between(0.5, 0.75), 0.0
    while start < seconds - 0.1:
        root = 110 * pitch * 2.0 ** (float(synth.rng.choice([0, 5, 7, 9])) / 12)
        for string, interval in enumerate((0, 7, 12, 16)):
            note_hz = root * 2.0 ** (interval / 12)
            span = min(0.8, seconds - start)
            pluck = synth.tone(np.full(synth.length(span), note_hz, dtype=np.float32), partials)
            place(melody, pluck * synth.decay(span, 0.25, 0.002), synth.start(start + 0.018 * string))
        start += step
    return melody
