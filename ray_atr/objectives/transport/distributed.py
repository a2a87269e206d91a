"""Several processes that each hold some rows of one matrix, and the sums over all of them, forward and backward.

What every process holds alike enters through `replicated`, whose gradient is the sum of the processes' parts; what each holds a
part of leaves through `total`, whose gradient is that of the whole. Between the two, every process computes with its own rows.
The sweeps of a shared plan need its rows of -c/epsilon as a kernel (`KernelRows`, a sweep is two products with it), as they are
(`LogRows`, where the kernel's exponentials would underflow), or a tile at a time (`TiledRows`, computed from what makes it).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributed


@dataclass(frozen=True)
class Ranks:
    """This process's place among those that share the rows; `group` is torch's, None for the default one."""

    rank: int = 0
    size: int = 1
    group: Any = None

    @classmethod
    def here(cls, group: Any = None) -> Ranks:
        """The processes of a torch.distributed group; one alone if there is none."""
        if not distributed.is_available() or not distributed.is_initialized():
            return cls()
        return cls(distributed.get_rank(group), distributed.get_world_size(group), group)

    @contextmanager
    def share(self) -> Iterator[None]:
        """Within, a loss of many pairs is computed by these processes together: each must compute it, of the same pairs."""
        token = _SHARING.set(self)
        try:
            yield
        finally:
            _SHARING.reset(token)

    @classmethod
    def sharing(cls) -> Ranks:
        """The processes that share a loss here: this one alone outside of `share`, so that a loss is a function of its pairs."""
        return _SHARING.get()

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
        """The processes' numbers of their own rows, [N], on each of them, without gradient."""
        if self.size == 1:
            return own.detach()
        whole = own.new_zeros(N)
        whole[self.own(N)] = own.detach()
        return self.sum(whole)

    def replicated(self, whole: Tensor) -> Tensor:
        """What every process holds alike, as it is; its gradient is the sum of what the processes find."""
        return whole if self.size == 1 else _Replicated.apply(whole, self)

    def total(self, part: Tensor) -> Tensor:
        """The sum of the processes' tensors; its gradient reaches each part as it is."""
        return part if self.size == 1 else _Total.apply(part, self)

    def _reduced(self, part: Tensor, operation: Any) -> Tensor:
        if self.size == 1:
            return part.detach()
        reduced = part.detach().clone()
        distributed.all_reduce(reduced, operation, group=self.group)
        return reduced


_SHARING: ContextVar[Ranks] = ContextVar("sharing", default=Ranks())  # noqa: B039 Ranks is frozen


class _Replicated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.ranks.sum(gradient.contiguous()), None


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, ranks: Ranks) -> Tensor:
        return ranks.sum(part)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class RowBlock(ABC):
    """n of the N rows of -c/epsilon, [n, M], and sums over all of the rows."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks

    @abstractmethod
    def row_sums(self, column: Tensor) -> Tensor:
        """log sum_j exp(-c_ij/epsilon + column_j) of the own rows, [n]."""

    @abstractmethod
    def column_sums(self, row: Tensor) -> Tensor:
        """log sum_i exp(-c_ij/epsilon + row_i) over all processes' rows, [M]; row [n] is that of the own ones."""

    def sweep(self, column: Tensor, log_mass: Tensor) -> tuple[Tensor, Tensor]:
        """(`row_sums` of the columns' potentials [n], `column_sums` with the rows brought to their mass [M])."""
        inflow = self.row_sums(column)
        return inflow, self.column_sums(log_mass - inflow)


class LogRows(RowBlock):
    """Rows that are held; a sum is a log-sum-exp."""

    def __init__(self, scores: Tensor, ranks: Ranks) -> None:
        super().__init__(ranks)
        self.scores = scores

    def row_sums(self, column: Tensor) -> Tensor:
        return torch.logsumexp(self.scores + column, dim=1)

    def column_sums(self, row: Tensor) -> Tensor:
        return self.ranks.log_sum_exp(torch.logsumexp(self.scores + row[:, None], dim=0))


class KernelRows(RowBlock):
    """Rows held as exp(-c/epsilon), the largest entry of all processes being 1; a sum is a product with a vector."""

    def __init__(self, scores: Tensor, ranks: Ranks) -> None:
        super().__init__(ranks)
        self.shift = ranks.maximum(scores.max())
        self.kernel = (scores - self.shift).exp_()

    def row_sums(self, column: Tensor) -> Tensor:
        # The largest scaling is 1, so that no product overflows.
        largest = column.max()
        return torch.mv(self.kernel, (column - largest).exp_()).log_() + (largest + self.shift)

    def column_sums(self, row: Tensor) -> Tensor:
        largest = self.ranks.maximum(row.max())
        products = self.ranks.sum(torch.mv(self.kernel.T, (row - largest).exp_()))
        return products.log_() + (largest + self.shift)


class TiledRows(RowBlock):
    """Rows that are computed again for each sweep, `tile` at a time: memory is O(tile M), whatever N is.

    For a plan whose rows no process can hold (`across_ranks.balanced_sweeps`). A loss holds its rows: its gradient needs them.

    `make(rows)` gives -c/epsilon [t, M] of a slice of the process's own rows, a new tensor each time.
    """

    def __init__(self, make: Callable[[slice], Tensor], num_rows: int, tile: int, ranks: Ranks) -> None:
        super().__init__(ranks)
        self.make = make
        self.tiles = [slice(first, min(first + tile, num_rows)) for first in range(0, num_rows, tile)]

    def row_sums(self, column: Tensor) -> Tensor:
        return torch.cat([torch.logsumexp(self.make(rows).add_(column), dim=1) for rows in self.tiles])

    def column_sums(self, row: Tensor) -> Tensor:
        parts = [torch.logsumexp(self.make(rows).add_(row[rows, None]), dim=0) for rows in self.tiles]
        return self.ranks.log_sum_exp(torch.logsumexp(torch.stack(parts), dim=0))

    def sweep(self, column: Tensor, log_mass: Tensor) -> tuple[Tensor, Tensor]:
        """Both sums of one pass over the tiles: a tile's rows can be brought to their mass at once."""
        inflows: list[Tensor] = []
        outflow = column.new_full(column.shape, -torch.inf)
        for rows in self.tiles:
            scores = self.make(rows).add_(column)
            inflows.append(torch.logsumexp(scores, dim=1))
            scores.add_((log_mass[rows] - inflows[-1])[:, None])
            outflow = torch.logaddexp(outflow, torch.logsumexp(scores, dim=0))
        return torch.cat(inflows), self.ranks.log_sum_exp(outflow) - column
