"""Batch norm for training: its statistics are over the frames without padding, of all workers' shares of a batch."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ray_atr.common.ranks import LinearMap, Ranks
from ray_atr.models.tower import length_mask


class BatchNorm2d(nn.BatchNorm2d):
    """torch's batch norm of [N, C, T, F]; in training mode only frames inside of a clip enter its statistics.

    torch's own counts padding too, so that a clip would depend on the length of the longest in its batch, and its
    `SyncBatchNorm` computes on GPUs only.
    """

    ranks = Ranks()
    """The workers that share a batch."""

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """x [N, C, T, F], of which the first `lengths[n]` frames of clip n count; None: all T."""
        if not self.training:
            # On a CPU, torch's gradient of a transposed input with one frequency is wrong, without an error: it reads the input
            # and the outer gradient in different orders.
            return super().forward(x.contiguous())
        N, _, T, F = x.shape
        inside = x.new_ones(N, T, dtype=torch.float32)
        if lengths is not None:
            inside = length_mask(lengths, T).to(torch.float32)
        inside = inside[:, None, :, None]
        wide = x.float()
        count = _summed(inside.sum() * F, self.ranks)
        mean = _summed((wide * inside).sum(dim=(0, 2, 3)), self.ranks) / count
        centred = wide - mean[:, None, None]
        variance = _summed((centred.square() * inside).sum(dim=(0, 2, 3)), self.ranks) / count
        self._follow(mean.detach(), variance.detach(), count)
        scale = self.weight * (variance + self.eps).rsqrt()
        return (centred * scale[:, None, None] + self.bias[:, None, None]).to(x.dtype)

    @torch.no_grad()
    def _follow(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        """Update the running statistics as torch does, with the unbiased variance (N - 1)."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.momentum is not None
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(variance * count / (count - 1).clamp(min=1), self.momentum)
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)


def synchronise_batch_norms(tower: nn.Module, num_workers: int) -> None:
    """Share the statistics of a tower's training batch norms between all workers, which must all call this."""
    norms = [module for module in tower.modules() if isinstance(module, BatchNorm2d)]
    if num_workers > 1 and norms and getattr(tower, "trains_batch_norms", False):
        # In a backward pass gradients are exchanged too, and the order of both exchanges may differ between workers.
        ranks = Ranks.here(dist.new_group())
        for norm in norms:
            norm.ranks = ranks


def _summed(value: Tensor, ranks: Ranks) -> Tensor:
    """The sum over all workers, with its gradient: the loss is the sum of the workers' losses, all of which depend on this sum,
    so the backward pass sums the workers' gradients.
    """
    summed: Tensor = value if ranks.size == 1 else LinearMap.apply(value, ranks.sum, ranks.sum)
    return summed
