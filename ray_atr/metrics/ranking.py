"""The rankings of a query's candidates: by the learned distance, by cosine, or by the plan of all queries and candidates."""

from __future__ import annotations

from typing import TypeAlias

import torch

from ray_atr.common.ranking import EPSILON, RANKINGS, Ranking
from ray_atr.common.settings import refuse
from ray_atr.metrics.relevance import Array, as_floats, as_matrix
from ray_atr.objectives.pairs.mahalanobis import Mahalanobis, squared_distances
from ray_atr.objectives.transport import solve
from ray_atr.objectives.transport.balanced import log_sweeps

LearnedMetric: TypeAlias = Array | Mahalanobis
CHUNK = 8192
MAX_ENTRIES = 2**28


def rankings_beside(ranking: str, *, has_metric: bool) -> list[Ranking]:
    """The other rankings to report; without a learned metric `learned` is the same as `cosine`."""
    if has_metric:
        return [other for other in RANKINGS if other != ranking]
    return ["cosine"] if ranking == "plan" else ["plan"]


def as_metric(metric: LearnedMetric | None, D: int) -> Mahalanobis:
    """A learned metric: M [D, D] positive semi-definite, its diagonal [D], or a `Mahalanobis`; None is the Euclidean one."""
    if metric is None:
        return Mahalanobis("diagonal", torch.ones(D))
    if not isinstance(metric, Mahalanobis):
        matrix = as_floats("metric", metric)
        metric = Mahalanobis("diagonal" if matrix.ndim == 1 else "mahalanobis", matrix)
    metric.check_width(D)
    return metric


def text_rows(texts: torch.Tensor, metric: LearnedMetric) -> torch.Tensor:
    """Rows [M, D + 2], float64, whose inner product with `audio_rows` is minus half the squared distance of the unit rows.

    A ranking by inner product is then one by distance, in both directions:
    -|t - a|^2 / 2 = <t M, a> - |t|^2 / 2 - |a|^2 / 2.
    """
    learned = as_metric(metric, texts.shape[1])
    # In chunks, so that only the result is held in float64.
    return torch.cat([_left(part, learned) for part in texts.split(CHUNK)])


def audio_rows(clips: torch.Tensor, metric: LearnedMetric) -> torch.Tensor:
    """The clips' side of `text_rows`, [N, D + 2], which is the same for every language."""
    learned = as_metric(metric, clips.shape[1])
    return torch.cat([_right(part, learned) for part in clips.split(CHUNK)])


def _left(rows: torch.Tensor, learned: Mahalanobis) -> torch.Tensor:
    unit = torch.nn.functional.normalize(rows.double(), dim=1)
    weighed = learned.to(unit).weigh(unit, unit[:0])
    return torch.cat([weighed.left, -weighed.left_norms[:, None] / 2, torch.ones_like(unit[:, :1])], dim=1)


def _right(rows: torch.Tensor, learned: Mahalanobis) -> torch.Tensor:
    unit = torch.nn.functional.normalize(rows.double(), dim=1)
    weighed = learned.to(unit).weigh(unit[:0], unit)
    return torch.cat([weighed.right, torch.ones_like(unit[:, :1]), -weighed.right_norms[:, None] / 2], dim=1)


def plan_scores(
    text: Array, audio: Array, *, epsilon: float = EPSILON, sweeps: int = 0, metric: LearnedMetric | None = None
) -> torch.Tensor:
    """Log plan [M, N] between unit rows of `text` [M, D] and `audio` [N, D] with uniform marginals, float64.

    All queries are matched to all candidates at once (Luong et al. 2024, Eq. 5). Transductive: a query's results depend on the
    other queries, so the numbers do not compare with those of a ranking of each query by itself.

    The cost is the Euclidean distance, or that of a learned `metric` (`as_metric`), divided by its maximum. `sweeps` 0 solves
    to convergence; S makes S sweeps of Sinkhorn, a column update last, so that each clip's share is exactly 1/N. The matrix is in
    memory: ValueError for more than 2^28 pairs, which can be ranked by distance.

    When: a model was trained with a transport loss, and all queries of a set are given at once.
    Related: `retrieve_by_plan` ranks by it; `ray_atr.objectives.transport.solve` is the plan itself.

    >>> import torch
    >>> from ray_atr.metrics import plan_scores
    >>> plan_scores(torch.eye(2), torch.eye(2)).argmax(dim=1).tolist()
    [0, 1]
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
