"""Which clips are the same recording: by their bytes, by how they sound or, for vectors, by how near they are.

A fingerprint is that of Haitsma and Kalker ("A Highly Robust Audio Fingerprinting System", ISMIR 2002), coarser: the sign of
how the difference between neighbouring bands changes from one moment to the next. Gain, file format and sample rate hardly
change it. Two different recordings agree in half of the signs, by chance. Clips that begin at different moments of one recording
are not found.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ray_atr.common.eight_bits import eight_bits_are_fast
from ray_atr.common.progress import CountProgress, silent
from ray_atr.common.sampling import number_of, repeats
from ray_atr.data.audio import FrontEnd, clip_windows
from ray_atr.data.decoding import IMPORTED
from ray_atr.data.vector_clip import is_vector, loaded

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
"""Signs of a clip of one second. A shorter clip is treated as if it had so many signs and some did not agree: in one of 150 pairs
of clips of .4 s, three in four of their few signs agree by chance."""
SAME_VECTORS = 0.995
"""Cosine from which two vectors are of one recording, after the mean of all is taken off (measured in docs/results.md)."""
ROWS = 1024


class RecordingKey(NamedTuple):
    """A hash of a clip's bytes and, if it was decoded, its fingerprint: int8 [n] of -1, 0 and 1; for a vector, the vector itself,
    float32 [W].
    """

    digest: int
    fingerprint: NDArray[Any] | None

    def as_json(self) -> list[Any]:
        """What JSON can hold: the hash, and the fingerprint as its type and compressed text."""
        if self.fingerprint is None:
            return [self.digest]
        content = base64.b85encode(zlib.compress(self.fingerprint.tobytes())).decode()
        return [self.digest, self.fingerprint.dtype.name, content]

    @classmethod
    def from_json(cls, digest: int, dtype: str = "", content: str = "") -> RecordingKey:
        """The key of `as_json`."""
        array = np.frombuffer(zlib.decompress(base64.b85decode(content)), dtype) if dtype else None
        return cls(digest, array)


def recording_key(audio: bytes, clip_id: str, *, is_decoded: bool) -> RecordingKey:
    """The key by which copies of a clip are found. ValueError names a clip that cannot be decoded."""
    digest = number_of(audio)
    if is_vector(audio):
        return RecordingKey(digest, loaded(audio, clip_id).astype(np.float32) if is_decoded else None)
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


def same_recordings(keys: Sequence[RecordingKey], progress: CountProgress = silent) -> set[tuple[int, int]]:
    """Pairs (i, j), i < j, of the same recording: those of equal bytes and, of clips that were decoded, of like fingerprints.
    `progress` is called with the clips compared and all of them.
    """
    pairs = set(repeats(key.digest for key in keys))
    prints = [key.fingerprint for key in keys if key.fingerprint is not None]
    if prints:
        compare = same_sound if prints[0].dtype == np.int8 else near_vectors
        pairs |= set(compare(np.stack(prints), progress))
    return pairs


def same_sound(
    fingerprints: NDArray[np.int8],
    progress: CountProgress = silent,
    *,
    block: int = ROWS,
    by_eight_bits: bool | None = None,
) -> Iterator[tuple[int, int]]:
    """Pairs (i, j), i < j, of clips [N, n] whose fingerprints agree. Time grows with N^2: about a minute of CPU for 50,000 clips,
    a quarter of it where products of 8-bit integers are fast, which are used there (`by_eight_bits=None`). `progress` is called
    with the clips done and all of them.
    """
    num_signs = np.count_nonzero(fingerprints, axis=1)
    # A clip with fewer than half of them agrees with none.
    compared = np.flatnonzero(num_signs >= SAME * FEWEST_SIGNS)
    signs = torch.from_numpy(fingerprints[compared])
    counted = torch.from_numpy(np.maximum(num_signs[compared], FEWEST_SIGNS)).float()
    is_fast = eight_bits_are_fast() if by_eight_bits is None else by_eight_bits

    def agree(rows: slice, others: slice) -> torch.Tensor:
        # The signs that agree less those that do not: whole numbers, the same ones from both.
        products = (
            torch._int_mm(signs[rows], signs[others].T) if is_fast else signs[rows].float() @ signs[others].float().T
        )
        return products >= SAME * torch.outer(counted[rows], counted[others]).sqrt_()

    for i, j in _pairs(len(compared), agree, progress, block):
        yield int(compared[i]), int(compared[j])


def near_vectors(vectors: NDArray[np.float32], progress: CountProgress = silent) -> Iterator[tuple[int, int]]:
    """Pairs (i, j), i < j, of vectors [N, W] of one encoder that are nearly equal. Their mean is taken off first: the vectors of
    many encoders share a direction, so that those of any two clips have a high cosine.
    """
    centred = torch.from_numpy(vectors - vectors.mean(axis=0, dtype=np.float64).astype(np.float32))
    unit = torch.nn.functional.normalize(centred, dim=1)
    return _pairs(len(unit), lambda rows, others: unit[rows] @ unit[others].T >= SAME_VECTORS, progress, ROWS)


def _pairs(
    number: int, agree: Callable[[slice, slice], torch.Tensor], progress: CountProgress, block: int
) -> Iterator[tuple[int, int]]:
    """The pairs (i, j), i < j < number, for which `agree` (of a block's rows and columns) holds."""
    for start in range(0, number, block):
        for other in range(start, number, block):
            for i, j in agree(slice(start, start + block), slice(other, other + block)).nonzero().tolist():
                if start + i < other + j:
                    yield start + i, other + j
        progress(min(start + block, number), number)
