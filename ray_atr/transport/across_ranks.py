"""One plan between N rows and M columns whose rows are on several processes: no process ever holds [N, M].

Potentials of the columns are the same everywhere, those of the rows are each process's own. A row's sum needs no exchange; a
column's sum is a log-sum-exp over processes, M numbers a sweep. The partial problem's level is found from all rows' sums, N
numbers more. The plan, the loss and the gradient are those of `solve` and `log_plan` on one process.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ray_atr.settings import refuse
from ray_atr.transport import balanced, partial
from ray_atr.transport.active_set_across_ranks import solve_active_set_across_ranks
from ray_atr.transport.partial import fill, violation
from ray_atr.transport.plan import TransportPlan
from ray_atr.transport.problem import Problem, require_marginal
from ray_atr.transport.ranks import Ranks
from ray_atr.transport.row_blocks import KernelRows, RowBlock, held_rows
from ray_atr.transport.solve import MAX_ITERATIONS

BALANCED_CHECK, PARTIAL_CHECK = balanced.CHECK_EVERY, partial.CHECK_EVERY
"""Sweeps between two looks at the residual: as on one process, which so stops after as many."""
MATCHED = 1e-5
"""Difference of marginals, in units of their mean, up to which the envelope theorem gives the gradient."""


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
    a = cost.new_full((N,), 1 / N) if rows is None else rows.to(cost)
    b = cost.new_full((cost.shape[1],), 1 / cost.shape[1]) if columns is None else columns.to(cost)
    plan = solve_across_ranks(cost, epsilon, a, b, ranks, mass, tolerance, max_iterations)
    return _LogPlan.apply(cost, plan, epsilon, (a[ranks.own(N)], b) if mass == 1 else None, ranks), plan


@torch.no_grad()
def solve_across_ranks(
    cost: Tensor,
    epsilon: float,
    a: Tensor,
    b: Tensor,
    ranks: Ranks,
    mass: float = 1.0,
    tolerance: float | None = None,
    max_iterations: int = MAX_ITERATIONS,
) -> TransportPlan:
    """The own rows [n, M] of the plan with marginals a [N] and b [M]: of their sums at mass 1, at most them below."""
    own = ranks.own(len(a))
    if len(a) < ranks.size or tuple(cost.shape) != (own.stop - own.start, len(b)):
        raise refuse("cost", tuple(cost.shape), f"{own.stop - own.start} of {len(a)} rows, and {len(b)} columns")
    require_marginal("rows", a, len(a))
    require_marginal("columns", b, len(b))
    log_range = _log_range(cost, epsilon, ranks)
    scores = cost.detach() / -epsilon
    block = held_rows(scores, log_range, ranks)
    if tolerance is None:
        tolerance = 1e-9 if cost.dtype == torch.float64 else max(1e-5, torch.finfo(cost.dtype).eps * log_range)
    problem = Problem(cost.detach(), float(epsilon), float(mass))
    if problem.is_balanced:
        row, column, residual, sweeps = balanced_sweeps(block, a[own], b, tolerance, max_iterations)
        level = row.new_zeros(())
        row_active, column_active = torch.ones_like(row, dtype=torch.bool), torch.ones_like(column, dtype=torch.bool)
    else:
        u, column, level, residual, sweeps = partial_sweeps(block, a, b, mass, tolerance, max_iterations)
        row = u[own]
        row_active, column_active = row < 0, column < 0
    return TransportPlan(
        log_matrix=scores.add_(row[:, None]).add_(column).add_(level),
        row_potential=row + level,
        column_potential=column,
        row_active=row_active,
        column_active=column_active,
        residual=residual,
        iterations=sweeps,
        tolerance=tolerance,
        domain="kernel" if isinstance(block, KernelRows) else "log",
    )


def balanced_sweeps(
    block: RowBlock, own_a: Tensor, b: Tensor, tolerance: float, most: int
) -> tuple[Tensor, Tensor, float, int]:
    """(own rows' potentials [n], columns' [M], the rows' summed error over all processes, sweeps made)."""
    log_a, log_b = own_a.log(), b.log()
    inflow, outflow = block.sweep(torch.zeros_like(b), log_a)
    iterations, residual = 0, math.inf
    while iterations < most and residual > tolerance:
        iterations += 1
        row, column = log_a - inflow, log_b - outflow
        inflow, outflow = block.sweep(column, log_a)
        # The columns' sums are exact: how far the rows' are off is judged by the sums that the next sweep begins with.
        if iterations % BALANCED_CHECK == 0 or iterations == most:
            residual = float(block.ranks.sum(((row + inflow).exp() - own_a).abs().sum()))
    return row, column, residual, iterations


def partial_sweeps(
    block: RowBlock, a: Tensor, b: Tensor, mass: float, tolerance: float, most: int
) -> tuple[Tensor, Tensor, Tensor, float, int]:
    """(u of all rows [N], v [M], the level, the violation, sweeps made): the blocks of partial.py, whose rows are shared."""
    N, ranks = len(a), block.ranks
    inflow = ranks.joined(block.row_sums(torch.zeros_like(b)), N)
    iterations, residual = 0, math.inf
    while iterations < most and residual > tolerance:
        iterations += 1
        u, _ = fill(inflow, mass, a)
        v, level = fill(block.column_sums(u[ranks.own(N)]), mass, b)
        inflow = ranks.joined(block.row_sums(v), N)
        if iterations % PARTIAL_CHECK == 0 or iterations in (1, most):
            residual = violation((inflow + u + level).exp(), u < 0, a)
    return u, v, level, residual, iterations


class _LogPlan(torch.autograd.Function):
    """gradient.py's, with the active set's system solved across processes."""

    @staticmethod
    def forward(
        ctx: Any,
        cost: Tensor,
        plan: TransportPlan,
        epsilon: float,
        marginals: tuple[Tensor, Tensor] | None,
        ranks: Ranks,
    ) -> Tensor:
        ctx.plan, ctx.epsilon, ctx.marginals, ctx.ranks = plan, epsilon, marginals, ranks
        return plan.log_matrix.clone()

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None, None, None, None]:  # type: ignore[override]
        plan, ranks = ctx.plan, ctx.ranks
        matrix = plan.matrix
        row_sums = outer.sum(dim=1)
        column_sums, total = ranks.sum(outer.sum(dim=0)), ranks.sum(row_sums.sum())
        if ctx.marginals is not None and _is_matched(row_sums, column_sums, total, ctx.marginals, ranks):
            gradient = matrix.mul_(-total).add_(outer)
        else:
            right = row_sums, column_sums, total
            x, y, w = solve_active_set_across_ranks(
                matrix, plan.row_active, plan.column_active, ctx.marginals is None, right, ranks
            )
            gradient = outer - matrix.mul_((x + w).to(matrix)[:, None] + y.to(matrix))
        return gradient.div_(-ctx.epsilon), None, None, None, None


def _is_matched(
    row_sums: Tensor, column_sums: Tensor, total: Tensor, marginals: tuple[Tensor, Tensor], ranks: Ranks
) -> bool:
    """Whether G's marginals are those of a multiple of the balanced plan: then x + y + w is that multiple everywhere."""
    a, b = marginals
    row_gap = (row_sums - total * a).abs().max() / a.mean()
    column_gap = (column_sums - total * b).abs().max() / b.mean()
    return bool(ranks.maximum(torch.maximum(row_gap, column_gap)) < MATCHED * total.abs())


def _log_range(cost: Tensor, epsilon: float, ranks: Ranks) -> float:
    """(max c - min c) / epsilon over all processes; ValueError on all if a cost is not finite on one."""
    least, most = torch.aminmax(cost.detach())
    is_finite = bool(torch.isfinite(least) & torch.isfinite(most))
    found = cost.new_tensor([0.0, -float(least), float(most)] if is_finite else [1.0, 0.0, 0.0])
    is_bad, negative, largest = ranks.maximum(found).tolist()
    if is_bad or not math.isfinite(largest + negative):
        raise refuse("cost", f"values between {float(least)} and {float(most)} here", "finite costs on every process")
    return (largest + negative) / epsilon
