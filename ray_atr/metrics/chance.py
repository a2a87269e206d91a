"""Whether a recall is told apart from that of a random order: if it is not, nothing was learnt."""

from __future__ import annotations

import math

Z = 1.959963984540054
"""Standard normal quantile of a two-sided interval at 95%."""


def is_chance(recall: float, chance: float, queries: float) -> bool:
    """Whether Wilson's 95% interval of a recall in [0, 1] over that many queries reaches down to chance."""
    if not queries > 0:
        return False
    spread = Z * math.sqrt(max(recall * (1 - recall), 0) / queries + Z**2 / (4 * queries**2))
    low = (recall + Z**2 / (2 * queries) - spread) / (1 + Z**2 / queries)
    return low <= chance
