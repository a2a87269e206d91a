"""Rows of unit norm, for tests of what is compared by cosine."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def unit(rows: NDArray[Any]) -> NDArray[Any]:
    """The vectors of the last axis, brought to unit norm."""
    return np.asarray(rows / np.linalg.norm(rows, axis=-1, keepdims=True))
