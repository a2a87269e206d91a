"""People: voices without words, breath, hands and feet."""

from __future__ import annotations

import numpy as np

from ray_atr.soundscapes.signals import Samples, Synth, joined, place


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


def footstep(synth: Synth, pitch: float) -> Samples:
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
