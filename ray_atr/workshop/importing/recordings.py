"""Which clips are the same recording: by their bytes, or by how they sound.

A fingerprint is that of Haitsma and Kalker ("A Highly Robust Audio Fingerprinting System", ISMIR 2002), coarser: the sign of
how the difference between neighbouring bands changes from one moment to the next. Gain, file format and sample rate hardly
change it. Two recordings agree by chance alone, in half of the signs. Clips that begin at different moments of one recording
are not found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ray_atr.common.eight_bits import eight_bits_are_fast
from ray_atr.common.progress import CountProgress, silent
from ray_atr.common.sampling import number_of
from ray_atr.data.audio import FrontEnd, clip_windows
from ray_atr.data.decoding import IMPORTED

FRONT_END = FrontEnd()
FRAMES, HOP = 15, 5
"""Frames of the front end (20 ms each) in one moment, and between the starts of two moments."""
MELS, BANDS = 48, 24
"""Mel bands used (up to about 4 kHz, which most files hold), and the number of bands that they are summed to."""
SECONDS = 8.0
"""Length of the beginning of a clip that is compared."""
SAME = 0.5
"""Agreement (1: all signs, 0: half of them) from which two clips are one recording (measured in docs/results.md)."""
FEWEST_SIGNS = 160
"""Signs of a clip of one second. A shorter clip counts as having as many, of which it lacks some: of its few signs, three in four
agree by chance in one of 150 pairs of clips of .4 s."""
ROWS = 1024


class RecordingKey(NamedTuple):
    """A hash of a clip's bytes and, if it was decoded, its fingerprint, int8 [n] of -1, 0 and 1."""

    digest: int
    fingerprint: NDArray[np.int8] | None


def recording_key(audio: bytes, clip_id: str, *, is_decoded: bool) -> RecordingKey:
    """The key by which copies of a clip are found. ValueError names a clip that cannot be decoded."""
    digest = number_of(audio)
    return RecordingKey(digest, fingerprint(audio, clip_id) if is_decoded else None)


def fingerprint(audio: bytes, clip_id: str) -> NDArray[np.int8]:
    """The signs of a clip's first seconds, int8 [moments - 1, BANDS - 1], flat, filled up with 0; all 0 for silence."""
    decibels = next(iter(clip_windows(audio, FRONT_END, clip_id, all_windows=False, bounds=IMPORTED)))
    wanted = int(SECONDS / (FRONT_END.hop_size / FRONT_END.sample_rate))
    power = 10 ** (decibels[:wanted, :MELS].astype(np.float64) / 10)
    power = power.reshape(len(power), BANDS, -1).sum(axis=2)
    moments = range(0, max(1, len(power) - FRAMES + 1), HOP)
    energies = np.log(np.stack([power[start : start + FRAMES].mean(axis=0) for start in moments]) + 1e-9)
    signs = np.sign(np.diff(np.diff(energies, axis=1), axis=0)).astype(np.int8)
    padded = np.zeros(((wanted - FRAMES) // HOP, BANDS - 1), np.int8)
    padded[: len(signs)] = signs[: len(padded)]
    return padded.ravel()


def same_bytes(digests: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Pairs (first, other) of clips with the same bytes, each `other` once, with the first clip that has them."""
    first: dict[int, int] = {}
    for number, digest in enumerate(digests):
        if (earlier := first.setdefault(digest, number)) != number:
            yield earlier, number


def same_sound(fingerprints: NDArray[np.int8], progress: CountProgress = silent) -> Iterator[tuple[int, int]]:
    """Pairs (i, j), i < j, of clips [N, n] whose fingerprints agree. Time grows with N^2: about a minute of CPU for 50,000 clips,
    a quarter of it where products of 8-bit integers are fast. `progress` is called with the clips done and all of them.
    """
    num_signs = np.count_nonzero(fingerprints, axis=1)
    # A clip with fewer than half of them agrees with none.
    compared = np.flatnonzero(num_signs >= SAME * FEWEST_SIGNS)
    signs = torch.from_numpy(fingerprints[compared])
    counted = torch.from_numpy(np.maximum(num_signs[compared], FEWEST_SIGNS)).float()
    is_fast = eight_bits_are_fast()

    def products(rows: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        """The signs that agree less those that do not: whole numbers, the same ones from both."""
        return torch._int_mm(rows, others.T) if is_fast else rows.float() @ others.float().T

    for start in range(0, len(compared), ROWS):
        rows = slice(start, start + ROWS)
        for other in range(start, len(compared), ROWS):
            others = slice(other, other + ROWS)
            least = SAME * torch.outer(counted[rows], counted[others]).sqrt_()
            for i, j in (products(signs[rows], signs[others]) >= least).nonzero().tolist():
                if start + i < other + j:
                    yield int(compared[start + i]), int(compared[other + j])
        progress(min(start + ROWS, len(compared)), len(compared))
