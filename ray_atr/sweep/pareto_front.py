"""The points that no other beats: of a search with several goals, and of what training costs against what it reaches."""

from __future__ import annotations

from collections.abc import Sequence


def pareto_front(gains: Sequence[Sequence[float]]) -> list[int]:
    """Indices of the points that no other is at least as good as in every gain and better in one, best first gain first.

    Points that are equal in every gain are all kept. Optuna's `best_trials` does this for a study's own trials only.
    """

    def is_beaten(mine: Sequence[float]) -> bool:
        return any(other != mine and all(a >= b for a, b in zip(other, mine, strict=True)) for other in rows)

    rows = [tuple(gain) for gain in gains]
    kept = [index for index, row in enumerate(rows) if not is_beaten(row)]
    return sorted(kept, key=lambda index: rows[index], reverse=True)
