"""Building blocks of the synthetic sounds: shaped noise, harmonic tones, voices, strikes and envelopes.

Every function returns float32 samples [S]. The only state is the random generator that a clip brings along.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.fft import next_fast_len

Samples = NDArray[np.float32]


@dataclass(frozen=True)
class Synth:
    """Makes signals at one sample rate (Hz) from one random generator."""

    rng: np.random.Generator
    sample_rate: int

    def length(self, seconds: float) -> int:
        """Number of samples in that many seconds, at least 8."""
        return max(8, round(seconds * self.sample_rate))

    def start(self, seconds: float) -> int:
        """The sample at a point in time."""
        return round(seconds * self.sample_rate)

    def time(self, seconds: float) -> Samples:
        """Time of each sample in seconds."""
        return np.arange(self.length(seconds), dtype=np.float32) / np.float32(self.sample_rate)

    def between(self, low: float, high: float) -> float:
        """A uniform number in [low, high)."""
        return float(self.rng.uniform(low, high))

    def noise(self, seconds: float, low_hz: float, high_hz: float, slope: float = 0.0) -> Samples:
        """Unit-power noise in a band with soft edges; `slope` is the spectrum's power of frequency (-1: darker)."""
        length = self.length(seconds)
        padded = fast_length(length)
        frequency = np.arange(padded // 2 + 1, dtype=np.float32) * np.float32(self.sample_rate / padded)
        below, above = np.square(low_hz / (frequency + 1.0)), np.square(frequency / high_hz)
        gain = (1.0 / (1.0 + below * below * below + above * above * above)).astype(np.float32)
        if slope:
            gain *= ((frequency + 20.0) / 1000.0) ** np.float32(slope)
        spectrum = np.empty(len(gain), dtype=np.complex64)
        parts = self.rng.standard_normal((2, len(gain)), dtype=np.float32)
        spectrum.real, spectrum.imag = parts[0] * gain, parts[1] * gain
        samples = np.fft.irfft(spectrum, padded)[:length].astype(np.float32, copy=False)
        return samples / np.float32(np.sqrt(np.mean(samples**2)) + 1e-9)

    def glide(self, seconds: float, *points: float) -> Samples:
        """A contour through equally spaced points, linear between them."""
        places = np.linspace(0.0, 1.0, len(points))
        return np.interp(np.linspace(0.0, 1.0, self.length(seconds)), places, points).astype(np.float32)

    def wander(self, seconds: float, depth: float, steps_per_second: float = 4.0) -> Samples:
        """A slowly and randomly changing factor around 1, within two depths of it."""
        count = max(2, int(seconds * steps_per_second) + 2)
        return self.glide(seconds, *(1.0 + depth * self.rng.standard_normal(count).clip(-2.0, 2.0)))

    def tone(self, frequency_hz: Samples, partials: Sequence[float]) -> Samples:
        """A harmonic tone: partial k has k times the given frequency (contour [S]) and the k-th amplitude."""
        turns = np.cumsum(frequency_hz, dtype=np.float64) / self.sample_rate + self.between(0.0, 1.0)
        angle = np.float32(2 * np.pi) * (turns - np.floor(turns)).astype(np.float32)
        first = np.empty(len(angle), dtype=np.complex64)
        first.real, first.imag = np.cos(angle), np.sin(angle)
        highest = max(1, int(0.48 * self.sample_rate / float(frequency_hz.max())))
        power, samples = first, np.float32(partials[0]) * first.imag
        for amplitude in partials[1:highest]:
            power = power * first
            if amplitude:
                samples = samples + np.float32(amplitude) * power.imag
        return samples

    def voice(self, frequency_hz: Samples, formants: Sequence[tuple[float, float]], roughness: float = 0.0) -> Samples:
        """A voice: harmonics weighted by formants (centre Hz, width Hz); `roughness` adds noisy amplitude."""
        base = float(frequency_hz.mean())
        harmonics = base * np.arange(1, max(2, int(min(0.45 * self.sample_rate, 5500.0) / base)) + 1)
        weights = sum(np.exp(-0.5 * ((harmonics - centre) / width) ** 2) for centre, width in formants)
        samples = self.tone(frequency_hz, list((0.03 + weights) / np.sqrt(np.arange(1, len(harmonics) + 1))))
        if roughness:
            seconds = len(samples) / self.sample_rate
            samples = samples * (1.0 + roughness * self.noise(seconds, 20.0, 400.0)[: len(samples)])
        return samples

    def ring(self, seconds: float, partials: Sequence[tuple[float, float, float]]) -> Samples:
        """A struck body: decaying sinusoids (frequency Hz, amplitude, decay seconds), sharp onset."""
        time = self.time(seconds)
        samples = np.zeros_like(time)
        for frequency_hz, amplitude, decay in partials:
            if frequency_hz < 0.48 * self.sample_rate:
                phase = np.float32(self.between(0, 6.28))
                angle = np.float32(2 * np.pi * frequency_hz) * time + phase
                samples += np.float32(amplitude) * np.sin(angle) * np.exp(-time / np.float32(decay))
        return samples * self.edge(len(samples), 0.001)

    def decay(self, seconds: float, half: float, attack: float = 0.003) -> Samples:
        """An envelope that rises within `attack` seconds and falls by e every `half` seconds."""
        time = self.time(seconds)
        return np.exp(-time / np.float32(half)) * self.edge(len(time), attack)

    def arch(self, seconds: float, attack: float = 0.2, release: float = 0.4) -> Samples:
        """An envelope from 0 over 1 back to 0; attack and release are shares of its length."""
        place = np.linspace(0.0, 1.0, self.length(seconds), dtype=np.float32)
        rise = np.clip(place / attack, 0.0, 1.0)
        fall = np.clip((1.0 - place) / release, 0.0, 1.0)
        return np.sin(0.5 * np.pi * rise) * np.sin(0.5 * np.pi * fall)

    def edge(self, length: int, seconds: float) -> Samples:
        """A factor that fades in at the start and out at the end within that many seconds."""
        ramp = max(2, min(length // 2, round(seconds * self.sample_rate)))
        factor = np.ones(length, dtype=np.float32)
        factor[:ramp] = np.linspace(0.0, 1.0, ramp)
        factor[-ramp:] = np.linspace(1.0, 0.0, ramp)
        return factor

    def sparks(self, seconds: float, per_second: float, decay_seconds: float) -> Samples:
        """An envelope of sparse random strikes, each decaying: crackle, drops, single claps."""
        length = self.length(seconds)
        count = self.rng.poisson(per_second * seconds)
        strikes = np.zeros(length, dtype=np.float32)
        strikes[self.rng.integers(0, length, count)] = self.rng.exponential(1.0, count)
        tail = max(2, self.length(5 * decay_seconds))
        return convolve(strikes, np.exp(-np.arange(tail) / (decay_seconds * self.sample_rate)))


def fast_length(length: int) -> int:
    """The smallest even length, not below the given one, that has no prime factor above 5: quick to transform."""
    return 2 * int(next_fast_len((length + 1) // 2, real=True))


def convolve(samples: Samples, kernel: NDArray[np.floating]) -> Samples:
    """The signal filtered by a short kernel, at its own length."""
    size = fast_length(len(samples) + len(kernel) - 1)
    product = np.fft.rfft(samples, size) * np.fft.rfft(kernel.astype(np.float32), size)
    return np.fft.irfft(product, size)[: len(samples)].astype(np.float32, copy=False)


def place(canvas: Samples, samples: Samples, start: int) -> None:
    """Add the samples to the canvas from `start` on, in place; what falls behind its end is dropped."""
    stop = min(len(canvas), start + len(samples))
    if stop > start:
        canvas[start:stop] += samples[: stop - start]


def joined(*pieces: Samples) -> Samples:
    """The pieces one after another."""
    return np.concatenate(pieces)
