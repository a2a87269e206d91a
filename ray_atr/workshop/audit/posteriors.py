"""From scores of pairs to the posterior that each is wrong, and to the largest list with a stated share of false alarms.

A wrong pair scores as a random mispair does. So the p-value of a pair, the share of mispairs that score at least as high, is
uniform if the pair is wrong and small if it is right. With e the share of wrong pairs and f the density of all p-values,
the posterior of "wrong" is e / f(p) (the local false discovery rate with the roles of the hypotheses exchanged; Efron et al.
2001). e is estimated from the large p-values (Storey 2002, lambda = 1/2), f by the decreasing density of Grenander (1956).

Storey's estimate is too large: the few right pairs that fit no better than a random pair count as wrong, and every pair that
is called wrong then seems surer than it is. The lower end of e's one-sided 95% interval is on the safe side, but with it half of
the audits of 400 clips call nothing. So the posterior takes the middle of the two, about the lower end of an 80% interval.
Pairs of one clip, which fit or do not fit together, count as one observation.

Languages may be wrong to different degrees: a machine translated one, and one that people wrote. Together, the right pairs of the
better one would be called wrong at the rate of the worse one. So where the shares of p-values above 1/2 differ more than chance
allows, e and f are estimated in each language with enough pairs. Where they do not, all pairs together say more.

Whether a clip's other captions fit says whether the clip has a wrong caption at all, in one language or in all, and how well the
regressions hear it. So where there are enough pairs, e and f are estimated in each quarter of them by that. A wrong pair's
p-value is uniform in each quarter, as it does not depend on the others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression
from scipy.stats import chi2_contingency, norm

from ray_atr.objectives.correspondence.noise_rate import LAMBDA, WrongShare, wrong_share

Floats = NDArray[np.float64]
BINS = 64
QUARTERS, LEAST_PAIRS = 4, 400
"""The pairs are divided by how well their clips' other captions fit. A part or language with fewer pairs is not judged alone."""
APART = 0.01
"""The chance of judging languages separately that are wrong to the same degree."""
LEAST_P = 1e-4
"""P-values are clipped to [LEAST_P, 1 - LEAST_P] where they say how well captions fit."""


@dataclass(frozen=True)
class PairPosteriors:
    """What the scores say of M pairs: p-values [M], posteriors of being wrong [M], and the share of wrong ones."""

    p_value: Floats
    wrong: Floats
    share: WrongShare

    @property
    def wrong_share(self) -> float:
        """Storey's estimate."""
        return self.share.share

    @property
    def worst_first(self) -> NDArray[np.int64]:
        """The pairs [M], the likeliest wrong ones first, and among equals those with the largest p-value."""
        return np.lexsort((-self.p_value, -self.wrong))

    def flagged(self, rate: float) -> NDArray[np.bool_]:
        """The pairs [M] called wrong: the longest list, most suspicious first, of which at most `rate` are right, by estimate."""
        order = self.worst_first
        false_alarms = np.cumsum(1 - self.wrong[order]) / np.arange(1, len(order) + 1)
        enough = np.flatnonzero(false_alarms <= rate)
        flagged = np.zeros(len(order), dtype=bool)
        if len(enough):
            flagged[order[: enough[-1] + 1]] = True
        return flagged


def posteriors_of(
    p_value: Floats, clip: NDArray[np.int64] | None = None, language: NDArray[np.int64] | None = None
) -> PairPosteriors:
    """The posteriors of pairs with these p-values [M], which are uniform for wrong ones. `clip` [M] are the pairs' clips, counted
    from 0; None: each its own. `language` [M], counted from 0; None: all pairs are in one.
    """
    share = wrong_share(p_value, clip)
    wrong = posterior(p_value, share.middle)

    def alone(of: NDArray[np.int64]) -> Floats:
        # Scaled as the share of all pairs is, to be on the safe side.
        wrong = wrong_share(p_value[of], None if clip is None else clip[of]).share
        return posterior(p_value[of], wrong * share.middle / share.share)

    languages = [] if language is None else _languages_apart(p_value, language)
    for of in languages:
        wrong[of] = alone(of)
    if clip is not None and share.share and len(p_value) >= QUARTERS * LEAST_PAIRS:
        quarter = _quarters(p_value, clip)
        for of in languages or [np.arange(len(p_value))]:
            if len(of) >= QUARTERS * LEAST_PAIRS:
                for part_number in np.unique(quarter[of]):
                    part = of[quarter[of] == part_number]
                    wrong[part] = alone(part)
    return PairPosteriors(p_value, wrong, share)


def _languages_apart(p_value: Floats, language: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The pairs of each language with enough of them, if more are wrong in one than in another; none if that may be chance.

    By a chi-squared test of the numbers of p-values [M] above 1/2. Clips that are wrong in all languages make it careful.
    """
    parts = [np.flatnonzero(language == k) for k in np.flatnonzero(np.bincount(language) >= LEAST_PAIRS)]
    if len(parts) < 2:
        return []
    large = np.array([(p_value[of] > LAMBDA).sum() for of in parts])
    table = np.stack([large, [len(of) for of in parts] - large])
    # The test has no answer where all p-values are on one side.
    return parts if table.any(axis=1).all() and chi2_contingency(table, correction=False).pvalue < APART else []


def _quarters(p_value: Floats, clip: NDArray[np.int64]) -> NDArray[np.int64]:
    """The quarter that each pair [M] is in by how well its clip's other captions fit; -1 where the clip has no others."""
    fit = norm.isf(np.clip(p_value, LEAST_P, 1 - LEAST_P))
    others = np.bincount(clip)[clip] - 1
    of_others = (np.bincount(clip, fit)[clip] - fit) / np.maximum(others, 1)
    ends = np.quantile(of_others[others > 0], np.arange(1, QUARTERS) / QUARTERS) if others.any() else ()
    return np.where(others > 0, np.searchsorted(ends, of_others), -1)


def posterior(p_value: Floats, share: float) -> Floats:
    """Of pairs with p-values [M] the probability [M] of being wrong, if this share of them is."""
    return np.asarray(np.minimum(1.0, share / decreasing_density(p_value)))


def decreasing_density(p_value: Floats) -> Floats:
    """The maximum-likelihood decreasing density on [0, 1] of p-values [M], at each of them, [M].

    Isotonic regression of a histogram whose bins are fine near 0, where the density is steep. At least that of one pair a bin.
    """
    edges = np.concatenate([[0.0], np.geomspace(1e-4, 1.0, BINS)])
    counts, _ = np.histogram(p_value, edges)
    width = np.diff(edges)
    fitted = isotonic_regression(counts / width, weights=width, increasing=False).x
    density = np.maximum(fitted, 1.0 / width.max() / max(len(p_value), 1)) / len(p_value)
    return np.asarray(density[np.clip(np.searchsorted(edges, p_value, side="left") - 1, 0, BINS - 1)])
