"""The workers of one training run as the step sees them: gather with gradient, reduce, agree.

Exactness: every worker gathers all embeddings and computes the same loss on the global batch of B pairs. The backward
of the gather takes the worker's own slice times W (no collective is needed: all workers hold the same gradient), and
`average_gradients` then takes the mean over workers. Encoder gradients are sums of the workers' parts, gradients
of parameters used after the gather (temperature, metric) are the mean of W equal values: both are those of one process
that holds all B pairs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True)
class WorkerGroup:
    """This worker's place among the `size` workers of a run, and the device it computes on."""

    rank: int = 0
    size: int = 1
    device: torch.device = torch.device("cpu")

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def gather(self, tensor: Tensor) -> Tensor:
        """The workers' equally shaped `[b, ...]` tensors stacked in rank order to `[W b, ...]`, with gradient."""
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

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace every gradient by its mean over the workers, in one flat all-reduce a dtype."""
        if self.size == 1:
            return
        by_type: dict[torch.dtype, list[Tensor]] = {}
        for parameter in parameters:
            if not parameter.requires_grad:
                continue
            # A worker whose share of the batch did not touch a parameter still takes part in its mean.
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            by_type.setdefault(parameter.grad.dtype, []).append(parameter.grad)
        for gradients in by_type.values():
            flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
            dist.all_reduce(flat)
            flat /= self.size
            offset = 0
            for gradient in gradients:
                gradient.copy_(flat[offset : offset + gradient.numel()].view_as(gradient))
                offset += gradient.numel()

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
        ctx.group, ctx.length = group, len(tensor)
        return torch.cat(_all_gather(tensor, group.size))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        start = ctx.group.rank * ctx.length
        return gradient[start : start + ctx.length] * ctx.group.size, None
