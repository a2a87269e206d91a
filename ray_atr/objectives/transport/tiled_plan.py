"""A plan whose rows fit no process: costs are computed again, a tile of rows at a time, for each use.

Only potentials are held, N + M numbers. The sweeps are those of `across_ranks`; the products that the gradient's linear system
needs are computed tile by tile too, so that memory is O(tile M).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ray_atr.common.ranks import Ranks
from ray_atr.objectives.transport.across_ranks import log_range_of, potentials
from ray_atr.objectives.transport.active_set import PlanRows
from ray_atr.objectives.transport.problem import KERNEL_RANGE, SolvedPlan, default_tolerance
from ray_atr.objectives.transport.row_blocks import TiledRows


@dataclass(frozen=True, eq=False)
class TiledPlan(SolvedPlan):
    """The own rows of a plan, [n, M], by tiles.

    cost    returns c [t, M] of a slice of the own rows: a new tensor with the same values each time.
    tiles   the slices.
    """

    cost: Callable[[slice], Tensor]
    tiles: Sequence[slice]
    epsilon: float

    def log_rows(self, rows: slice, cost: Tensor | None = None) -> Tensor:
        """log pi [t, M] of a tile. Pass its costs [t, M] if they are computed already."""
        scores = (self.cost(rows) if cost is None else cost.clone()).div_(-self.epsilon)
        return scores.add_(self.row_potential[rows, None]).add_(self.column_potential)

    @property
    def rows(self) -> PlanRows:
        """pi by tiles."""
        return PlanRows(lambda rows: self.log_rows(rows).exp_(), self.tiles)

    def row_sums(self) -> Tensor:
        """The mass of each own row, [n]."""
        return torch.cat([self.rows.matrix(rows).sum(dim=1) for rows in self.tiles])


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
    solution = potentials(block, a, b, mass, tolerance, max_iterations)
    return TiledPlan.from_solution(solution, tolerance, cost=cost, tiles=tiles, epsilon=epsilon)
