"""A plan of which no process holds its rows: costs are computed again, a tile of rows at a time, for each use of them.

Only potentials are kept, N + M numbers. The sweeps are `across_ranks`' own; the products that the gradient's linear system needs
are made tile by tile too, so that memory is O(tile M).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ray_atr.objectives.ranks import Ranks
from ray_atr.objectives.transport.across_ranks import log_range_of, potentials
from ray_atr.objectives.transport.active_set import PlanRows, inverse
from ray_atr.objectives.transport.problem import KERNEL_RANGE, default_tolerance
from ray_atr.objectives.transport.row_blocks import TiledRows


@dataclass(frozen=True, eq=False)
class TiledPlan(PlanRows):
    """log pi_ij = -c_ij / epsilon + row_i + column_j of the own rows, [n, M], by tiles.

    cost    gives c [t, M] of a slice of the own rows, a new tensor each time, the same each time.
    tiles   the slices. The other fields are those of a `TransportPlan`, of the own rows.
    """

    cost: Callable[[slice], Tensor]
    tiles: Sequence[slice]
    epsilon: float
    row_potential: Tensor
    column_potential: Tensor
    row_active: Tensor
    column_active: Tensor
    residual: float
    iterations: int
    tolerance: float

    @property
    def is_converged(self) -> bool:
        """Whether the residual met the tolerance before the cap on iterations."""
        return self.residual <= self.tolerance

    def log_rows(self, rows: slice, cost: Tensor | None = None) -> Tensor:
        """log pi [t, M] of a tile; of its costs where they are at hand."""
        scores = (self.cost(rows) if cost is None else cost.clone()).div_(-self.epsilon)
        return scores.add_(self.row_potential[rows, None]).add_(self.column_potential)

    def row_sums(self) -> Tensor:
        """The mass of each own row, [n]."""
        found = torch.empty_like(self.row_potential)
        for rows in self.tiles:
            found[rows] = self.log_rows(rows).exp_().sum(dim=1)
        return found

    def sums(self, row_active: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        row_sums = torch.empty(len(self.row_potential), dtype=torch.float64, device=self.row_potential.device)
        column_sums, squares = (torch.zeros_like(self.column_potential, dtype=torch.float64) for _ in range(2))
        for rows in self.tiles:
            matrix = self.log_rows(rows).exp_()
            row_sums[rows] = matrix.sum(dim=1)
            column_sums += matrix.sum(dim=0)
            weight = inverse(row_sums[rows], row_active[rows]).to(matrix)
            squares += torch.mv(matrix.square_().T, weight)
        return row_sums, column_sums, squares

    def times(self, vector: Tensor) -> Tensor:
        vector = vector.to(self.column_potential)
        found = torch.empty_like(self.row_potential, dtype=torch.float64)
        for rows in self.tiles:
            found[rows] = torch.mv(self.log_rows(rows).exp_(), vector).double()
        return found

    def transposed_times(self, vector: Tensor) -> Tensor:
        total = vector.new_zeros(len(self.column_potential), dtype=torch.float64)
        for rows in self.tiles:
            matrix = self.log_rows(rows).exp_()
            total += torch.mv(matrix.T, vector[rows].to(matrix))
        return total

    def there_and_back(self, vector: Tensor, between: Callable[[Tensor, slice], Tensor]) -> Tensor:
        total, vector = torch.zeros_like(vector), vector.to(self.column_potential)
        for rows in self.tiles:
            matrix = self.log_rows(rows).exp_()
            values = between(torch.mv(matrix, vector).double(), rows)
            total += torch.mv(matrix.T, values.to(matrix))
        return total


@torch.no_grad()
def solve_by_tiles(
    cost: Callable[[slice], Tensor],
    tiles: Sequence[slice],
    least: Tensor,
    most: Tensor,
    epsilon: float,
    a: Tensor,
    b: Tensor,
    ranks: Ranks,
    *,
    mass: float = 1.0,
    max_iterations: int,
) -> TiledPlan:
    """The own rows of the plan with marginals a [N] and b [M]; every process must take part.

    cost, tiles    as a `TiledPlan` has them. least, most: the extremes of the own costs.
    The other arguments are those of `log_plan_across_ranks`. ValueError on every process for costs that are not finite on one.
    """
    log_range = log_range_of(least, most, epsilon, ranks)
    tolerance = default_tolerance(b.dtype, log_range)
    shift = ranks.maximum(least / -epsilon) if log_range <= KERNEL_RANGE else None
    block = TiledRows(lambda rows: cost(rows).div_(-epsilon), tiles, ranks, shift)
    row, column, level, residual, sweeps = potentials(block, a, b, mass, tolerance, max_iterations)
    row_active, column_active = row < 0, column < 0
    if level is None:
        everywhere = torch.ones(1, dtype=torch.bool, device=b.device)
        row_active, column_active = everywhere.expand(len(row)), everywhere.expand(len(column))
    else:
        row = row + level
    return TiledPlan(cost, tiles, epsilon, row, column, row_active, column_active, residual, sweeps, tolerance)
