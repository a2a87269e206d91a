"""Statistics of a recording's log-mel frames, without a model.

Of T frames in F bands, which form G groups of neighbouring bands, and C cepstra (the first ones of a frame's discrete cosine
transform, orthonormal):

    level       mean of each cepstrum over the frames, and over the loud ones, [C] each
    spread      deviation of each cepstrum over the frames, and over the loud ones, [C] each
    change      deviation of each cepstrum's difference from the frame before, [C]; 0 for the first frame
    modulation  the logarithm of each group's mean power in OCTAVES octaves of its spectrum over time, [G] each

A frame is loud if its mean over the bands is at least the recording's: many recordings are mostly silent. Neighbouring
bands say nearly the same, cepstra say different things, which a regression can weigh each. But for noise the statistics do not
depend on the length of the recording: the slowest octave includes all slower modulations. Spectra of modulation as a description
of sounds are in McDermott and Simoncelli 2011, "Sound texture perception via statistics of the auditory periphery".
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.fft import dct

CEPSTRA = 24
BAND_GROUPS = 16
OCTAVES = 6
"""The fastest one is from a quarter of the frame rate to a half; the slowest is all below 2^-OCTAVES of it."""
LEAST_POWER = 1e-3
"""Added to a power before its logarithm, in squared units of normalised log-mel values."""


def frame_statistics(frames: NDArray[np.floating]) -> NDArray[np.float32]:
    """The statistics of the log-mel frames [T, F] of one recording, [5 C + OCTAVES G].

    C is CEPSTRA and G is BAND_GROUPS, or F if there are fewer bands.

    >>> import numpy as np
    >>> slow, fast = (np.sin(speed * np.arange(200))[:, None] for speed in (0.1, 2.0))
    >>> frame_statistics(slow)[5:].argmax(), frame_statistics(fast)[5:].argmax()
    (0, 5)
    """
    frames = frames.astype(np.float32)
    F = frames.shape[1]
    cepstra = dct(frames, axis=1, norm="ortho")[:, :CEPSTRA]
    loudness = frames.mean(axis=1)
    # The mean of equal numbers may be rounded up.
    loud = cepstra[loudness >= min(loudness.mean(), loudness.max())]
    change = np.diff(cepstra, axis=0, prepend=cepstra[:1])
    of_cepstra = (cepstra.mean(axis=0), cepstra.std(axis=0), loud.mean(axis=0), loud.std(axis=0), change.std(axis=0))
    edges = np.arange(min(F, BAND_GROUPS)) * F // min(F, BAND_GROUPS)
    grouped = np.add.reduceat(frames - frames.mean(axis=0), edges, axis=1) / np.diff([*edges, F]).astype(np.float32)
    padded = max(len(grouped), 2 ** (OCTAVES + 1))
    power = np.abs(np.fft.rfft(grouped, n=padded, axis=0)[1:]) ** 2 / len(grouped)
    frequency = np.arange(1, len(power) + 1) / padded
    octave = np.clip(np.floor(np.log2(frequency)).astype(int) + OCTAVES + 1, 0, OCTAVES - 1)
    first = np.searchsorted(octave, np.arange(OCTAVES))
    mean = np.add.reduceat(power, first, axis=0) / np.bincount(octave)[:, None]
    return np.concatenate([*of_cepstra, np.log(mean + LEAST_POWER).ravel()]).astype(np.float32)
