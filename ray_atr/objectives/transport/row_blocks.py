"""Rows of -c/epsilon that processes share, and the two sums that a sweep of a shared plan needs of them.

The rows are held as a kernel (`KernelRows`, a sweep is two products with it), as they are (`LogRows`, where the kernel's
exponentials would underflow), or computed a tile at a time (`TiledRows`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from ray_atr.objectives.ranks import Ranks


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
