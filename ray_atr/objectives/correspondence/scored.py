"""Clean probabilities from a score: recorded as batches pass, split by a two-component mixture at the start of the next epoch.

gmm: two normal distributions, as DivideMix (Li et al. 2020, section 3.1) and NCR (Huang et al. 2021, Eq. 7) fit to losses.
bmm: two beta distributions (Arazo et al. 2019, section 3.1), as L2RM (Han et al. 2024) and BiCro (Yang et al. 2023) do. The
values 0 and 1 count as .0001 and .9999 in the posterior too: in BiCro's code the smallest loss of all has a probability of 0.
Expectation-maximisation starts from a fixed split, so the answer depends on the numbers alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from scipy.special import expit
from torch import Tensor

from ray_atr.objectives.correspondence.correspondence import (
    Correspondence,
    Estimator,
    PairEstimate,
    PairIndex,
    TrainingPairs,
)
from ray_atr.objectives.correspondence.ridge import Floats
from ray_atr.objectives.pairs import Comparison

Weights = tuple[float, float, float]

STEPS = 50
LEAST_VARIANCE = 5e-4  # DivideMix's regularisation of the covariance, for values in [0, 1]
FEWEST = 8
LEAST_SHARE = 0.01
"""Smallest share, and distance from 1, of a component whose share is given."""


class MixtureEstimator(Estimator):
    """A pair's clean probability is the posterior of the better component over the latest scores of all pairs.

    Every pair has a sample weight of 1 in the first `warmup_epochs`. Each language has its own mixture: one read badly is no
    noise. A pair without a score gets the mean of its language.
    """

    def __init__(self, pairs: TrainingPairs, settings: Correspondence) -> None:
        super().__init__(pairs, settings)
        self.scores = self.table("scores", torch.nan)
        """Higher is better."""
        self.clean_probabilities = self.table("clean_probabilities", 1.0)

    def begin_epoch(self, epoch: int) -> None:
        super().begin_epoch(epoch)
        self.ranking_scores.copy_(self.scores)
        if epoch >= self.settings.warmup_epochs:
            self.clean_probabilities.copy_(self.posterior(self.scores))

    def posterior(self, scores: Tensor) -> Tensor:
        """Clean probabilities [N, J, K] of scores [N, J, K] with NaN for pairs that have none."""
        clean_probabilities = torch.ones_like(scores)
        # They are known too if only the pair loss reads them.
        shares = self.clean_shares if self.settings.needs_clean_share else None
        for language in range(scores.shape[2]):
            has_score = ~scores[:, :, language].isnan()
            if bool(has_score.any()):
                share = None if shares is None else shares.of_language(language)
                clean = low_component(-scores[:, :, language][has_score], self.settings.mixture, share).to(scores)
                clean_probabilities[:, :, language] = clean.mean()
                clean_probabilities[:, :, language][has_score] = clean
        return clean_probabilities

    def estimate(self, comparison: Comparison, index: PairIndex) -> PairEstimate:
        """Record the pairs' scores for the next epoch; the estimate is that of the epoch's start."""
        self.write(self.scores, index, self.score(comparison, index).float())
        return PairEstimate(self.clean_probabilities[index].to(comparison.u.dtype))

    def score(self, comparison: Comparison, index: PairIndex) -> Tensor:
        """The score of each pair, [n]; NaN if this batch gives none, so that the pair keeps its earlier score."""
        raise NotImplementedError


def low_component(values: Tensor, kind: str = "gmm", share: float | None = None) -> Tensor:
    """Posterior probability [n] that each value belongs to the component of the lower mean; ones if there is but one.

    `share` is that component's share of the values where it is known; else the mixture fits it.

    Values are scaled to [0, 1] first. In gmm those beyond the 1st and 99th percentile count as these, because of outliers. Not in
    bmm: a beta distribution is steepest at its ends, and a hundredth of all values there would shape it.
    """
    values = values.double()
    if len(values) < FEWEST:
        return torch.ones_like(values)
    # At most about a million values, evenly spread: torch's quantile takes no more than 16 million.
    spread = values[:: max(1, len(values) // 1_000_000)]
    ends = torch.quantile(spread, values.new_tensor([0.0, 1.0] if kind == "bmm" else [0.01, 0.99]))
    if not float(ends[1]) > float(ends[0]):
        return torch.ones_like(values)
    scaled = ((values - ends[0]) / (ends[1] - ends[0])).clamp(0, 1)
    if kind == "bmm":
        scaled = scaled.clamp(1e-4, 1 - 1e-4)
    # NumPy's calls cost less than torch's, and there are many of them on few numbers.
    x, low = scaled.cpu().numpy(), (scaled <= scaled.median()).double().cpu().numpy()
    powers = np.stack([np.ones_like(x), x, x**2], axis=1)
    totals, statistics, log_density_weights = powers.sum(axis=0), powers, _normal
    if kind == "bmm":
        statistics, log_density_weights = np.stack([powers[:, 0], np.log(x), np.log1p(-x)], axis=1), _beta
    for _ in range(STEPS):
        before, low = low, _posterior(low, powers, totals, statistics, log_density_weights, share)
        if np.abs(low - before).max() < 1e-4:
            break
    return _monotone(scaled, torch.from_numpy(low).to(scaled.device))


def _posterior(
    low: Floats,
    powers: Floats,
    totals: Floats,
    statistics: Floats,
    log_density_weights: Callable[[float, float], Weights],
    share_of_low: float | None,
) -> Floats:
    """One step: both components fitted to the weights [n], and the low one's posterior under them.

    `powers` [n, 3] are 1, x and x^2 of the values, `totals` [3] their sums. A log density is the product of a value's
    `statistics` [n, 3] with the weights that `log_density_weights` gives for mean and variance, so that a step is two products
    of matrices.
    """
    of_low = low @ powers
    fitted = []
    for total, first, second in (of_low.tolist(), (totals - of_low).tolist()):
        share = max(total, 1e-8)
        mean = first / share
        fitted.append((share, log_density_weights(mean, max(second / share - mean**2, 0.0) + LEAST_VARIANCE)))
    (low_share, low_weights), (high_share, high_weights) = fitted
    difference = np.array([a - b for a, b in zip(low_weights, high_weights, strict=True)])
    if share_of_low is not None:
        low_share = min(max(share_of_low, LEAST_SHARE), 1 - LEAST_SHARE)
        high_share = 1 - low_share
    return np.asarray(expit(statistics @ difference + math.log(low_share / high_share)))


def _normal(mean: float, variance: float) -> Weights:
    return -0.5 * (mean**2 / variance + math.log(variance)), mean / variance, -0.5 / variance


def _beta(mean: float, variance: float) -> Weights:
    """By the method of moments."""
    common = max(mean * (1 - mean) / variance - 1, 1e-2)
    # A component that has lost its values has a mean of 0, up to rounding.
    alpha, beta = max(mean * common, 1e-8), max((1 - mean) * common, 1e-8)
    return -(math.lgamma(alpha) + math.lgamma(beta) - math.lgamma(common)), alpha - 1, beta - 1


def _monotone(values: Tensor, low: Tensor) -> Tensor:
    """The posterior, made non-increasing in the value: a wide component would otherwise have values beyond the other one.

    Up to the low component's mean it is the largest posterior there; beyond, the running minimum.
    """
    order = values.argsort()
    falling = low[order]
    below = values[order] <= (low * values).sum() / low.sum().clamp(min=1e-8)
    if bool(below.any()):
        falling = torch.where(below, falling[below].max(), falling)
    result = torch.empty_like(low)
    result[order] = falling.cummin(0).values
    return result
