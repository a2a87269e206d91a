"""Gradients averaged over the workers while the backward pass still computes others.

Torch's DistributedDataParallel does this for a model whose forward is one call and whose backward comes once. A step here calls
two towers, may call them for one language after the other, and back-propagates several times, so the hooks are set here, on
the parameters themselves.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

BUCKET_BYTES = 25 * 2**20
"""Gradients that travel together, as in DistributedDataParallel: large enough for the network, small enough to begin early."""


class _Sent(NamedTuple):
    """A bucket on its way: the reduction, its flat gradients, and where they belong."""

    work: dist.Work
    flat: Tensor
    parameters: list[nn.Parameter]


class GradientMean:
    """Replaces every gradient by its mean over `size` workers, in buckets sent from inside the last backward pass.

    with GradientMean(parameters, size) as mean:
        first_part.backward()
        mean.begin_last()      # from here on a parameter's gradient is whole once it has been added to
        last_part.backward()
        mean.finish()

    All workers send the same buckets in the same order, whatever their share of the batch touches: a bucket waits for
    those before it, and `finish` sends the rest, with zeros for what was not touched. `parameters` are in the order of the
    forward pass; the backward pass goes the other way.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], size: int) -> None:
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        self.size, self.is_last = size, False
        self.buckets = _buckets(trained[::-1]) if size > 1 else []
        self.waiting_for = [len(bucket) for bucket in self.buckets]
        self.is_whole: set[nn.Parameter] = set()
        self.sent: list[_Sent] = []
        self._hooks: list[RemovableHandle] = []

    def __enter__(self) -> Self:
        for number, bucket in enumerate(self.buckets):
            self._hooks += [p.register_post_accumulate_grad_hook(self._hook(number)) for p in bucket]
        return self

    def __exit__(self, *error: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def begin_last(self) -> None:
        """Every parameter is added to at most once from now on."""
        self.is_last = True

    def finish(self) -> None:
        """Send what has not been sent, and put every mean in its place."""
        while len(self.sent) < len(self.buckets):
            self._send()
        for work, flat, parameters in self.sent:
            work.wait()
            flat /= self.size
            for parameter, mean in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
                assert parameter.grad is not None, "zeros were put there to be sent"
                parameter.grad.copy_(mean.view_as(parameter.grad))

    def _hook(self, number: int) -> object:
        def added_to(parameter: nn.Parameter) -> None:
            if not self.is_last:
                return
            if parameter in self.is_whole:
                raise RuntimeError("a gradient was added to after it had been sent to the other workers")
            self.is_whole.add(parameter)
            self.waiting_for[number] -= 1
            while len(self.sent) < len(self.buckets) and self.waiting_for[len(self.sent)] == 0:
                self._send()

        return added_to

    def _send(self) -> None:
        """Begin to reduce the next bucket."""
        bucket = self.buckets[len(self.sent)]
        for parameter in bucket:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        flat = torch.cat([parameter.grad.reshape(-1) for parameter in bucket if parameter.grad is not None])
        work = dist.all_reduce(flat, async_op=True)
        assert work is not None, "asynchronous"
        self.sent.append(_Sent(work, flat, bucket))


def _buckets(parameters: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    """The parameters in their order, in runs of one number type of at most BUCKET_BYTES, or of one parameter."""
    buckets: list[list[nn.Parameter]] = []
    held = 0
    for parameter in parameters:
        size = parameter.numel() * parameter.element_size()
        if not buckets or held + size > BUCKET_BYTES or buckets[-1][0].dtype != parameter.dtype:
            buckets.append([])
            held = 0
        buckets[-1].append(parameter)
        held += size
    return buckets
