"""Ranking by transport plan: all queries of a test set are matched to all candidates at once.

Transductive: what one query finds depends on the other queries, so its numbers do not compare with those of a ranking
by similarity, and stand under their own keys (`text_to_audio_by_plan/...`).
"""

from __future__ import annotations

import math

import numpy as np
import torch

from ray_atr.evaluation.arrays import Array, IntegerArray, as_floats, as_matrix
from ray_atr.evaluation.ranks import count_ranks_of_matrix
from ray_atr.evaluation.relevance import Relevance, as_relevance
from ray_atr.evaluation.retrieval import Retrieval, score
from ray_atr.settings import refuse

EPSILON = 0.03
ITERATIONS = 10
MAX_ENTRIES = 2**28
TIE = 1e-7  # in log plan: two clips that are the same recording differ by rounding in their potentials


def plan_scores(
    text: Array,
    audio: Array,
    *,
    epsilon: float = EPSILON,
    iterations: int = ITERATIONS,
    metric: Array | None = None,
) -> torch.Tensor:
    """Log plan [M, N] between unit rows of `text` [M, D] and `audio` [N, D] with uniform marginals, float64.

    Luong et al. 2024, Eq. 5, with the 10 iterations at epsilon 0.03 of their code. The cost is the Euclidean distance,
    or the Mahalanobis distance of `metric` ([D, D] positive semi-definite, or its diagonal [D]), over its maximum. A
    column update comes last, so each clip's share is exactly 1/N; the rest is where those iterations stop, which is not
    always the optimum that `ray_atr.transport.solve` finds. The whole matrix is held: sets of more than 2^28 pairs
    are refused with ValueError; rank those by similarity.
    """
    clips = as_matrix("audio", audio)
    texts = as_matrix("text", text, clips.shape[1]).to(clips.device)
    if len(clips) * len(texts) > MAX_ENTRIES:
        raise refuse("ranking", f"plan of {len(texts)} texts x {len(clips)} clips", f"up to {MAX_ENTRIES} pairs")
    if not epsilon > 0:
        raise refuse("epsilon", epsilon, "(0, inf)")
    if iterations < 1:
        raise refuse("iterations", iterations, "[1, inf)")
    cost = _distances(_unit(texts), _unit(clips), None if metric is None else as_floats("metric", metric))
    largest = float(cost.max())
    cost = cost / largest if largest > 0 else cost
    return _iterated(cost / -epsilon, iterations)


def retrieve_by_plan(
    audio: Array,
    captions: Array,
    relevant: IntegerArray | Relevance,
    *,
    epsilon: float = EPSILON,
    iterations: int = ITERATIONS,
    metric: Array | None = None,
    text_number: np.ndarray | None = None,
) -> Retrieval:
    """As `retrieve`, but ranked by the plan between all captions [M, D] and all clips [N, D]. Transductive."""
    relevance = as_relevance(relevant, len(captions), len(audio))
    scores = plan_scores(captions, audio, epsilon=epsilon, iterations=iterations, metric=metric)
    return score(count_ranks_of_matrix(scores, relevance, tie=TIE), relevance, text_number)


def _iterated(scores: torch.Tensor, iterations: int) -> torch.Tensor:
    """Sinkhorn's iterations, so many and no more, on log kernel `scores` [M, N], in the log domain."""
    M, N = scores.shape
    column = scores.new_zeros(N)
    for _ in range(iterations):
        row = -math.log(M) - torch.logsumexp(scores + column, dim=1)
        column = -math.log(N) - torch.logsumexp(scores + row[:, None], dim=0)
    return scores + row[:, None] + column


def _unit(rows: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.normalize(rows.double(), dim=1)


def _distances(text: torch.Tensor, audio: torch.Tensor, metric: torch.Tensor | None) -> torch.Tensor:
    """sqrt((t - a)^T M (t - a)), [M, N], through inner products, without a difference for each pair."""
    if metric is None:
        metric = torch.ones(text.shape[1])
    if metric.shape not in ((text.shape[1],), (text.shape[1], text.shape[1])):
        raise refuse("metric.shape", tuple(metric.shape), f"[{text.shape[1]}, {text.shape[1]}] or [{text.shape[1]}]")
    metric = metric.to(text)
    weighted_text = text * metric if metric.ndim == 1 else text @ metric
    weighted_audio = audio * metric if metric.ndim == 1 else audio @ metric
    square = (weighted_text * text).sum(1)[:, None] + (weighted_audio * audio).sum(1) - 2 * weighted_text @ audio.T
    return square.clamp(min=0).sqrt()
