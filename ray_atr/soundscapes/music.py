"""Instruments: short made-up melodies, chords and beats."""

from __future__ import annotations

import numpy as np

from ray_atr.soundscapes.signals import Samples, Synth, joined, place

_SCALE = np.array([0, 2, 4, 7, 9, 12, 14, 16])


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
