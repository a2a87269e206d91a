"""The largest set of pairs of which at most a stated share is wrong.

The p-value of a wrong pair is uniform. So of W wrong pairs, W t have a p-value of at most t, and some standard deviations more in
one of twenty sets; all pairs with a p-value of at most t are kept for the largest t at which this is
at most the stated share of them. Without the deviations this is the rule of Benjamini and Hochberg 1995, which holds on
average, with the number of wrong pairs in the place of all (adaptive; Benjamini, Krieger and Yekutieli 2006): W is the upper
end of its interval.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ray_atr.common.settings import refuse

Floats = NDArray[np.float64]
DEVIATIONS = 2.576
"""Standard deviations that are allowed for: those of 1 in 200 for a binomial number. With those of 1 in 20, 1.645, the share
held in 89% of audits of 400 clips: p-values come from one regression, and their number varies more."""


def certified(p_value: Floats, rate: float, most_wrong: float, together: float = 1.0) -> NDArray[np.bool_]:
    """Which pairs [M] are kept, of which at most `rate` are wrong in 95% of such sets; none if there is no such set.

    `most_wrong` is the upper end of the share of wrong pairs; `together`, how many pairs are wrong or right as one (those of
    a clip). Holds for wrong captions that are random. Raises ValueError unless 0 < rate < 1.
    """
    if not 0 < rate < 1:
        raise refuse("keep", rate, "(0, 1)")
    order = np.argsort(p_value, kind="stable")
    t = p_value[order]
    expected = most_wrong * len(t) * t
    most = expected + DEVIATIONS * np.sqrt(together * expected * (1 - t))
    enough = np.flatnonzero(most <= rate * np.arange(1, len(t) + 1))
    kept = np.zeros(len(t), dtype=bool)
    if len(enough):
        kept = p_value <= t[enough[-1]]
    return kept
