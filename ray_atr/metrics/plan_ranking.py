"""Ranking by transport plan: all queries of a test set are matched to all candidates at once (Luong et al. 2024, Eq. 5).

Transductive: what one query finds depends on the other queries, so its numbers do not compare with those of a ranking of
each query by itself.
"""

from __future__ import annotations

import numpy as np
import torch

from ray_atr.metrics.arrays import Array, IntegerArray, as_matrix
from ray_atr.metrics.ranking import EPSILON, LearnedMetric, as_metric
from ray_atr.metrics.ranks import count_ranks_of_matrix
from ray_atr.metrics.relevance import Relevance, as_relevance
from ray_atr.metrics.retrieval import Retrieval, score
from ray_atr.settings import refuse
from ray_atr.transport import solve
from ray_atr.transport.balanced import log_sweeps
from ray_atr.transport.mahalanobis import squared_distances

MAX_ENTRIES = 2**28
TIE = 1e-7  # in log plan: two clips that are the same recording differ by rounding in their potentials


def plan_scores(
    text: Array, audio: Array, *, epsilon: float = EPSILON, sweeps: int = 0, metric: LearnedMetric | None = None
) -> torch.Tensor:
    """Log plan [M, N] between unit rows of `text` [M, D] and `audio` [N, D] with uniform marginals, float64.

    The cost is the Euclidean distance, or that of a learnt `metric` (`as_metric`), over its maximum. `sweeps` 0 solves to
    convergence; N makes that many sweeps of Sinkhorn, a column update last, so that each clip's share is exactly 1/N. The whole
    matrix is held: sets of more than 2^28 pairs are refused with ValueError; rank those by distance.
    """
    clips = as_matrix("audio", audio)
    texts = as_matrix("text", text, clips.shape[1]).to(clips.device)
    if len(clips) * len(texts) > MAX_ENTRIES:
        raise refuse("ranking", f"plan of {len(texts)} texts x {len(clips)} clips", f"up to {MAX_ENTRIES} pairs")
    if not epsilon > 0:
        raise refuse("epsilon", epsilon, "(0, inf)")
    if sweeps < 0:
        raise refuse("sweeps", sweeps, "[0, inf)")
    u, v = (torch.nn.functional.normalize(rows.double(), dim=1) for rows in (texts, clips))
    cost = squared_distances(as_metric(metric, clips.shape[1]).to(u).weigh(u, v)).clamp_(min=0).sqrt_()
    largest = float(cost.max())
    cost = cost / largest if largest > 0 else cost
    if not sweeps:
        return solve(cost, epsilon).log_matrix
    scores = cost / -epsilon
    row, column = log_sweeps(scores, scores.new_zeros(len(clips)), sweeps)
    return scores + row[:, None] + column


def retrieve_by_plan(
    audio: Array,
    captions: Array,
    relevant: IntegerArray | Relevance,
    *,
    epsilon: float = EPSILON,
    sweeps: int = 0,
    metric: LearnedMetric | None = None,
    text_number: np.ndarray | None = None,
) -> Retrieval:
    """As `retrieve`, but ranked by the plan between all captions [M, D] and all clips [N, D]. Transductive."""
    relevance = as_relevance(relevant, len(captions), len(audio))
    scores = plan_scores(captions, audio, epsilon=epsilon, sweeps=sweeps, metric=metric)
    return score(count_ranks_of_matrix(scores, relevance, tie=TIE), relevance, text_number)
