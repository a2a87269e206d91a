"""Statistics of a recording's log-mel frames, without a model.

Of T frames in F bands, which form G groups of neighbouring bands:

    level       mean of each band over the frames, [F]
    spread      deviation of each band, [F]
    modulation  the logarithm of each group's mean power in OCTAVES octaves of its spectrum over time, [G] each

But for noise they do not depend on the length of the recording: the slowest octave includes all slower modulations. Spectra of
modulation as a description of sounds are in McDermott and Simoncelli 2011, "Sound texture perception via statistics of
the auditory periphery".
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BAND_GROUPS = 16
OCTAVES = 6
"""The fastest one is from a quarter of the frame rate to a half; the slowest is all below 2^-OCTAVES of it."""
LEAST_POWER = 1e-3
"""Added to a power before its logarithm, in squared units of normalised log-mel values."""


def frame_statistics(frames: NDArray[np.floating]) -> NDArray[np.float32]:
    """The statistics of the log-mel frames [T, F] of one recording, [2 F + OCTAVES min(F, BAND_GROUPS)].

    >>> import numpy as np
    >>> slow, fast = (np.sin(speed * np.arange(200))[:, None] for speed in (0.1, 2.0))
    >>> frame_statistics(slow)[2:].argmax(), frame_statistics(fast)[2:].argmax()
    (0, 5)
    """
    frames = frames.astype(np.float32)
    level, spread = frames.mean(axis=0), frames.std(axis=0)
    F = len(level)
    edges = np.arange(min(F, BAND_GROUPS)) * F // min(F, BAND_GROUPS)
    grouped = np.add.reduceat(frames - level, edges, axis=1) / np.diff([*edges, F]).astype(np.float32)
    padded = max(len(grouped), 2 ** (OCTAVES + 1))
    power = np.abs(np.fft.rfft(grouped, n=padded, axis=0)[1:]) ** 2 / len(grouped)
    frequency = np.arange(1, len(power) + 1) / padded
    octave = np.clip(np.floor(np.log2(frequency)).astype(int) + OCTAVES + 1, 0, OCTAVES - 1)
    first = np.searchsorted(octave, np.arange(OCTAVES))
    mean = np.add.reduceat(power, first, axis=0) / np.bincount(octave)[:, None]
    return np.concatenate([level, spread, np.log(mean + LEAST_POWER).ravel()]).astype(np.float32)
