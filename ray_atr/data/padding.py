"""Clips of different lengths as one array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def padded(arrays: Sequence[NDArray[Any]], num_features: int, dtype: Any) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Arrays [T, F] of different T as one, zero-padded to the longest, `[n, T, F]`, and their lengths `[n]`."""
    frames = np.array([len(array) for array in arrays], np.int64)
    together = np.zeros((len(arrays), int(frames.max(initial=0)), num_features), dtype)
    for row, array in zip(together, arrays, strict=True):
        row[: len(array)] = array
    return together, frames
