"""The largest set of pairs of which at most a stated share is wrong.

The p-value of a wrong pair is uniform. Let V wrong pairs have a p-value of at most t, and N wrong pairs one above 1/2. Given
V + N, V is binomial with chance t / (t + 1/2). So given N it is a negative binomial, whatever the number of wrong pairs, and
right pairs above 1/2 only make the bound on V larger. All pairs with a p-value of at most t are kept, for the largest t at which
it is unlikely that more than the stated share of them are wrong. With the mean of V instead of its quantile, this is the rule of
Benjamini and Hochberg 1995 with an estimated number of wrong pairs instead of all pairs (Storey 2002).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc

from ray_atr.common.settings import refuse
from ray_atr.objectives.correspondence.noise_rate import LAMBDA, Floats, WrongShare
from ray_atr.objectives.correspondence.ridge import TINY

CHANCE = 0.03
"""Chance that too many are wrong, at one threshold. Taking the largest threshold that passes raises it: the share holds in 96 to
98% of sets with uniform p-values with .03, in 93 to 97% with .05."""


def certified(p_value: Floats, rate: float, wrong: WrongShare) -> NDArray[np.bool_]:
    """Which pairs [M] are kept: in 95% of such sets, at most `rate` of them are wrong. None if there is no such set.

    `wrong` is the share of wrong pairs as estimated from the p-values. The promise holds for random wrong captions. Raises
    ValueError unless 0 < rate < 1.
    """
    if not 0 < rate < 1:
        raise refuse("--keep", rate, "a share above 0 and below 1")
    t = np.sort(p_value)
    num_kept = np.arange(1, len(t) + 1)
    below = np.minimum(t, LAMBDA)
    # Each pair above 1/2 counts as wrong.
    too_many = np.floor(rate * num_kept + 1e-9) + 1 - np.maximum(0, num_kept - (t <= LAMBDA).sum())
    above = wrong.share * (1 - LAMBDA) * len(t)
    # Pairs of one clip are wrong together, so they count as one observation.
    chance = betainc(
        np.maximum(too_many, TINY) / wrong.together, above / wrong.together + 1, below / (below + 1 - LAMBDA)
    )
    enough = np.flatnonzero((too_many > 0) & (chance <= CHANCE))
    return np.asarray(p_value <= t[enough[-1]] if len(enough) else np.zeros(len(t), dtype=bool))
