"""Blocks of rows whose captions are shifted by a few rows, as they are when a table loses a line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

OFFSETS = (-2, -1, 1, 2)
LEAST_ROWS = 3
LEAST_EVIDENCE = 6.0
"""Sum over the rows of log posterior odds, beyond the log of the rows where a block may begin: about 400 to 1."""
FLOOR = 0.02
"""No row counts for more than log((1 - FLOOR) / FLOOR)."""


@dataclass(frozen=True)
class Shift:
    """Rows first to last (both included) whose clips fit the captions `offset` rows further on; evidence in nats."""

    first: int
    last: int
    offset: int
    evidence: float


def find_shifts(own_wrong: NDArray[np.float64], shifted_wrong: dict[int, NDArray[np.float64]]) -> list[Shift]:
    """The blocks, without overlap, strongest first.

    own_wrong [N]: posterior that row i's own captions are wrong. shifted_wrong: offset -> [N], the posterior that the
    captions of row i + offset are wrong for clip i; NaN if there is no such row.
    """
    found: list[Shift] = []
    candidates = []
    for offset, wrong in shifted_wrong.items():
        evidence = _log(1 - wrong) - _log(1 - own_wrong)
        candidates += [Shift(a, b, offset, total) for a, b, total in _segments(np.nan_to_num(evidence, nan=-np.inf))]
    for shift in sorted(candidates, key=lambda shift: -shift.evidence):
        if all(shift.last < other.first or shift.first > other.last for other in found):
            found.append(shift)
    return found


def _log(belief: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.log(np.clip(belief, FLOOR, 1 - FLOOR))


def _segments(evidence: NDArray[np.float64]) -> Sequence[tuple[int, int, float]]:
    """The maximal segments (first, last, sum) whose evidence is enough: the best one, then left and right of it."""
    segments: list[tuple[int, int, float]] = []
    pending = [(0, len(evidence))]
    while pending:
        start, end = pending.pop()
        best = _best_segment(evidence[start:end])
        if best is None or best[2] < LEAST_EVIDENCE + math.log(len(evidence)):
            continue
        first, last, total = start + best[0], start + best[1], best[2]
        if last - first + 1 >= LEAST_ROWS:
            segments.append((first, last, total))
        pending += [(start, first), (last + 1, end)]
    return segments


def _best_segment(evidence: NDArray[np.float64]) -> tuple[int, int, float] | None:
    """The segment of the largest sum (Kadane's scan), or None if no value is above 0."""
    best: tuple[int, int, float] | None = None
    total, start = 0.0, 0
    for i, value in enumerate(evidence):
        if total <= 0:
            total, start = 0.0, i
        total += float(value)
        if total > (best[2] if best is not None else 0.0):
            best = start, i, total
    return best
