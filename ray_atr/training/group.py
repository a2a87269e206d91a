"""The workers of one training run: gathering with gradients, averaging gradients, and clipping them.

Exactness: every worker gathers all embeddings and computes the same loss on the global batch of B pairs. The backward
of the gather takes the worker's own slice times W (no collective is needed: all workers hold the same gradient), and
`GradientMean` then takes the mean over workers. Encoder gradients are sums of the workers' parts, gradients
of parameters used after the gather (temperature, metric) are the mean of W equal values: both are those of one process
that holds all B pairs. A loss that is shared around a ring needs no gather: each worker gets the gradient of its own
embeddings (`keep`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ray_atr.common.ranks import LinearMap, Ranks, stacked, unchanged
from ray_atr.models.sharding import is_sharded, local
from ray_atr.objectives.pairs.ring import Ring

BUCKET_BYTES = 25 * 2**20
"""Size of a bucket of gradients, as in DistributedDataParallel: large enough for the network, small enough to be sent early."""


@dataclass(frozen=True)
class WorkerGroup:
    """This worker's place among the `size` workers of a run, and the device it computes on."""

    rank: int = 0
    size: int = 1
    device: torch.device = torch.device("cpu")
    shares: tuple[int, ...] = ()
    """Samples of a global batch on each worker; empty: the same number on each."""
    share_losses_from: int | None = None
    """Number of pairs from which the workers share a loss; None: the loss's own number, 0: never."""

    loss_bytes: float = math.inf
    """Bytes that a worker's part of a shared loss may take; the same on all workers."""

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def ranks(self) -> Ranks:
        """The workers as `Ranks`, for losses that they share."""
        return Ranks(self.rank, self.size)

    def share_losses(self) -> AbstractContextManager[None]:
        """Within the context, the workers share losses of many pairs."""
        return self.ranks.share(at_least=self.share_losses_from, memory=self.loss_bytes)

    def gather(self, tensor: Tensor) -> Tensor:
        """The workers' `[b, ...]` tensors of their shares, stacked in rank order to `[B, ...]`, with gradient."""
        if self.size == 1:
            return tensor
        shares = self.shares or (len(tensor),) * self.size
        own = slice(sum(shares[: self.rank]), sum(shares[: self.rank]) + len(tensor))
        # torch's own differentiable gathers are deprecated.
        return LinearMap.apply(tensor, partial(stacked, lengths=shares), lambda gradient: gradient[own] * self.size)

    def keep(self, tensor: Tensor) -> Tensor:
        """The tensor itself, where no worker gathers; its gradient is scaled as that of `gather` is."""
        if self.size == 1:
            return tensor
        # `GradientMean` divides all gradients by the number of workers.
        return LinearMap.apply(tensor, unchanged, lambda gradient: gradient * self.size)

    def ring(self, B: int) -> Ring:
        """The workers in a ring, each with its share of a batch of B."""
        shares = self.shares or (B // self.size,) * self.size
        ends = list(itertools.accumulate(shares))
        return Ring(self.ranks, tuple(slice(end - share, end) for end, share in zip(ends, shares, strict=True)))

    def gather_objects(self, value: Any) -> list[Any]:
        """Every worker's plain Python value, in rank order."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value)
        return values

    def of_first(self, value: Any) -> Any:
        """The first worker's plain Python value; `gather_objects` would hold as much memory for each of the others."""
        if self.size == 1:
            return value
        values = [value if self.is_first else None]
        dist.broadcast_object_list(values, src=0)
        return values[0]

    def gather_rows(self, tensor: Tensor) -> Tensor:
        """The workers' `[n_r, ...]` tensors, of different lengths, stacked in rank order; no gradient."""
        if self.size == 1:
            return tensor
        return stacked(tensor, self.gather_objects(len(tensor)))

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


def bytes_for_losses(loss_bytes: float | None, device: torch.device) -> float:
    """Bytes that a worker's part of a shared loss may take on its device; None: by the device (`scaling.loss_memory=auto`)."""
    if loss_bytes is not None:
        return loss_bytes
    if device.type == "cuda" and torch.cuda.is_available():
        return torch.cuda.get_device_properties(device).total_memory / 4
    return 2.0**30


class GradientMean:
    """Replaces every gradient by its mean over `size` workers. Buckets are sent while the backward pass computes the others.

    with GradientMean(parameters, size) as mean:
        first_part.backward()
        mean.begin_last()      # from here on each gradient is added to once more, and then complete
        last_part.backward()
        mean.finish()

    All workers send the same buckets in the same order, whichever parameters their shares use: a bucket waits for those before
    it, and `finish` sends the rest, with zeros for unused parameters. One that no worker uses is left without a gradient, as on
    one worker: given zeros, an optimiser with weight decay would change it. `parameters` are in the order of the forward pass.
    torch's DistributedDataParallel needs one forward call and one backward pass; a step here calls two towers, maybe for one
    language after the other, and has several backward passes, so the hooks are on the parameters themselves.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], size: int) -> None:
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        self.size, self.is_last = size, False
        self.buckets = _buckets(trained[::-1]) if size > 1 else []
        self.missing = [set(bucket) for bucket in self.buckets]
        self.sent: list[tuple[dist.Work, Tensor, list[nn.Parameter]]] = []
        self.unused: set[nn.Parameter] = set()
        self._hooks: list[RemovableHandle] = []

    def __enter__(self) -> Self:
        for number, bucket in enumerate(self.buckets):
            self._hooks += [p.register_post_accumulate_grad_hook(self._hook(number)) for p in bucket]
        return self

    def __exit__(self, *error: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def begin_last(self) -> None:
        """Call it before the last backward pass: from now on every gradient is added to at most once."""
        self.is_last = True

    def finish(self) -> None:
        """Send the remaining buckets, and replace every gradient by its mean."""
        while len(self.sent) < len(self.buckets):
            self._send()
        for work, flat, parameters in self.sent:
            work.wait()
            flat /= self.size
            *means, used = flat.split([*(p.numel() for p in parameters), len(parameters)])
            for number, (parameter, mean) in enumerate(zip(parameters, means, strict=True)):
                assert parameter.grad is not None, "zeros were put there to be sent"
                if parameter in self.unused and not bool(used[number]):
                    parameter.grad = None
                else:
                    parameter.grad.copy_(mean.view_as(parameter.grad))

    def _hook(self, number: int) -> Callable[[nn.Parameter], None]:
        def added_to(parameter: nn.Parameter) -> None:
            if not self.is_last:
                return
            if parameter not in self.missing[number]:
                raise RuntimeError("a gradient was added to after it had been sent to the other workers")
            self.missing[number].remove(parameter)
            while len(self.sent) < len(self.buckets) and not self.missing[len(self.sent)]:
                self._send()

        return added_to

    def _send(self) -> None:
        """Begin to reduce the next bucket: its gradients, and how many workers use each parameter."""
        bucket = self.buckets[len(self.sent)]
        used = torch.ones(len(bucket), dtype=bucket[0].dtype, device=bucket[0].device)
        gradients = []
        for number, parameter in enumerate(bucket):
            if parameter.grad is None:
                parameter.grad, used[number] = torch.zeros_like(parameter), 0
                self.unused.add(parameter)
            gradients.append(parameter.grad.reshape(-1))
        flat = torch.cat([*gradients, used])
        work = dist.all_reduce(flat, async_op=True)
        assert work is not None, "asynchronous"
        self.sent.append((work, flat, bucket))


def _buckets(parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    """The parameters in their order, divided into buckets of one number type and at most BUCKET_BYTES (or one parameter)."""
    buckets: list[list[nn.Parameter]] = []
    num_bytes = 0
    for parameter in parameters:
        size = parameter.numel() * parameter.element_size()
        if not buckets or num_bytes + size > BUCKET_BYTES or buckets[-1][0].dtype != parameter.dtype:
            buckets.append([])
            num_bytes = 0
        buckets[-1].append(parameter)
        num_bytes += size
    return buckets


def divide(parameters: Iterable[nn.Parameter], number: int) -> None:
    """Divide all gradients by a number, in place."""
    if gradients := [local(p.grad) for p in parameters if p.grad is not None]:
        torch._foreach_div_(gradients, number)


def total_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """The norm of all gradients together, the same on every worker; all workers take part if some are sharded."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    parts = [local(gradient) for gradient in gradients if is_sharded(gradient)]
    if not parts:
        return nn.utils.get_total_norm(gradients)
    squared = nn.utils.get_total_norm(parts).square()
    dist.all_reduce(squared)
    rest = [gradient for gradient in gradients if not is_sharded(gradient)]
    return (squared + nn.utils.get_total_norm(rest).square().to(squared.device)).sqrt() if rest else squared.sqrt()


def clip(parameters: Iterable[nn.Parameter], limit: float) -> Tensor:
    """The norm of all gradients before they are scaled to a norm of at most `limit`; 0: no limit."""
    parameters = list(parameters)
    norm = total_norm(parameters)
    if gradients := [local(parameter.grad) for parameter in parameters if parameter.grad is not None]:
        # As `nn.utils.clip_grads_with_norm_`, which would dispatch every operation on sharded tensors.
        torch._foreach_mul_(gradients, ((limit or math.inf) / (norm + 1e-6)).clamp(max=1.0))
    return norm
