"""What a ranking gives each of its queries, from which every measure is computed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class QueryScores:
    """One direction's scores, one entry a query that has something relevant; arrays [Q]."""

    query: np.ndarray
    """Index of the query among all texts (or clips)."""
    clip: np.ndarray
    """The clip the query belongs to: what an interval resamples (a class text, which has many: a number beyond the clips')."""
    recall: dict[int, np.ndarray]
    """k -> chance in [0, 1] that the first k hold a relevant candidate; 0 or 1 unless candidates tie."""
    average_precision: np.ndarray
    """Expected AP at 10 in [0, 1]."""
    first_rank: np.ndarray
    """Expected 0-based rank of the first relevant candidate."""
    is_tied: np.ndarray
    """Whether an irrelevant candidate ties with a relevant one."""
    chance: np.ndarray
    """Chance in [0, 1] that a random order has a relevant candidate first."""
