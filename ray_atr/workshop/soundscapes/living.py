"""Animals and people: one call each (bark, cough) or a texture that continues (crickets, applause)."""

from __future__ import annotations

import numpy as np

from ray_atr.workshop.soundscapes.signals import Samples, Synth, joined, place


def dog(synth: Synth, pitch: float) -> Samples:
    seconds = synth.between(0.16, 0.26)
    contour = synth.glide(seconds, 330 * pitch, 520 * pitch, 420 * pitch, 260 * pitch)
    bark = synth.voice(contour, [(750, 250), (1500, 350), (2600, 500)], 0.4)
    return (bark + 0.5 * synth.noise(seconds, 500, 3000)) * synth.arch(seconds, 0.12, 0.7)


def cat(synth: Synth, pitch: float) -> Samples:
    seconds = synth.between(0.55, 0.85)
    contour = synth.glide(seconds, 480 * pitch, 720 * pitch, 700 * pitch, 430 * pitch)
    opening = synth.voice(contour, [(1000, 250), (2900, 500)])
    closing = synth.voice(contour, [(600, 200), (1900, 400)])
    mix = synth.glide(seconds, 1.0, 0.0)
    return (mix * opening + (1 - mix) * closing) * synth.arch(seconds, 0.25, 0.4)


def bird(synth: Synth, pitch: float) -> Samples:
    base = 3400 * pitch
    notes = []
    for _ in range(int(synth.rng.integers(3, 6))):
        seconds = synth.between(0.05, 0.11)
        start, stop = base * synth.between(0.85, 1.35), base * synth.between(0.85, 1.35)
        notes.append(synth.tone(synth.glide(seconds, start, stop), [1.0, 0.1]) * synth.arch(seconds, 0.2, 0.4))
        notes.append(np.zeros(synth.length(synth.between(0.015, 0.05)), dtype=np.float32))
    return joined(*notes)


def rooster(synth: Synth, pitch: float) -> Samples:
    syllables = []
    for seconds, low, high in ((0.13, 620, 700), (0.11, 700, 760), (0.25, 880, 960), (0.6, 900, 560)):
        seconds *= synth.between(0.9, 1.1)
        contour = synth.glide(seconds, low * pitch, high * pitch, 0.96 * high * pitch)
        call = synth.voice(contour, [(1100, 300), (2300, 500), (3600, 500)], 0.25)
        syllables += [call * synth.arch(seconds, 0.15, 0.25), np.zeros(synth.length(0.03), dtype=np.float32)]
    return joined(*syllables)


def cow(synth: Synth, pitch: float) -> Samples:
    seconds = synth.between(0.9, 1.3)
    contour = synth.glide(seconds, 105 * pitch, 150 * pitch, 155 * pitch, 115 * pitch)
    return synth.voice(contour, [(320, 140), (750, 200), (1900, 300)], 0.15) * synth.arch(seconds, 0.3, 0.35)


def sheep(synth: Synth, pitch: float) -> Samples:
    seconds = synth.between(0.6, 0.9)
    rate = synth.between(8.0, 11.0)
    tremble = 0.6 + 0.4 * np.sin(np.float32(2 * np.pi * rate) * synth.time(seconds))
    contour = synth.glide(seconds, 330 * pitch, 310 * pitch, 270 * pitch) * (0.97 + 0.05 * tremble)
    return synth.voice(contour, [(750, 250), (1700, 300), (2800, 400)], 0.2) * tremble * synth.arch(seconds, 0.1, 0.3)


def frog(synth: Synth, pitch: float) -> Samples:
    seconds = synth.between(0.22, 0.32)
    pulses = 0.5 + 0.5 * np.sign(np.sin(np.float32(2 * np.pi * synth.between(32, 42)) * synth.time(seconds)))
    contour = synth.glide(seconds, 520 * pitch, 820 * pitch)
    croak = synth.tone(contour, [1.0, 0.6, 0.4, 0.15])
    return croak * (0.1 + pulses) * synth.arch(seconds, 0.2, 0.3)


def crickets(synth: Synth, seconds: float, pitch: float) -> Samples:
    time = synth.time(seconds)
    total = np.zeros_like(time)
    for _ in range(3):
        chirps = np.sin(np.float32(2 * np.pi * synth.between(2.2, 3.2)) * time + np.float32(synth.between(0, 6.3)))
        pulses = np.sin(np.float32(2 * np.pi * synth.between(26, 36)) * time) > 0
        frequency_hz = 4600 * pitch * synth.between(0.93, 1.07)
        total += (
            np.float32(synth.between(0.4, 1.0))
            * np.sin(np.float32(2 * np.pi * frequency_hz) * time)
            * (np.clip(chirps + 0.4, 0, 1) * pulses)
        )
    return total


def owl(synth: Synth, pitch: float) -> Samples:
    short, long = synth.between(0.12, 0.2), synth.between(0.4, 0.6)
    first = synth.tone(synth.glide(short, 370 * pitch, 390 * pitch), [1.0, 0.12]) * synth.arch(short, 0.3, 0.4)
    second = synth.tone(synth.glide(long, 390 * pitch, 380 * pitch, 330 * pitch), [1.0, 0.15, 0.04])
    gap = np.zeros(synth.length(0.08), dtype=np.float32)
    return joined(first, gap, second * synth.arch(long, 0.2, 0.45))


def crow(synth: Synth, pitch: float) -> Samples:
    seconds = synth.between(0.28, 0.42)
    contour = synth.glide(seconds, 430 * pitch, 520 * pitch, 400 * pitch)
    caw = synth.voice(contour, [(1250, 300), (2100, 350)], 0.9)
    return (caw + 0.4 * synth.noise(seconds, 900, 2600)) * synth.arch(seconds, 0.15, 0.3)


