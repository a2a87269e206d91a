"""Two components of a set of numbers: which of them belong to the low one, and how surely.

gmm: two normal distributions, as DivideMix (Li et al. 2020, section 3.1) and NCR (Huang et al. 2021, Eq. 7) fit to losses.
bmm: two beta distributions (Arazo et al. 2019, section 3.1), as L2RM (Han et al. 2024) and BiCro (Yang et al. 2023) do.

Expectation-maximisation from a fixed start, so the answer depends on the numbers alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

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
    log_density = _beta if kind == "bmm" else _normal
    if kind == "bmm":
        scaled = scaled.clamp(1e-4, 1 - 1e-4)
    low = (scaled <= scaled.median()).double()
    for _ in range(STEPS):
        before, low = low, _posterior(scaled, low, log_density)
        if float((low - before).abs().max()) < 1e-4:
            break
    return _monotone(scaled, low)


def _posterior(values: Tensor, low: Tensor, log_density: object) -> Tensor:
    """One step: both components fitted to the weights, and the low one's posterior under them."""
    logits = []
    for weights in (low, 1 - low):
        total = weights.sum().clamp(min=1e-8)
        mean = (weights * values).sum() / total
        variance = (weights * (values - mean).square()).sum() / total + LEAST_VARIANCE
        logits.append(log_density(values, mean, variance) + torch.log(total / len(values)))  # type: ignore[operator]
    return torch.sigmoid(logits[0] - logits[1])


def _normal(values: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    return -0.5 * ((values - mean).square() / variance + variance.log())


def _beta(values: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """By the method of moments."""
    common = (mean * (1 - mean) / variance - 1).clamp(min=1e-2)
    alpha, beta = mean * common, (1 - mean) * common
    normaliser = torch.lgamma(alpha) + torch.lgamma(beta) - torch.lgamma(alpha + beta)
    return (alpha - 1) * values.log() + (beta - 1) * torch.log1p(-values) - normaliser


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
