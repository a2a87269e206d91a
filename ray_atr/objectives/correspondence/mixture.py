"""Two components of a set of numbers: which of them belong to the low one, and how surely.

gmm: two normal distributions, as DivideMix (Li et al. 2020, section 3.1) and NCR (Huang et al. 2021, Eq. 7) fit to losses.
bmm: two beta distributions (Arazo et al. 2019, section 3.1), as L2RM (Han et al. 2024) and BiCro (Yang et al. 2023) do.

Expectation-maximisation from a fixed start, so the answer depends on the numbers alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit
from torch import Tensor

Floats = NDArray[np.float64]
Weights = tuple[float, float, float]
Weigh = Callable[[float, float], Weights]

STEPS = 50
LEAST_VARIANCE = 5e-4  # DivideMix's regularisation of the covariance, for values in [0, 1]
FEWEST = 8


def low_component(values: Tensor, kind: str = "gmm") -> Tensor:
    """Posterior probability [n] that each value belongs to the component of the lower mean; ones if there is but one.

    Values are scaled to [0, 1] first; those beyond the 1st and 99th percentile count as these, as one outlier would
    otherwise squeeze all others together.
    """
    values = values.double()
    if len(values) < FEWEST:
        return torch.ones_like(values)
    ends = torch.quantile(values[_spread(len(values))], values.new_tensor([0.01, 0.99]))
    if not float(ends[1]) > float(ends[0]):
        return torch.ones_like(values)
    scaled = ((values - ends[0]) / (ends[1] - ends[0])).clamp(0, 1)
    if kind == "bmm":
        scaled = scaled.clamp(1e-4, 1 - 1e-4)
    # NumPy's calls cost less than torch's, and there are many of them on few numbers.
    x, low = scaled.cpu().numpy(), (scaled <= scaled.median()).double().cpu().numpy()
    powers = np.stack([np.ones_like(x), x, x**2], axis=1)
    totals = powers.sum(axis=0)
    known, weigh = (_beta if kind == "bmm" else _normal)(x)
    for _ in range(STEPS):
        before, low = low, _posterior(low, powers, totals, known, weigh)
        if np.abs(low - before).max() < 1e-4:
            break
    return _monotone(scaled, torch.from_numpy(low).to(scaled.device))


def _posterior(low: Floats, powers: Floats, totals: Floats, known: Floats, weigh: Weigh) -> Floats:
    """One step: both components fitted to the weights [n], and the low one's posterior under them.

    `powers` [n, 3] are 1, x and x^2 of the values, `totals` [3] their sums. Log densities are products of what is `known` of
    a value, [n, 3], and of what `weigh` makes of mean and variance, so that a step is two products of matrices.
    """
    of_low = low @ powers
    (low_share, low_weights), (high_share, high_weights) = (
        _fitted(sums.tolist(), weigh) for sums in (of_low, totals - of_low)
    )
    difference = np.array([one - other for one, other in zip(low_weights, high_weights, strict=True)])
    return np.asarray(expit(known @ difference + math.log(low_share / high_share)))


def _fitted(sums: list[float], weigh: Weigh) -> tuple[float, Weights]:
    """(a component's share, what `weigh` makes of it), from its sums of 1, x and x^2."""
    share = max(sums[0], 1e-8)
    mean = sums[1] / share
    return share, weigh(mean, max(sums[2] / share - mean**2, 0.0) + LEAST_VARIANCE)


def _normal(values: Floats) -> tuple[Floats, Weigh]:
    def weigh(mean: float, variance: float) -> Weights:
        return -0.5 * (mean**2 / variance + math.log(variance)), mean / variance, -0.5 / variance

    return np.stack([np.ones_like(values), values, values**2], axis=1), weigh


def _beta(values: Floats) -> tuple[Floats, Weigh]:
    """Fitted by the method of moments."""

    def weigh(mean: float, variance: float) -> Weights:
        common = max(mean * (1 - mean) / variance - 1, 1e-2)
        # A component that has lost its values has a mean of 0, up to rounding.
        alpha, beta = max(mean * common, 1e-8), max((1 - mean) * common, 1e-8)
        return -(math.lgamma(alpha) + math.lgamma(beta) - math.lgamma(common)), alpha - 1, beta - 1

    return np.stack([np.ones_like(values), np.log(values), np.log1p(-values)], axis=1), weigh


def _monotone(values: Tensor, low: Tensor) -> Tensor:
    """The posterior, never rising with the value.

    Up to the low component's mean it is the largest found there: a wide high component would else claim the smallest values.
    Beyond, it is the smallest so far: a wide low component would claim the largest ones.
    """
    order = values.argsort()
    falling = low[order]
    below = values[order] <= (low * values).sum() / low.sum().clamp(min=1e-8)
    if bool(below.any()):
        falling = torch.where(below, falling[below].max(), falling)
    result = torch.empty_like(low)
    result[order] = falling.cummin(0).values
    return result


def _spread(size: int, most: int = 1_000_000) -> Tensor:
    """Indices of at most a million values, evenly spread: torch's quantile takes no more than 16 million."""
    return torch.arange(0, size, max(1, size // most))
