"""Rows of -c/epsilon that processes share, and the two sums that a sweep of a shared plan needs of them.

`KernelRows` holds their exponentials, so that a sweep is two products with a vector. `LogRows` holds the rows themselves, for
kernels that would underflow. `TiledRows` computes the rows again for each use, a tile at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ray_atr.common.ranks import Ranks


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
    """Rows of -c/epsilon in memory; a sum is a log-sum-exp."""

    def __init__(self, scores: Tensor, ranks: Ranks) -> None:
        super().__init__(ranks)
        self.scores = scores

    def row_sums(self, column: Tensor) -> Tensor:
        return torch.logsumexp(self.scores + column, dim=1)

    def column_sums(self, row: Tensor) -> Tensor:
        return self.ranks.log_sum_exp(torch.logsumexp(self.scores + row[:, None], dim=0))


class KernelRows(RowBlock):
    """Rows as exp(-c/epsilon), scaled so that the largest entry over all processes is 1; a sum is a product with a vector."""

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
    """Rows that are computed again for each sweep, a tile of them at a time: memory is O(tile M), whatever N is.

    For a plan whose rows no process can hold. Sums over tiles are kept in float64: there may be thousands of them.

    make    returns -c/epsilon [t, M] of a slice of the process's own rows, a new tensor each time.
    tiles   the slices.
    shift   the largest -c/epsilon of all processes, if exponentials relative to it do not underflow: each is then computed
            once in a sweep. None: sums are log-sum-exps.
    """

    def __init__(
        self, make: Callable[[slice], Tensor], tiles: Sequence[slice], ranks: Ranks, shift: Tensor | None = None
    ) -> None:
        super().__init__(ranks)
        self.make, self.tiles, self.shift = make, tiles, shift

    def row_sums(self, column: Tensor) -> Tensor:
        inflow = column.new_empty(self.tiles[-1].stop)
        largest, scaled = _scaled(column)
        for rows in self.tiles:
            inflow[rows] = self._inflow(self._held(rows), column, largest, scaled)
        return inflow

    def column_sums(self, row: Tensor) -> Tensor:
        total = row.new_tensor(-torch.inf, dtype=torch.float64)
        for rows in self.tiles:
            total = torch.logaddexp(total, self._outflow(self._held(rows), row[rows]).double())
        return self.ranks.log_sum_exp(total).to(row)

    def sweep(self, column: Tensor, log_mass: Tensor) -> tuple[Tensor, Tensor]:
        """Both sums of one pass over the tiles: a tile's rows can be brought to their mass at once."""
        # Allocated before the first tile: small tensors between the tiles would fragment the memory that the next one needs.
        inflow, total = torch.empty_like(log_mass), column.new_full(column.shape, -torch.inf, dtype=torch.float64)
        largest, scaled = _scaled(column)
        for rows in self.tiles:
            held = self._held(rows)
            inflow[rows] = self._inflow(held, column, largest, scaled)
            outflow = self._outflow(held, log_mass[rows] - inflow[rows])
            torch.logaddexp(total, outflow.double(), out=total)
        return inflow, self.ranks.log_sum_exp(total).to(column)

    def _held(self, rows: slice) -> Tensor:
        """A tile's scores, or its kernel."""
        scores = self.make(rows)
        return scores if self.shift is None else scores.sub_(self.shift).exp_()

    def _inflow(self, held: Tensor, column: Tensor, largest: Tensor, scaled: Tensor) -> Tensor:
        """`row_sums` of a tile."""
        if self.shift is None:
            return torch.logsumexp(held + column, dim=1)
        return torch.mv(held, scaled).log_().add_(largest + self.shift)

    def _outflow(self, held: Tensor, row: Tensor) -> Tensor:
        """`column_sums` of a tile, under its rows' potentials [t]."""
        if self.shift is None:
            return torch.logsumexp(held.add_(row[:, None]), dim=0)
        largest, scaled = _scaled(row)
        return torch.mv(held.T, scaled).log_().add_(largest + self.shift)


def tiles_of(num_rows: int, tile: int) -> list[slice]:
    """Slices of `tile` rows; the last one may have fewer."""
    return [slice(first, min(first + tile, num_rows)) for first in range(0, num_rows, tile)]


def _scaled(potentials: Tensor) -> tuple[Tensor, Tensor]:
    """(the largest potential, the exponentials relative to it)."""
    largest = potentials.max()
    return largest, (potentials - largest).exp_()
