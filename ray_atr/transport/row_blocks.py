"""A process's rows of -c/epsilon, as the sweeps of a plan that is shared among processes need them.

Two ways to have them: as a kernel (`KernelRows`, a sweep is two products with it), or as they are (`LogRows`, where the
kernel's exponentials would underflow).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from ray_atr.transport.ranks import Ranks


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
