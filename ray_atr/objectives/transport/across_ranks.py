"""One plan between N rows and M columns whose rows are on several processes: no process ever holds [N, M].

Every process has the potentials of all columns and of its own rows. A row's sum needs no exchange; a column's sum is a
log-sum-exp over processes, M numbers in each sweep. The partial problem's level needs all rows' sums, N numbers more.
The plan, the loss and the gradient are those of `solve` and `log_plan` on one process.

Where the own rows fit no process, only the potentials are held (`TiledPlan`): costs are computed again, a tile of rows at a time,
for each sweep and for the products that the gradient's linear system needs, so that memory is O(tile M).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ray_atr.common.ranks import Ranks
from ray_atr.common.settings import refuse
from ray_atr.objectives.transport.active_set import PlanRows, solve_active_set_across_ranks
from ray_atr.objectives.transport.balanced import CHECK_EVERY
from ray_atr.objectives.transport.partial import Pace, shared_blocks
from ray_atr.objectives.transport.problem import (
    KERNEL_RANGE,
    Problem,
    Solution,
    SolvedPlan,
    TransportPlan,
    default_tolerance,
    marginal_of,
    require_marginal,
)
from ray_atr.objectives.transport.row_blocks import KernelRows, LogRows, RowBlock, TiledRows
from ray_atr.objectives.transport.solve import MAX_ITERATIONS, LogPlan

MATCHED = 1e-5
"""Largest difference of marginals, relative to their mean, at which the envelope theorem gives the gradient."""


def log_plan_across_ranks(
    cost: Tensor,
    epsilon: float,
    N: int,
    ranks: Ranks,
    *,
    mass: float = 1.0,
    rows: Tensor | None = None,
    columns: Tensor | None = None,
    tolerance: float | None = None,
    max_iterations: int = MAX_ITERATIONS,
) -> tuple[Tensor, TransportPlan]:
    """(log pi of the own rows [n, M], with an exact gradient to the own rows of the cost; the plan of those rows).

    cost [n, M] holds the rows `ranks.own(N)`; rows [N] and columns [M] are the marginals, the same on every process (None:
    uniform). The gradient costs one solve by conjugate gradients, or none if the envelope theorem gives it. Every process
    must take part, forward and backward. ValueError on every process for costs that are not finite on one.
    """
    a, b, own = marginal_of(rows, N, cost), marginal_of(columns, cost.shape[1], cost), ranks.own(N)
    if ranks.size > N or tuple(cost.shape) != (own.stop - own.start, len(b)):
        raise refuse("cost", tuple(cost.shape), f"{own.stop - own.start} of {N} rows, and {len(b)} columns")
    if max_iterations < 1:
        raise refuse("max_iterations", max_iterations, "[1, inf)")
    require_marginal("rows", a, N)
    require_marginal("columns", b, len(b))
    least, most_cost = torch.aminmax(cost.detach())
    log_range = log_range_of(least, most_cost, epsilon, ranks)
    problem = Problem(cost.detach(), float(epsilon), float(mass), log_range=log_range)
    tolerance = default_tolerance(cost.dtype, problem.log_range) if tolerance is None else tolerance
    scores = problem.cost / -epsilon
    domain, block = ("kernel", KernelRows(scores, ranks)) if problem.is_kernel_safe else ("log", LogRows(scores, ranks))
    solution = potentials(block, a, b, mass, tolerance, max_iterations)
    plan = TransportPlan.of_scores(scores, solution, tolerance, domain)
    backward = partial(adjoint_across_ranks, plan, (a[own], b) if mass == 1 else None, ranks)
    return LogPlan.apply(cost, plan, epsilon, backward), plan


def potentials(block: RowBlock, a: Tensor, b: Tensor, mass: float, tolerance: float, most: int) -> Solution:
    """The potentials of the own rows and of all columns of the plan with marginals a [N] and b [M]."""
    own = block.ranks.own(len(a))
    if mass == 1:
        return balanced_sweeps(block, a[own], b, tolerance, most)
    solution = shared_blocks(block, torch.zeros_like(b), mass, Pace(tolerance), most, a, b)
    return solution._replace(u=solution.u[own])


def balanced_sweeps(block: RowBlock, own_a: Tensor, b: Tensor, tolerance: float, most: int) -> Solution:
    """Balanced sweeps on the own rows. The residual is the rows' error, summed over all processes."""
    log_a, log_b = own_a.log(), b.log()
    inflow, outflow = block.sweep(torch.zeros_like(b), log_a)
    iterations, residual = 0, math.inf
    while iterations < most and residual > tolerance:
        iterations += 1
        row, column = log_a - inflow, log_b - outflow
        inflow, outflow = block.sweep(column, log_a)
        # The columns' sums are exact here; the rows' error is that of the sums which the next sweep starts from. It is computed
        # as often as on one process, so that both stop after the same number of sweeps.
        if iterations % CHECK_EVERY == 0 or iterations == most:
            residual = float(block.ranks.sum(((row + inflow).exp() - own_a).abs().sum()))
    return Solution(row, column, None, residual, iterations)