def duck(synth: Synth, pitch: float) -> Samples:
    seconds = synth.between(0.13, 0.19)
    contour = synth.glide(seconds, 240 * pitch, 215 * pitch, 180 * pitch)
    return synth.voice(contour, [(1150, 180), (2400, 260), (3500, 300)], 0.3) * synth.arch(seconds, 0.15, 0.4)


def bee(synth: Synth, seconds: float, pitch: float) -> Samples:
    contour = 205 * pitch * synth.wander(seconds, 0.06, 6)
    buzz = synth.tone(contour, [1.0, 0.9, 0.8, 0.6, 0.5, 0.35, 0.25, 0.15, 0.1])
    return buzz * (0.7 * synth.wander(seconds, 0.35, 3) + 0.3)


def wolf(synth: Synth, pitch: float) -> Samples:
    seconds = synth.between(1.2, 1.8)
    contour = synth.glide(seconds, 300 * pitch, 560 * pitch, 600 * pitch, 570 * pitch, 380 * pitch)
    vibrato = 1.0 + 0.01 * np.sin(np.float32(2 * np.pi * 5.5) * synth.time(seconds))
    return synth.tone(contour * vibrato, [1.0, 0.45, 0.2, 0.08]) * synth.arch(seconds, 0.3, 0.35)


def baby(synth: Synth, pitch: float) -> Samples:
    seconds = synth.between(0.6, 0.95)
    contour = synth.glide(seconds, 380 * pitch, 520 * pitch, 500 * pitch, 400 * pitch) * synth.wander(seconds, 0.02, 12)
    return synth.voice(contour, [(1100, 350), (3000, 600)], 0.25) * synth.arch(seconds, 0.1, 0.25)


def cough(synth: Synth, pitch: float) -> Samples:
    seconds = synth.between(0.24, 0.36)
    voiced = synth.voice(synth.glide(seconds, 190 * pitch, 130 * pitch), [(600, 250), (1300, 300)], 0.6)
    breath = synth.noise(seconds, 500 * pitch, 3800, -0.3)
    return (0.6 * voiced + breath) * (synth.decay(seconds, 0.07) + 0.25 * synth.arch(seconds, 0.5, 0.4))


def sneeze(synth: Synth, pitch: float) -> Samples:
    inhale_seconds, burst_seconds = synth.between(0.25, 0.4), synth.between(0.25, 0.35)
    inhale = 0.18 * synth.noise(inhale_seconds, 700, 2500) * synth.glide(inhale_seconds, 0.0, 1.0)
    burst = synth.noise(burst_seconds, 1800, 7500) * synth.decay(burst_seconds, 0.1)
    voiced = synth.voice(synth.glide(burst_seconds, 420 * pitch, 230 * pitch), [(900, 400)]) * synth.decay(
        burst_seconds, 0.06
    )
    return joined(inhale, burst + 0.7 * voiced)


def snore(synth: Synth, pitch: float) -> Samples:
    seconds = synth.between(0.8, 1.1)
    rattle = 0.5 + 0.5 * np.sign(np.sin(np.float32(2 * np.pi * synth.between(24, 34)) * pitch * synth.time(seconds)))
    return synth.noise(seconds, 90, 650, -0.4) * (0.25 + rattle) * synth.arch(seconds, 0.4, 0.3)


def applause(synth: Synth, seconds: float, pitch: float) -> Samples:
    claps = synth.sparks(seconds, synth.between(70, 150), 0.008)
    return synth.noise(seconds, 700 * pitch, 3200 * pitch) * (claps + 0.08) * synth.wander(seconds, 0.15)


def footsteps(synth: Synth, pitch: float) -> Samples:
    seconds = 0.14
    thud = synth.ring(seconds, [(95 * pitch, 1.6, 0.03), (170 * pitch, 0.8, 0.02)])
    scuff = synth.noise(seconds, 900, 4200) * synth.decay(seconds, 0.025, 0.006)
    return thud + 0.55 * scuff


def whistling(synth: Synth, seconds: float, pitch: float) -> Samples:
    scale = 1050 * pitch * 2.0 ** (np.array([0, 2, 4, 5, 7, 9, 12]) / 12)
    contour, envelope = [], []
    left = seconds
    while left > 0.05:
        note = min(left, synth.between(0.2, 0.45))
        contour.append(np.full(synth.length(note), synth.rng.choice(scale), dtype=np.float32))
        envelope.append(0.15 + 0.85 * synth.arch(note, 0.15, 0.2))
        left -= note
    frequency_hz, loudness = joined(*contour), joined(*envelope)
    smooth = np.hanning(synth.length(0.05))
    smoothed = np.convolve(np.pad(frequency_hz, len(smooth) // 2, mode="edge"), smooth / smooth.sum(), mode="valid")
    frequency_hz = smoothed[: len(frequency_hz)].astype(np.float32)
    vibrato = 1.0 + 0.008 * np.sin(np.arange(len(frequency_hz)) * (2 * np.pi * 5.5 / synth.sample_rate))
    breath = 0.04 * synth.noise(len(loudness) / synth.sample_rate, 900, 3000)
    return (synth.tone((frequency_hz * vibrato).astype(np.float32), [1.0, 0.06]) + breath) * loudness


def heartbeat(synth: Synth, pitch: float) -> Samples:
    beat = np.zeros(synth.length(0.45), dtype=np.float32)
    for start, frequency_hz, level in ((0.0, 58, 1.0), (0.27, 72, 0.7)):
        thump = synth.ring(0.16, [(frequency_hz * pitch, 1.0, 0.04), (2.1 * frequency_hz * pitch, 0.3, 0.02)])
        place(beat, np.float32(level) * thump, synth.start(start))
    return beat
