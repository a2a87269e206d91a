"""Exact gradients of a transport plan with respect to its cost, without a graph through the iterations.

Let L be any function of log pi with G = dL/d(log pi). Differentiating the optimality conditions gives one symmetric system
H (x, y, w) = p, `active_set`'s, with p = (row sums of G on the active rows, column sums of G on the active columns, sum of G),
and  dL/dc_ij = -(G_ij - pi_ij (x_i + y_j + w)) / epsilon.  Where G's marginals are those of -pi (learning to
match without weights) the solution is x + y + w = -1 and no system is solved: the envelope theorem.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ray_atr.transport.active_set import solve_active_set
from ray_atr.transport.plan import Plan
from ray_atr.transport.solve import MAX_ITERATIONS, solve


def adjoint(plan: Plan, is_balanced: bool, outer: Tensor) -> Tensor:
    """dL/d(cost) * (-epsilon), [N, M], for outer = dL/d(log pi) [N, M]."""
    matrix = plan.matrix
    right = (outer.sum(dim=1), outer.sum(dim=0), outer.sum())
    x, y, w = solve_active_set(matrix, plan.row_active, plan.column_active, not is_balanced, right)
    return outer - matrix * ((x + w).to(matrix)[:, None] + y.to(matrix))


class _LogPlan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, cost: Tensor, plan: Plan, epsilon: float, is_balanced: bool) -> Tensor:
        ctx.plan, ctx.epsilon, ctx.is_balanced = plan, epsilon, is_balanced
        return plan.log_matrix.clone()

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        return adjoint(ctx.plan, ctx.is_balanced, outer) / -ctx.epsilon, None, None, None


class _MatchingLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, cost: Tensor, target: Tensor | None, plan: Plan, epsilon: float, is_balanced: bool, is_matched: bool
    ) -> Tensor:
        ctx.plan, ctx.epsilon, ctx.is_balanced, ctx.is_matched = plan, epsilon, is_balanced, is_matched
        ctx.target = target
        N = len(cost)
        if target is None:
            return -(plan.log_matrix.diagonal().mean() + math.log(N))
        return (torch.xlogy(target, target) - target * plan.log_matrix).sum()

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        matrix = ctx.plan.matrix
        N = len(matrix)
        target = ctx.target
        if ctx.is_matched:
            gradient = matrix.neg_()
            if target is None:
                gradient.diagonal().add_(1 / N)
            else:
                gradient.add_(target)
        else:
            if target is None:
                target = torch.eye(N, dtype=matrix.dtype, device=matrix.device) / N
            gradient = adjoint(ctx.plan, ctx.is_balanced, -target).neg_()
        return gradient.mul_(outer / ctx.epsilon), None, None, None, None, None


def log_plan(
    cost: Tensor,
    epsilon: float,
    *,
    mass: float = 1.0,
    start: Plan | None = None,
    tolerance: float | None = None,
    max_iterations: int = MAX_ITERATIONS,
) -> tuple[Tensor, Plan]:
    """(log pi [N, M] with an exact gradient to the cost, the plan). Costs one linear solve of size N + M backwards."""
    plan = solve(cost, epsilon, mass=mass, start=start, tolerance=tolerance, max_iterations=max_iterations)
    return _LogPlan.apply(cost, plan, epsilon, mass == 1), plan


def matching_loss(
    cost: Tensor,
    epsilon: float,
    *,
    mass: float = 1.0,
    target: Tensor | None = None,
    start: Plan | None = None,
    tolerance: float | None = None,
    max_iterations: int = MAX_ITERATIONS,
) -> tuple[Tensor, Plan]:
    """(KL(target || pi) = sum target log(target / pi), the plan), with the exact gradient to the cost [N, N].

    target [N, N] sums to 1; None is I/N. The envelope theorem serves where the plan is balanced and the target's marginals
    are uniform, the active-set solve elsewhere. Luong et al. 2024, Eq. 6 and 13.
    """
    plan = solve(cost, epsilon, mass=mass, start=start, tolerance=tolerance, max_iterations=max_iterations)
    is_balanced = mass == 1
    is_matched = is_balanced and (target is None or _has_uniform_marginals(target))
    return _MatchingLoss.apply(cost, target, plan, epsilon, is_balanced, is_matched), plan


def _has_uniform_marginals(target: Tensor) -> bool:
    N, M = target.shape
    rows, columns = (target.sum(dim=1) * N - 1).abs().max(), (target.sum(dim=0) * M - 1).abs().max()
    return bool(torch.maximum(rows, columns) < 1e-5)
