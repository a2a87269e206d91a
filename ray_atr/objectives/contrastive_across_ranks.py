"""The contrastive loss of a global batch whose rows are on several workers, without a B x B matrix anywhere.

Embeddings are gathered without a gradient. Each worker finds the log-sum-exp of its own rows and columns, the workers exchange
those 2 B numbers, and then each has all that the gradient of its own rows needs:

    dL/du_i = 1/(2 B tau) [ sum_j (exp(l_ij - R_i) + exp(l_ij - C_j)) v_j - 2 v_i ],   l = u v^T / tau

R and C the log-sum-exps of rows and columns. Similarities are computed in tiles and never kept; no collective runs backwards.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed

from ray_atr.settings import refuse


def contrastive_across_ranks(
    u: Tensor, v: Tensor, temperature: float | Tensor, *, group: Any = None, tile: int = 1024
) -> Tensor:
    """The global batch's contrastive loss (mean over samples, half of each direction), the same value on every worker.

    u, v         this worker's unit-norm embeddings [b, D], the same b on each; true pairs share a row.
    temperature  a number, or a scalar tensor that is learnt.
    tile         columns of similarities held at a time: memory is O(b tile + B D).

    Gradients are those of the global loss times the number of workers, so that averaging them over workers, as DDP does,
    gives what one process with the whole batch would have. Equals `Contrastive` without positives, gains or weights.
    """
    if u.shape != v.shape or u.ndim != 2:
        raise refuse("v", tuple(v.shape), f"the shape of u, {tuple(u.shape)}")
    tau = torch.as_tensor(temperature, dtype=u.dtype, device=u.device)
    return _ContrastiveAcrossRanks.apply(u, v, tau, group, tile)


class _ContrastiveAcrossRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: Tensor, v: Tensor, tau: Tensor, group: Any, tile: int) -> Tensor:
        workers = distributed.get_world_size(group) if distributed.is_initialized() else 1
        all_u, all_v = _gather(u, group, workers), _gather(v, group, workers)
        scaled_u, scaled_v = u / tau, v / tau
        own = (scaled_u * v).sum(dim=1)
        # Tiles of similarities go through one buffer: fresh pages cost more than the arithmetic.
        buffer = u.new_empty(len(u) * min(tile, len(all_u)))
        row_sums = _log_sum_exp(scaled_u, all_v, tile, buffer)
        column_sums = _log_sum_exp(scaled_v, all_u, tile, buffer)
        sums = _gather(torch.stack([row_sums, column_sums], dim=1), group, workers)
        all_rows, all_columns = sums[:, 0], sums[:, 1]
        B = len(all_u)
        total = (row_sums + column_sums - 2 * own).sum()
        if workers > 1:
            distributed.all_reduce(total, group=group)
        scale = workers / (2 * B)
        pull_u, weighted = _pulled(scaled_u, all_v, row_sums, all_columns, tile, buffer)
        pull_v, _ = _pulled(scaled_v, all_u, column_sums, all_rows, tile, buffer)
        u_gradient = pull_u.sub_(v, alpha=2).mul_(scale / tau)
        v_gradient = pull_v.sub_(u, alpha=2).mul_(scale / tau)
        tau_gradient = (weighted - 2 * own.sum()) * (-scale / tau)
        ctx.save_for_backward(u_gradient, v_gradient, tau_gradient)
        return total / (2 * B)

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        u_gradient, v_gradient, tau_gradient = ctx.saved_tensors
        return outer * u_gradient, outer * v_gradient, outer * tau_gradient, None, None


def _gather(local: Tensor, group: Any, workers: int) -> Tensor:
    if workers == 1:
        return local.detach()
    gathered = local.new_empty(workers * len(local), *local.shape[1:])
    distributed.all_gather_into_tensor(gathered, local.detach().contiguous(), group=group)
    return gathered


def _log_sum_exp(anchors: Tensor, others: Tensor, tile: int, buffer: Tensor) -> Tensor:
    """log sum_j exp(<anchor_i, other_j>) of each anchor, [b], tile by tile."""
    maximum = anchors.new_full((len(anchors),), -torch.inf)
    total = anchors.new_zeros(len(anchors))
    for part in others.split(tile):
        logits = _similarities(anchors, part, buffer)
        larger = torch.maximum(maximum, logits.amax(dim=1))
        total.mul_((maximum - larger).exp_()).add_(logits.sub_(larger[:, None]).exp_().sum(dim=1))
        maximum = larger
    return maximum + total.log()


def _pulled(
    anchors: Tensor, others: Tensor, own_sums: Tensor, other_sums: Tensor, tile: int, buffer: Tensor
) -> tuple[Tensor, Tensor]:
    """(sum_j (exp(l_ij - own_i) + exp(l_ij - other_j)) other_j [b, D], the same sum weighting l_ij itself, over all i)."""
    pulled = torch.zeros_like(anchors)
    weighted = anchors.new_zeros(())
    for part, part_sums in zip(others.split(tile), other_sums.split(tile), strict=True):
        logits = _similarities(anchors, part, buffer)
        weights = (logits - own_sums[:, None]).exp_()
        weights.add_((logits - part_sums).exp_())
        weighted += torch.dot(weights.flatten(), logits.flatten())
        pulled.addmm_(weights, part)
    return pulled, weighted


def _similarities(anchors: Tensor, others: Tensor, buffer: Tensor) -> Tensor:
    shape = (len(anchors), len(others))
    return torch.mm(anchors, others.T, out=buffer[: shape[0] * shape[1]].view(shape))
