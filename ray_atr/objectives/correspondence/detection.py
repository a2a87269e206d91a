"""How well clean probabilities separate true pairs from wrong ones, where it is known which are true."""

from __future__ import annotations

import torch
from torch import Tensor

BINS = 10
FALSE_DISCOVERY = 0.05
LEAST_DIFFERENCE = 1e-6
"""Probabilities that differ by less are the same: it is rounding, which differs with the number of workers."""


def detection(clean_probability: Tensor, is_true: Tensor, score: Tensor | None = None) -> dict[str, float]:
    """Scalars of clean probabilities [n] in [0, 1] against bool [n]; only those that are defined for the pairs given.

    `score` [n] is what the probabilities were made of, if there is one: it orders pairs of the same probability.

    detector_auc                the chance that a true pair has a higher probability than a wrong one, ties count half.
    detector_calibration_error  mean over ten bins, by their size, of |mean probability - share of true pairs|.
    clean_pairs_lost            if the most probable pairs are kept, as many as possible with at most 5% wrong ones among them:
                                the share of true pairs that are not kept.
    """
    clean_probability, is_true = clean_probability.double().flatten().cpu(), is_true.flatten().cpu()
    measured = {"detector_calibration_error": calibration_error(clean_probability, is_true)}
    if 0 < int(is_true.sum()) < len(is_true):
        ranks = probability_ranks((clean_probability / LEAST_DIFFERENCE).round(), score)
        measured["detector_auc"] = area_under_curve(ranks, is_true)
        measured["clean_pairs_lost"] = clean_pairs_lost(ranks, is_true)
    return measured


def probability_ranks(clean_probability: Tensor, score: Tensor | None) -> Tensor:
    """A number [n] that orders the pairs by probability, then by score; equals share one, a missing score (NaN) is the lowest."""
    if score is None:
        return clean_probability
    levels = score.flatten().cpu().nan_to_num(nan=-torch.inf).unique(return_inverse=True)[1]
    return clean_probability.unique(return_inverse=True)[1] * len(levels) + levels


def area_under_curve(clean_probability: Tensor, is_true: Tensor) -> float:
    """Mann and Whitney's statistic, over its maximum: the wrong pairs below each true one, where a tie counts half."""
    true, wrong = clean_probability[is_true], clean_probability[~is_true].sort().values
    below, up_to = (torch.searchsorted(wrong, true, right=right).sum() for right in (False, True))
    return int(below + up_to) / (2 * len(true) * len(wrong))


def calibration_error(clean_probability: Tensor, is_true: Tensor) -> float:
    """Expected calibration error over bins of equal width."""
    bins = (clean_probability * BINS).long().clamp(0, BINS - 1)
    gaps = torch.zeros(BINS, dtype=torch.float64).index_add(0, bins, clean_probability - is_true.double())
    return float(gaps.abs().sum() / len(clean_probability))


def clean_pairs_lost(clean_probability: Tensor, is_true: Tensor) -> float:
    """As in `detection`. Pairs of equal probability are selected together."""
    order = clean_probability.argsort(descending=True)
    selected, wrong = torch.arange(1, len(order) + 1), (~is_true[order]).cumsum(0)
    descending = clean_probability[order]
    is_last_of_ties = torch.cat([descending[1:] < descending[:-1], torch.ones(1, dtype=torch.bool)])
    allowed = (wrong <= FALSE_DISCOVERY * selected) & is_last_of_ties
    if not bool(allowed.any()):
        return 1.0
    last = int(allowed.nonzero().max())
    return 1 - int(selected[last] - wrong[last]) / int(is_true.sum())
