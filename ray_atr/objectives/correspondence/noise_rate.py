"""How many pairs are wrong, from scores by what never saw them, against the scores of random mispairs.

A wrong pair that was drawn at random scores as a random mispair does. So the p-value of a pair, the share of mispairs that
score at least as high, is uniform if the pair is wrong and small if it is right (a conformal p-value; Bates et al. 2023,
"Testing for outliers with conformal p-values"), and twice the share of p-values above 1/2 is the share of wrong pairs (Storey
2002). Right pairs that fit no better than a random one count as wrong, so it is an upper bound with what chance adds. A wrong
caption that nearly fits scores as a right one: no bound holds for such pairs. An audit states the bound; trainings take the
likeliest share.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from ray_atr.objectives.correspondence.ridge import TINY, Floats, Integers

LAMBDA = 0.5
FIRST, LEAST_SHARE = 0.05, 0.1
SOLVED = 3
"""Times that the share of wrong pairs is read off p-values and these are corrected by it."""
QUANTILE = 1.645
"""Standard errors from an estimate to the end of its one-sided 95% interval."""
CUTS = (0.05, 0.2, 0.5)
"""Between which p-values are counted. None is below .05: the distances of right pairs from each other would count there."""
MOVED = np.linspace(1.0, 4.5, 71)
"""Tried means of right pairs' quantiles. Right pairs that are hardly moved look like wrong ones: the share could be anything."""
SHARES = 1001
SEEN_TWICE, CHANCE = 2, 1e-3
"""Times the variance of independent p-values that those by folds have; the chance that nothing is taken for something."""


class WrongShare(NamedTuple):
    """The estimated share of wrong pairs, the ends of its two one-sided 95% intervals, and how many pairs one observation is."""

    share: float
    least: float
    most: float
    together: float

    @property
    def middle(self) -> float:
        """Between the estimate and the lower end: about the lower end of an 80% interval."""
        return (self.share + self.least) / 2


def p_values(scores: Floats, mispairs: Floats) -> Floats:
    """The p-value of each score, [M]: the share of random mispairs [R] that score at least as high, never 0."""
    null = np.sort(mispairs)
    at_least = len(null) - np.searchsorted(null, scores, side="left")
    return np.asarray((at_least + 1) / (len(null) + 1))


def without_right_mispairs(p_value: Floats, same: float, clip: Integers | None = None) -> Floats:
    """P-values [M] against the wrong mispairs, from p-values against all. `same` is the chance that two clips have equal
    captions.

    A mispair of a clip whose own caption is wrong may be its right one: of all mispairs a share e = W same / (1 - same), with W
    the share of wrong pairs. With R(s) the share of right pairs that score at least s, the p-values against all mispairs are
    (1 - e) p(s) + e R(s), and of the pairs themselves W p(s) + (1 - W) R(s) score so. p(s) is what solves both. W is what the
    solution says of it, its `middle` to be on the safe side. `clip` [M] as in `wrong_share`.
    """
    order = np.argsort(p_value)
    ordered = p_value[order]
    as_good = np.searchsorted(ordered, ordered, side="right") / len(ordered)
    solved = p_value
    for _ in range(SOLVED):
        wrong = wrong_share(solved, clip).middle
        right = wrong * same / (1 - same) / (1 - wrong) if max(wrong, same) < 1 else 0.0
        if not 0 < right < 1:
            return solved
        # Neither below what a p-value can be nor falling where they rise.
        rising = np.maximum.accumulate(np.clip((ordered - right * as_good) / (1 - right), ordered[0], 1.0))
        solved = np.empty(len(ordered))
        solved[order] = rising
    return solved


def wrong_share(p_value: Floats, clip: Integers | None = None) -> WrongShare:
    """The estimated share of wrong pairs, from p-values [M].

    Pairs of one of the clips [M] count as one observation, as they fit or do not fit together; None: each is its own.
    """
    by_clip = np.bincount(np.arange(len(p_value)) if clip is None else clip, p_value > LAMBDA)
    large = float(by_clip.sum())
    # How many pairs one observation is: all that a clip has, if there is nothing to see it by.
    clips = len(p_value) if clip is None else len(np.unique(clip))
    together = float((by_clip**2).sum()) / large if large else len(p_value) / clips
    error = QUANTILE * np.sqrt(together * large)
    # Of a count's mean, that of the score test: above 0 though none was seen.
    most = large + together * QUANTILE**2 / 2 + QUANTILE * np.sqrt(together * large + (together * QUANTILE) ** 2 / 4)
    share, least, most = (
        min(1.0, float(max(0.0, n)) / (1 - LAMBDA) / len(p_value)) for n in (large, large - error, most)
    )
    return WrongShare(share, least, most, together)


def likeliest_wrong_share(p_value: Floats) -> float:
    """The likeliest share of wrong pairs by p-values [M], if right pairs' normal quantiles are those of wrong ones, moved.

    z = -ndtri(p) is standard normal of a wrong pair. Of a right one it is taken to have mean mu: the share and mu are those under
    which the numbers of p-values between CUTS are the likeliest. `wrong_share` counts every right pair that fits no better than
    half of the mispairs as wrong; here the others tell how many such pairs there are. Where right pairs differ more than a normal
    distribution does, or are moved less than the least of MOVED, some are still counted as wrong.
    """
    ends = np.array([0.0, *CUTS, 1.0])
    counts = np.histogram(p_value, ends)[0]
    right = np.diff(ndtr(ndtri(ends) + MOVED[:, None]), axis=1)
    wrong = np.linspace(0, 1, SHARES)[:, None, None]
    density = wrong * np.diff(ends) + (1 - wrong) * right
    likelihood = (counts * np.log(np.maximum(density, TINY))).sum(axis=2)
    return float(wrong[np.unravel_index(likelihood.argmax(), likelihood.shape)[0], 0, 0])


def is_something_found(p_value: Floats, clip: Integers) -> bool:
    """Whether p-values [M] of pairs of the clips [M], by folds, are smaller on average than those of wrong pairs alone would be.

    Mann and Whitney's test on the means by clip. That clips i and j are alike in sound and in words speaks for both, or against
    both: where i is held out and where j is. So the mean has twice the variance of independent ones. NaN is left out.
    """
    is_scored = ~np.isnan(p_value)
    clips = np.unique(clip[is_scored], return_inverse=True)[1]
    mean = np.bincount(clips, p_value[is_scored]) / np.bincount(clips)
    deviation = max(float(mean.std()), TINY) * np.sqrt(SEEN_TWICE / len(mean))
    return bool(ndtr((mean.mean() - 0.5) / deviation) <= CHANCE)


def found_share(p_value: Floats, wrong: float) -> float:
    """Share of the right pairs, as estimated, with a p-value of at most 0.05, if this share of the pairs is wrong; in [0, 1]."""
    right = max(1 - wrong, LEAST_SHARE)
    return min(1.0, max(0.0, (float((p_value <= FIRST).mean()) - FIRST * wrong) / right))
