"""The cost of matching u_i with v_j: Euclidean or Mahalanobis distance, divided by its maximum over the batch.

    c_ij = sqrt((u_i - v_j)^T M (u_i - v_j))                               (Luong et al. 2024, Eq. 9)

[N, N, D] is never formed: c^2 = |u|^2 + |v|^2 - 2 <u, v>, in the space that the metric's factor maps to.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ray_atr.objectives.pairs.base import Comparison
from ray_atr.settings import refuse

METRICS = ("euclidean", "diagonal", "mahalanobis", "factored")
_SHAPES = {"diagonal": "[D]", "mahalanobis": "[D, D]", "factored": "[D, rank]"}


def normalised_cost(
    comparison: Comparison, kind: str, metric: Tensor | None, *, detach_maximum: bool = False
) -> Tensor:
    """Distances [N, N] divided by their maximum, in [0, 1]; the gradient flows through the maximum unless detached."""
    return _NormalisedRoot.apply(squared_distance(comparison, kind, metric), detach_maximum)


def squared_distance(comparison: Comparison, kind: str, metric: Tensor | None) -> Tensor:
    """Squared distances [N, N]; the metric is a diagonal [D], mahalanobis M [D, D], or factored L [D, rank] with M = L L^T.

    A gain scales the cross term, c^2 = |u|^2 + |v|^2 - 2 G <u, v>. A precomputed similarity takes the place of <u, v> under
    the Euclidean metric, and is refused by the others. Rounding may leave values slightly below 0.
    """
    if kind != "euclidean" and comparison.similarity is not None:
        raise refuse(
            "objective.pair.metric", kind, "euclidean where a precomputed similarity takes the place of embeddings"
        )
    if kind == "euclidean":
        if comparison.similarity is None and comparison.gain is None:
            # The factor goes to [N, D] and the sum is in place: no further [N, N] lives here or in the backward pass.
            return (comparison.u @ (-2 * comparison.v).T).add_(2)
        return 2 - 2 * comparison.cross_similarity()
    return _squared_mahalanobis(comparison, kind, _checked(metric, kind, comparison.u.shape[1]))


class _NormalisedRoot(torch.autograd.Function):
    """sqrt(squared) / max(sqrt(squared)): one matrix is kept for the gradient, where a graph of its steps would keep three.

    The square root's slope at 0 is infinite: below the rounding error of the squared distance it is cut off.
    """

    @staticmethod
    def forward(ctx: Any, squared: Tensor, detach_maximum: bool) -> Tensor:
        floor = 4 * torch.finfo(squared.dtype).eps
        cost = squared.clamp(min=floor).sqrt_()
        maximum = cost.max()
        cost.div_(maximum)
        ctx.save_for_backward(cost, maximum)
        ctx.detach_maximum, ctx.least = detach_maximum, floor**0.5
        return cost

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        cost, maximum = ctx.saved_tensors
        gradient = outer.clone(memory_format=torch.contiguous_format)
        if not ctx.detach_maximum:
            # The maximum's share, spread evenly over ties as torch does.
            largest = (cost.flatten() == 1).nonzero().squeeze(1)
            gradient.view(-1)[largest] -= torch.dot(outer.flatten(), cost.flatten()) / len(largest)
        gradient.div_(cost).div_(2 * maximum.square())
        return gradient.masked_fill_(cost <= ctx.least / maximum, 0.0), None


def _squared_mahalanobis(comparison: Comparison, kind: str, metric: Tensor) -> Tensor:
    u, v = comparison.u, comparison.v
    if kind == "factored":
        mapped_u, mapped_v = u @ metric, v @ metric
        row_norms, column_norms = mapped_u.square().sum(dim=1), mapped_v.square().sum(dim=1)
        cross = mapped_u @ mapped_v.T
    elif kind == "diagonal":
        # u_i^2 M: as the released code of the paper reads its M. Negative entries count as 0, as after projection.
        scale = metric.clamp(min=0)
        mapped_u, mapped_v = u * scale, v * scale
        row_norms, column_norms = (mapped_u * u).sum(dim=1), (mapped_v * v).sum(dim=1)
        cross = mapped_u @ v.T
    else:
        symmetric = (metric + metric.T) / 2
        mapped_u, mapped_v = u @ symmetric, v @ symmetric
        row_norms, column_norms = (mapped_u * u).sum(dim=1), (mapped_v * v).sum(dim=1)
        cross = mapped_u @ v.T
    if comparison.gain is not None:
        cross = comparison.gain * cross
    return row_norms[:, None] + column_norms - 2 * cross


def _checked(metric: Tensor | None, kind: str, D: int) -> Tensor:
    allowed = f"a tensor {_SHAPES[kind]} with D = {D} for objective.pair.metric={kind} (or choose metric=euclidean)"
    if metric is None:
        raise refuse("metric", None, allowed)
    fits = {"diagonal": (D,), "mahalanobis": (D, D), "factored": (D, *metric.shape[1:2])}[kind]
    if tuple(metric.shape) != fits or (kind == "factored" and metric.ndim != 2):
        raise refuse("metric", tuple(metric.shape), allowed)
    return metric
