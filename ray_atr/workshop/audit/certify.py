"""The largest set of pairs of which at most a stated share is wrong.

The p-value of a wrong pair is uniform. Of W wrong pairs about W t have a p-value of at most t, and W is estimated as twice the
number of p-values above 1/2 (`wrong_share`). Both numbers are counts of the same wrong pairs, so one bound holds for their
difference, whose variance is W t (1 + 2 t): all pairs with a p-value of at most t are kept for the largest t at which W t and
some deviations more are at most the stated share of them. Without the deviations this is the rule of Benjamini and Hochberg
1995, which holds on average, with the number of wrong pairs in the place of all (adaptive; Benjamini, Krieger and Yekutieli
2006). In the variance W is the upper end of its interval.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ray_atr.common.settings import refuse
from ray_atr.objectives.correspondence.noise_rate import Floats, WrongShare

DEVIATIONS = 2.0
"""Standard deviations that are allowed for. One in twenty is 1.645, and the largest such t takes more: of sets with uniform
p-values the share holds in 97 to 99% with 2, in 94 to 98% with 1.645."""


def certified(p_value: Floats, rate: float, wrong: WrongShare) -> NDArray[np.bool_]:
    """Which pairs [M] are kept, of which at most `rate` are wrong in 95% of such sets; none if there is no such set.

    `wrong` is what their p-values say of the share of wrong pairs. Holds for wrong captions that are random. Raises ValueError
    unless 0 < rate < 1.
    """
    if not 0 < rate < 1:
        raise refuse("keep", rate, "(0, 1)")
    t = np.sort(p_value)
    variance = wrong.together * wrong.most * len(t) * t * (1 + 2 * t)
    most = wrong.share * len(t) * t + DEVIATIONS * np.sqrt(variance)
    enough = np.flatnonzero(most <= rate * np.arange(1, len(t) + 1))
    return np.asarray(p_value <= t[enough[-1]] if len(enough) else np.zeros(len(t), dtype=bool))
