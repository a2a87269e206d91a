"""Several processes that each hold some rows of one matrix, and the sums over all of them, forward and backward.

A tensor that is equal on every process enters through `replicated`, whose gradient is the sum over processes. Partial sums
leave through `total`, whose gradient reaches each part unchanged. Between the two, every process computes with its own rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, distributed

from ray_atr.common.derivatives import first_only


def has_group() -> bool:
    """Whether this process is in a group of torch.distributed."""
    return distributed.is_available() and distributed.is_initialized()


@dataclass(frozen=True)
class Ranks:
    """Rank of this process among those that share the rows; `group` is a torch process group, None for the default one."""

    rank: int = 0
    size: int = 1
    group: Any = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # A copy of a tower has the same workers, and a process group cannot be copied.
        return self

    @classmethod
    def here(cls, group: Any = None) -> Ranks:
        """The processes of a torch.distributed group; a single one if torch.distributed is not initialised."""
        if not has_group():
            return cls()
        return cls(distributed.get_rank(group), distributed.get_world_size(group), group)

    @contextmanager
    def share(self, *, at_least: int | None = None, memory: float = math.inf) -> Iterator[None]:
        """In this context these processes together compute a loss of many pairs: each must compute it, on the same pairs.

        at_least   pairs from which a loss is shared. None: the number of pairs that the loss states; 0: never.
        memory     bytes that a process's rows of it may take: rows that would take more are computed again wherever they are
                   needed. The same on every process.
        """
        token = _SHARING.set((self, at_least, memory))
        try:
            yield
        finally:
            _SHARING.reset(token)

    @classmethod
    def sharing(cls) -> Ranks:
        """The processes that share a loss in this context; outside of `share` only this one."""
        return _SHARING.get()[0]

    @classmethod
    def share_from(cls, usual: int) -> int:
        """Number of pairs from which a loss is shared in this context; 0: never. `usual` is the loss's own number."""
        at_least = _SHARING.get()[1]
        return usual if at_least is None else at_least

    @classmethod
    def fits(cls, N: int, bytes_each: float) -> bool:
        """Whether a process's rows of a loss of N pairs fit into the memory of `share`, at `bytes_each` per entry."""
        ranks, _, memory = _SHARING.get()
        return -(-N // ranks.size) * N * bytes_each <= memory

    def own(self, N: int) -> slice:
        """This process's rows of N: they differ by at most one between processes."""
        least, more = divmod(N, self.size)
        first = self.rank * least + min(self.rank, more)
        return slice(first, first + least + (self.rank < more))

    def sum(self, part: Tensor) -> Tensor:
        """The sum of the processes' tensors, without gradient."""
        return self._reduced(part, distributed.ReduceOp.SUM)

    def maximum(self, part: Tensor) -> Tensor:
        """The elementwise maximum of the processes' tensors, without gradient."""
        return self._reduced(part, distributed.ReduceOp.MAX)

    def log_sum_exp(self, part: Tensor) -> Tensor:
        """log of the sum of the exponentials of the processes' tensors, without gradient."""
        if self.size == 1:
            return part.detach()
        largest = self.maximum(part)
        return largest + self.sum((part - largest).exp_()).log_()

    def joined(self, own: Tensor, N: int) -> Tensor:
        """The values [N] of all rows, gathered from the processes' own rows, on each process; without gradient."""
        if self.size == 1:
            return own.detach()
        values = own.new_zeros(N)
        values[self.own(N)] = own.detach()
        return self.sum(values)

    def replicated(self, tensor: Tensor) -> Tensor:
        """A tensor that is equal on every process, unchanged; its gradient is the sum of the processes' gradients."""
        if self.size == 1:
            return tensor
        return LinearMap.apply(tensor, unchanged, lambda gradient: self.sum(gradient.contiguous()))

    def total(self, part: Tensor) -> Tensor:
        """The sum of the processes' tensors; its gradient reaches each part unchanged."""
        return part if self.size == 1 else LinearMap.apply(part, self.sum, unchanged)

    def _reduced(self, part: Tensor, operation: Any) -> Tensor:
        if self.size == 1:
            return part.detach()
        reduced = part.detach().clone()
        distributed.all_reduce(reduced, operation, group=self.group)
        return reduced


_SHARING: ContextVar[tuple[Ranks, int | None, float]] = ContextVar("sharing", default=(Ranks(), None, math.inf))


class LinearMap(torch.autograd.Function):
    """`LinearMap.apply(tensor, forward_map, adjoint)`: forward_map(tensor), whose gradient is adjoint(gradient)."""

    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, forward_map: Callable[[Tensor], Tensor], adjoint: Callable[[Tensor], Tensor]
    ) -> Tensor:
        ctx.adjoint = adjoint
        return forward_map(tensor)

    @staticmethod
    @first_only
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.adjoint(gradient), None, None


def unchanged(tensor: Tensor) -> Tensor:
    """The tensor, as a new one to autograd."""
    return tensor.view_as(tensor)


def stacked(tensor: Tensor, lengths: Sequence[int]) -> Tensor:
    """The concatenation of the processes' tensors of these lengths, in rank order; padded to the longest for the transfer."""
    tensor = tensor.contiguous()
    if (missing := max(lengths) - len(tensor)) > 0:
        tensor = torch.cat([tensor, tensor.new_zeros(missing, *tensor.shape[1:])])
    parts = [torch.empty_like(tensor) for _ in lengths]
    distributed.all_gather(parts, tensor)
    return torch.cat([part[:length] for part, length in zip(parts, lengths, strict=True)])