def adjoint_across_ranks(
    plan: TransportPlan, marginals: tuple[Tensor, Tensor] | None, ranks: Ranks, outer: Tensor
) -> Tensor:
    """`solve.adjoint`, [n, M], with the active set's system solved across processes.

    marginals   of the own rows [n] and of the columns [M] if the plan is balanced, else None.
    """
    matrix, row_sums = plan.matrix, outer.sum(dim=1)
    right = row_sums, ranks.sum(outer.sum(dim=0)), ranks.sum(row_sums.sum())
    held = PlanRows(lambda rows: matrix[rows], [slice(0, len(matrix))])
    of_rows, of_columns = multipliers(held, plan.row_active, plan.column_active, marginals, right, ranks)
    if of_columns is None:
        return matrix.mul_(-of_rows.to(matrix)[:, None]).add_(outer)
    return outer - matrix.mul_(of_rows.to(matrix)[:, None] + of_columns.to(matrix))


def multipliers(
    plan: PlanRows,
    row_active: Tensor,
    column_active: Tensor,
    marginals: tuple[Tensor, Tensor] | None,
    right: tuple[Tensor, Tensor, Tensor],
    ranks: Ranks,
) -> tuple[Tensor, Tensor | None]:
    """(x + w of the own rows [n], y of the columns [M]) of `gradient`'s dL/d(cost), for G = dL/d(log pi); y None for zeros.

    right       G's row sums of the own rows [n], its column sums [M] and its sum, over all processes' rows.
    marginals   of the own rows [n] and of the columns [M] if the plan is balanced, else None.
    """
    if marginals is not None and _is_matched(*right, marginals, ranks):
        return right[2].expand(len(row_active)), None
    x, y, w = solve_active_set_across_ranks(plan, row_active, column_active, marginals is None, right, ranks)
    return x + w, y


def _is_matched(
    row_sums: Tensor, column_sums: Tensor, total: Tensor, marginals: tuple[Tensor, Tensor], ranks: Ranks
) -> bool:
    """Whether G's marginals are those of a multiple of the balanced plan: then x + y + w is that multiple everywhere."""
    a, b = marginals
    row_gap = (row_sums - total * a).abs().max() / a.mean()
    column_gap = (column_sums - total * b).abs().max() / b.mean()
    return bool(ranks.maximum(torch.maximum(row_gap, column_gap)) < MATCHED * total.abs())


def log_range_of(least: Tensor, most: Tensor, epsilon: float, ranks: Ranks) -> float:
    """(max c - min c) / epsilon over all processes, of each one's least and most cost; ValueError on all if one is not finite."""
    if not epsilon > 0:
        raise refuse("epsilon", epsilon, "(0, inf)")
    is_finite = bool(torch.isfinite(least) & torch.isfinite(most))
    bounds = least.new_tensor([0.0, -float(least), float(most)] if is_finite else [1.0, 0.0, 0.0])
    is_bad, negative, largest = ranks.maximum(bounds).tolist()
    if is_bad or not math.isfinite(largest + negative):
        raise refuse("cost", f"values between {float(least)} and {float(most)} here", "finite costs on every process")
    return (largest + negative) / epsilon


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
