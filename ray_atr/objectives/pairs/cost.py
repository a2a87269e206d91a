"""The cost of matching u_i with v_j: Euclidean or Mahalanobis distance, divided by its maximum over the batch.

    c_ij = sqrt((u_i - v_j)^T M (u_i - v_j))                               (Luong et al. 2024, Eq. 9)

[N, N, D] is never formed: c^2 = |u|^2 + |v|^2 - 2 <u, v>, in the space that the metric's factor maps to.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ray_atr.objectives.pairs.pair_loss import Comparison
from ray_atr.settings import refuse
from ray_atr.transport import Ranks
from ray_atr.transport.mahalanobis import Mahalanobis, shape_of, squared_distances


def normalised_cost(
    comparison: Comparison,
    kind: str,
    metric: Tensor | None,
    *,
    detach_maximum: bool = False,
    ranks: Ranks | None = None,
) -> Tensor:
    """Distances [N, N] divided by their maximum, in [0, 1]; the gradient flows through the maximum unless detached.

    With `ranks` the comparison's u are one process's rows, and the maximum is that of all processes' rows.
    """
    return _NormalisedRoot.apply(squared_distance(comparison, kind, metric), detach_maximum, ranks or Ranks())


@torch.no_grad()
def judged_cost(comparison: Comparison) -> Tensor:
    """`normalised_cost` under the Euclidean metric, for a judge: without gradient, and with a similarity that the loss shares."""
    cost, _ = _normalised_root(2 - 2 * comparison.cross_similarity(keep=True), Ranks())
    return cost


def squared_distance(comparison: Comparison, kind: str, metric: Tensor | None) -> Tensor:
    """Squared distances [N, N]; the metric is a diagonal [D], mahalanobis M [D, D], or factored L [D, rank] with M = L L^T.

    A gain scales the cross term, c^2 = |u|^2 + |v|^2 - 2 G <u, v>. A precomputed similarity takes the place of <u, v> under
    the Euclidean metric, and is refused by the others. Rounding may leave values slightly below 0.
    """
    if kind != "euclidean" and comparison.similarity is not None:
        raise refuse("objective.pair.metric", kind, "euclidean if a precomputed similarity replaces embeddings")
    if kind == "euclidean":
        if comparison.similarity is None and comparison.gain is None:
            # The factor goes to [N, D] and the sum is in place: no further [N, N] lives here or in the backward pass.
            return (comparison.u @ (-2 * comparison.v).T).add_(2)
        return 2 - 2 * comparison.cross_similarity()
    D = comparison.u.shape[1]
    if metric is None:
        raise refuse("metric", None, f"{shape_of(kind, D)} (or choose objective.pair.metric=euclidean)")
    learnt = Mahalanobis(kind, metric)
    learnt.check_width(D, "metric")
    return squared_distances(learnt.weigh(comparison.u, comparison.v), comparison.gain)


def _floor(squared: Tensor) -> float:
    """The rounding error of squared distances."""
    return 4 * torch.finfo(squared.dtype).eps


def _normalised_root(squared: Tensor, ranks: Ranks) -> tuple[Tensor, Tensor]:
    """(sqrt(squared) / its maximum over all ranks' rows, the maximum)."""
    cost = squared.clamp(min=_floor(squared)).sqrt_()
    maximum = ranks.maximum(cost.max())
    return cost.div_(maximum), maximum


class _NormalisedRoot(torch.autograd.Function):
    """sqrt(squared) / max(sqrt(squared)): one matrix is kept for the gradient, where a graph of its steps would keep three.

    The square root's slope at 0 is infinite: below the rounding error of the squared distance it is cut off.
    """

    @staticmethod
    def forward(ctx: Any, squared: Tensor, detach_maximum: bool, ranks: Ranks) -> Tensor:
        cost, maximum = _normalised_root(squared, ranks)
        ctx.save_for_backward(cost, maximum)
        ctx.detach_maximum, ctx.least, ctx.ranks = detach_maximum, _floor(squared) ** 0.5, ranks
        return cost

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        cost, maximum = ctx.saved_tensors
        gradient = outer.clone(memory_format=torch.contiguous_format)
        if not ctx.detach_maximum:
            # The maximum's share, spread evenly over ties as torch does.
            largest = (cost.flatten() == 1).nonzero().squeeze(1)
            ties = ctx.ranks.sum(cost.new_tensor(float(len(largest))))
            gradient.view(-1)[largest] -= ctx.ranks.sum(torch.dot(outer.flatten(), cost.flatten())) / ties
        gradient.div_(cost).div_(2 * maximum.square())
        return gradient.masked_fill_(cost <= ctx.least / maximum, 0.0), None, None
