"""A share of wrong pairs with an interval, from a small random sample that somebody listens to.

The pairs are put in order of their posterior and cut into strata of equal sums of sqrt(w (1 - w)), w the posterior kept
within [FLOOR, 1 - FLOOR] (Dalenius and Hodges 1959, for Neyman's allocation), and equally many of each are drawn. The
estimate is the sum over strata of their share of the pairs times the share of wrong ones heard. Nothing is assumed of the
scores: if they tell nothing, the interval is that of a plain sample.

The interval holds every total that a likelihood-ratio test does not refuse: 2 (log L at its largest - its largest at that
total) is at most the square of Student's 97.5% quantile, with as many degrees of freedom as pairs heard beyond one for each
different rate. A normal interval has no width where no error was heard. Three things make it cover what it states:
strata next to each other in which what was heard does not rise with the suspicion have one rate (isotonic regression), since
ten rates fit six answers each too well; where all answers are the same, no total is refused at which that happens in 2.5% of
lists; and n pairs drawn of N without replacement count as n (N - 1) / (N - n).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression
from scipy.special import stdtrit, xlog1py, xlogy

from ray_atr.common.settings import refuse
from ray_atr.workshop.audit.posteriors import posterior

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
STRATA = 10
FLOOR = 0.05


class NoiseInterval(NamedTuple):
    """A share and the ends of its 95% interval."""

    share: float
    low: float
    high: float


def strata_of(p_value: Floats, share: float) -> Integers:
    """The stratum [M] of each pair with these p-values [M], 0 the least suspicious, if about this share is wrong.

    A stratum may be empty.
    """
    wrong = posterior(p_value, max(share, 1 / len(p_value)))
    order = np.argsort(p_value, kind="stable")
    clipped = np.clip(wrong[order], FLOOR, 1 - FLOOR)
    total = np.cumsum(np.sqrt(clipped * (1 - clipped)))
    strata = np.empty(len(order), np.int64)
    # Half of a pair's own part, so that rounding does not decide where the last one belongs.
    strata[order] = np.minimum((STRATA * (total - total[0] / 2) / total[-1]).astype(np.int64), STRATA - 1)
    return strata


def draw(strata: Integers, count: int, seed: int) -> Integers:
    """Which pairs to listen to, in random order: `count` spread evenly over the strata [M], all of a stratum that has no more.

    Raises ValueError unless each stratum gets one.
    """
    random = np.random.default_rng((seed, 2))
    present, sizes = np.unique(strata, return_counts=True)
    if count < len(present):
        raise refuse("listen", count, f"at least {len(present)}, one of each stratum")
    wanted = np.zeros(len(present), np.int64)
    while wanted.sum() < min(count, len(strata)):
        open_ = np.flatnonzero(wanted < sizes)
        wanted[open_[: min(count, len(strata)) - wanted.sum()]] += 1
    drawn = [random.choice(np.flatnonzero(strata == h), n, replace=False) for h, n in zip(present, wanted, strict=True)]
    return np.asarray(random.permutation(np.concatenate(drawn)))


def interval(sizes: Integers, num_heard: Integers, num_wrong: Integers) -> NoiseInterval:
    """The share of wrong pairs in strata of these sizes [H]: of `num_heard` [H] that were heard `num_wrong` [H] were wrong.

    The strata are in order of suspicion. One without a heard pair may have any share. At least one pair was heard.
    """
    is_heard = num_heard >= sizes
    rest, n, x = (values[~is_heard].astype(np.float64) for values in (sizes, num_heard, num_wrong))
    certain, pairs = float(num_wrong[is_heard].sum()), float(sizes.sum())
    rates, some = np.full(len(n), 0.5), n > 0
    fit = isotonic_regression(x[some] / n[some], weights=rest[some])
    rates[some] = fit.x
    allowed = float(stdtrit(max(1.0, n.sum() - len(fit.blocks) + 1), 0.975)) ** 2
    if x.sum() in (0, n.sum()):
        allowed = max(allowed, -2 * math.log(0.025))
    n *= (rest - 1) / (rest - n)
    low = certain + _least(rest, n, n * rates, allowed)
    high = certain + rest.sum() - _least(rest, n, n * (1 - rates), allowed)
    # What was heard is known, wrong or right.
    least, most = num_wrong.sum() / pairs, 1 - (num_heard - num_wrong).sum() / pairs
    return NoiseInterval(*(float(np.clip(total / pairs, least, most)) for total in (certain + rest @ rates, low, high)))


def _least(sizes: Floats, n: Floats, x: Floats, allowed: float) -> float:
    """The smallest sum of sizes [H] times rates [H] that the test does not refuse, with x [H] of n [H] seen.

    The rates that are likeliest at a given total solve x / r - (n - x) / (1 - r) = m sizes, for a multiplier m that grows as the
    total falls.
    """
    best = _log_likelihood(n, x, np.divide(x, n, out=np.zeros(len(n)), where=n > 0))

    def rates(multiplier: float) -> Floats:
        a = multiplier * sizes
        return np.asarray(2 * x / np.maximum(a + n + np.sqrt((a + n) ** 2 - 4 * a * x), 1e-300))

    low, high = 1e-12, 1e12
    for _ in range(100):
        middle = float(np.sqrt(low * high))
        is_refused = 2 * (best - _log_likelihood(n, x, rates(middle))) > allowed
        low, high = (low, middle) if is_refused else (middle, high)
    return float(sizes @ rates(low))


def _log_likelihood(n: Floats, x: Floats, rate: Floats) -> float:
    return float((xlogy(x, rate) + xlog1py(n - x, -rate)).sum())
