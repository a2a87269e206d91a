"""The largest set of pairs of which at most a stated share is wrong.

The p-value of a wrong pair is uniform. So of V wrong pairs with a p-value of at most t and N with one above 1/2, V is binomial
given V + N, with chance t / (t + 1/2): given N it is a negative binomial, whatever the number of wrong pairs is, and right pairs
above 1/2 only add to what is feared. All pairs with a p-value of at most t are kept for the largest t at which it is unlikely
that more than the stated share of them are wrong. With the mean of V in place of that quantile this is the rule of Benjamini and
Hochberg 1995, with the number of wrong pairs, estimated, in the place of all (Storey 2002).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc

from ray_atr.common.settings import refuse
from ray_atr.objectives.correspondence.noise_rate import LAMBDA, Floats, WrongShare
from ray_atr.objectives.correspondence.ridge import TINY

CHANCE = 0.03
"""That too many are wrong, at the threshold that is taken. It is the largest that passes, which takes more: of sets with uniform
p-values the share holds in 96 to 98% with .03, in 93 to 97% with .05."""


def certified(p_value: Floats, rate: float, wrong: WrongShare) -> NDArray[np.bool_]:
    """Which pairs [M] are kept, of which at most `rate` are wrong in 95% of such sets; none if there is no such set.

    `wrong` is what their p-values say of the share of wrong pairs. Holds for wrong captions that are random. Raises ValueError
    unless 0 < rate < 1.
    """
    if not 0 < rate < 1:
        raise refuse("--keep", rate, "a share above 0 and below 1")
    t = np.sort(p_value)
    num_kept = np.arange(1, len(t) + 1)
    below = np.minimum(t, LAMBDA)
    # Those above 1/2 count as wrong, each of them.
    too_many = np.floor(rate * num_kept + 1e-9) + 1 - np.maximum(0, num_kept - (t <= LAMBDA).sum())
    above = wrong.share * (1 - LAMBDA) * len(t)
    # Pairs of one clip are wrong together, so that they are one observation.
    chance = betainc(
        np.maximum(too_many, TINY) / wrong.together, above / wrong.together + 1, below / (below + 1 - LAMBDA)
    )
    enough = np.flatnonzero((too_many > 0) & (chance <= CHANCE))
    return np.asarray(p_value <= t[enough[-1]] if len(enough) else np.zeros(len(t), dtype=bool))
