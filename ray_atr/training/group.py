"""The workers of one training run as the step sees them: gather with gradient, reduce, agree.

Exactness: every worker gathers all embeddings and computes the same loss on the global batch of B pairs. The backward
of the gather takes the worker's own slice times W (no collective is needed: all workers hold the same gradient), and
`GradientMean` then takes the mean over workers. Encoder gradients are sums of the workers' parts, gradients
of parameters used after the gather (temperature, metric) are the mean of W equal values: both are those of one process
that holds all B pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ray_atr.transport import Ranks


@dataclass(frozen=True)
class WorkerGroup:
    """This worker's place among the `size` workers of a run, and the device it computes on."""

    rank: int = 0
    size: int = 1
    device: torch.device = torch.device("cpu")
    shares: tuple[int, ...] = ()
    """Samples of a global batch that each worker has; empty: as many on each."""

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def ranks(self) -> Ranks:
        """The workers as those that share a loss."""
        return Ranks(self.rank, self.size)

    def gather(self, tensor: Tensor) -> Tensor:
        """The workers' `[b, ...]` tensors of their shares, stacked in rank order to `[B, ...]`, with gradient."""
        if self.size == 1:
            return tensor
        return _Gather.apply(tensor, self)  # type: ignore[no-any-return]

    def gather_objects(self, value: Any) -> list[Any]:
        """Every worker's plain Python value, in rank order."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def gather_rows(self, tensor: Tensor) -> Tensor:
        """The workers' `[n_r, ...]` tensors, of different lengths, stacked in rank order; no gradient."""
        if self.size == 1:
            return tensor
        lengths = self.gather_objects(len(tensor))
        padded = tensor.new_zeros((max(lengths), *tensor.shape[1:]))
        padded[: len(tensor)] = tensor
        stacked = _all_gather(padded, self.size)
        return torch.cat([part[:length] for part, length in zip(stacked, lengths, strict=True)])

    def any(self, condition: bool) -> bool:
        """Whether the condition holds on at least one worker."""
        if self.size == 1:
            return condition
        flag = torch.tensor(float(condition), device=self.device)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())

    def barrier(self) -> None:
        if self.size > 1:
            dist.barrier()


def _all_gather(tensor: Tensor, size: int) -> list[Tensor]:
    parts = [torch.empty_like(tensor) for _ in range(size)]
    dist.all_gather(parts, tensor.contiguous())
    return parts


class _Gather(torch.autograd.Function):
    """torch's own differentiable gathers warn as deprecated; this is the whole of what is needed."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: WorkerGroup) -> Tensor:
        shares = group.shares or (len(tensor),) * group.size
        ctx.group, ctx.start, ctx.length = group, sum(shares[: group.rank]), len(tensor)
        longest = max(shares)
        padded = tensor
        if len(tensor) < longest:
            padded = torch.cat([tensor, tensor.new_zeros(longest - len(tensor), *tensor.shape[1:])])
        return torch.cat([part[:length] for part, length in zip(_all_gather(padded, group.size), shares, strict=True)])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return gradient[ctx.start : ctx.start + ctx.length] * ctx.group.size, None
