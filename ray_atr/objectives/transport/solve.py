"""`solve`, the entry point of the solvers; `exact_plan`, the limit of epsilon -> 0; and exact gradients of a plan with respect
to its cost, without a graph through the iterations.

Let L be any function of log pi with G = dL/d(log pi). Differentiating the optimality conditions gives one symmetric system
H (x, y, w) = p, `active_set`'s, with p = (row sums of G on the active rows, column sums of G on the active columns, sum of G),
and  dL/dc_ij = -(G_ij - pi_ij (x_i + y_j + w)) / epsilon.  Where G's marginals are those of -pi (learning to
match without weights) the solution is x + y + w = -1 and no system is solved: the envelope theorem.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor

from ray_atr.common.derivatives import first_only
from ray_atr.common.settings import refuse
from ray_atr.objectives.transport.active_set import solve_active_set
from ray_atr.objectives.transport.balanced import solve_balanced
from ray_atr.objectives.transport.partial import solve_partial
from ray_atr.objectives.transport.problem import Problem, TransportPlan, default_tolerance

MAX_ITERATIONS = 2000


class SolveOptions(TypedDict, total=False):
    """What `solve` takes besides the problem's cost, epsilon and mass."""

    rows: Tensor | None
    columns: Tensor | None
    start: TransportPlan | None
    tolerance: float | None
    max_iterations: int


@torch.no_grad()
def solve(
    cost: Tensor,
    epsilon: float,
    *,
    mass: float = 1.0,
    rows: Tensor | None = None,
    columns: Tensor | None = None,
    start: TransportPlan | None = None,
    tolerance: float | None = None,
    max_iterations: int = MAX_ITERATIONS,
) -> TransportPlan:
    """The entropic plan of a cost [N, M]: balanced at mass 1, partial below.

    rows, columns   marginals [N] and [M], positive, each summing to 1; None: uniform.
    start           the plan of a similar problem of the same shape; the solver starts from its potentials.
    tolerance       residual to reach, in units of mass; None: 1e-9 in float64, 1e-5 in float32 (or the rounding error of
                    potentials of size (max c - min c) / epsilon, if that is larger).
    max_iterations  cap. A plan that reached it has `is_converged` False, and is the last iterate.

    No gradient flows through the plan; `ray_atr.objectives.transport.log_plan` and `matching_loss` have exact ones.

    When: a matching of all rows with all columns is wanted, and no gradient.
    Related: `exact_plan`, without entropy.

    >>> import torch
    >>> from ray_atr.objectives.transport import solve
    >>> plan = solve(1 - torch.eye(3), 0.05, mass=0.9)
    >>> plan.is_converged, round(float(plan.matrix.sum()), 4)
    (True, 0.9)
    """
    problem = Problem(cost.detach(), float(epsilon), float(mass), rows, columns)
    if max_iterations < 1:
        raise refuse("max_iterations", max_iterations, "[1, inf)")
    wanted = default_tolerance(cost.dtype, problem.log_range) if tolerance is None else tolerance
    solver = solve_balanced if problem.mass == 1 else solve_partial
    return solver(problem, start, wanted, max_iterations)


@torch.no_grad()
def exact_plan(cost: Tensor, *, mass: float = 1.0) -> Tensor:
    """The plan pi [N, M] of least <pi, c> with uniform marginals: rows 1/N and columns 1/M at mass 1, at most that below.

    Solved in float64 on the CPU by `ot.emd` (Bonneel et al. 2011), with a dummy row and column for the mass that is not
    transported (Chapel et al. 2020). O(N^3 log N): seconds at N = 2,000. The result has the cost's type and device.
    Raises ValueError if the cost is not finite, the mass is outside (0, 1], or the solver does not finish.

    When: a reference without regularisation is wanted. Related: `solve`, whose plan nears it as epsilon nears 0.

    >>> import torch
    >>> from ray_atr.objectives.transport import exact_plan
    >>> exact_plan(1 - torch.eye(2)).tolist()
    [[0.5, 0.0], [0.0, 0.5]]
    """
    # POT imports every array library that is installed, which takes ten seconds: only this function needs it.
    import ot

    # Only to check cost and mass: the exact problem has no epsilon.
    Problem(cost.detach().double(), epsilon=1.0, mass=float(mass))
    N, M = cost.shape
    costs = cost.detach().double().cpu().numpy()
    # A constant changes no plan of a given mass. Of costs that are all negative, the solver says that there is none.
    costs = costs - costs.min()
    row, column = np.full(N, 1 / N), np.full(M, 1 / M)
    mass_left = 1.0 - mass
    if mass_left > 0:
        # The dummies take the mass that is not transported. Their own cost is prohibitive, so that each takes all of `mass_left`.
        costs, row, column = np.pad(costs, (0, 1)), np.append(row, mass_left), np.append(column, mass_left)
        costs[N, M] = 2 * costs.max() + 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            plan = ot.emd(row, column, costs, numItermax=10_000_000)
        except Warning as warning:
            raise ValueError(f"cost [{N}, {M}]: the exact solver stopped early: {warning}") from None
    return torch.from_numpy(plan[:N, :M]).to(cost)


def adjoint(plan: TransportPlan, is_balanced: bool, outer: Tensor) -> Tensor:
    """dL/d(cost) * (-epsilon), [N, M], for outer = dL/d(log pi) [N, M]."""
    matrix = plan.matrix
    right = (outer.sum(dim=1), outer.sum(dim=0), outer.sum())
    x, y, w = solve_active_set(matrix, plan.row_active, plan.column_active, not is_balanced, right)
    return outer - matrix * ((x + w).to(matrix)[:, None] + y.to(matrix))


class LogPlan(torch.autograd.Function):
    """log pi of a plan, with its gradient: `adjoint` computes dL/d(cost) * (-epsilon), a new tensor, from dL/d(log pi)."""

    @staticmethod
    def forward(
        ctx: Any, cost: Tensor, plan: TransportPlan, epsilon: float, adjoint: Callable[[Tensor], Tensor]
    ) -> Tensor:
        ctx.epsilon, ctx.adjoint = epsilon, adjoint
        return plan.log_matrix.clone()

    @staticmethod
    @first_only
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.adjoint(outer).div_(-ctx.epsilon), None, None, None


class _MatchingLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        cost: Tensor,
        target: Tensor | None,
        plan: TransportPlan,
        epsilon: float,
        is_balanced: bool,
        is_matched: bool,
    ) -> Tensor:
        ctx.plan, ctx.epsilon, ctx.is_balanced, ctx.is_matched = plan, epsilon, is_balanced, is_matched
        ctx.target = target
        if target is None:
            return -(plan.log_matrix.diagonal().mean() + math.log(len(cost)))
        return (torch.xlogy(target, target) - target * plan.log_matrix).sum()

    @staticmethod
    @first_only
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor | None, ...]:
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
    cost: Tensor, epsilon: float, *, mass: float = 1.0, **options: Unpack[SolveOptions]
) -> tuple[Tensor, TransportPlan]:
    """(log pi [N, M] with an exact gradient to the cost, the plan).

    cost, epsilon, mass and options are those of `solve`. Costs one linear solve of size N + M backwards.

    When: a loss of your own reads the plan.
    Related: `matching_loss`, where it is a divergence from a known matching.

    >>> import torch
    >>> from ray_atr.objectives.transport import log_plan
    >>> cost = (1 - torch.eye(3)).requires_grad_()
    >>> logarithm, plan = log_plan(cost, 0.1)
    >>> logarithm.diagonal().sum().backward()
    >>> bool((cost.grad.diagonal() < 0).all())  # cheaper pairs have more mass
    True
    """
    plan = solve(cost, epsilon, mass=mass, **options)
    return LogPlan.apply(cost, plan, epsilon, partial(adjoint, plan, mass == 1)), plan


def matching_loss(
    cost: Tensor, epsilon: float, *, mass: float = 1.0, target: Tensor | None = None, **options: Unpack[SolveOptions]
) -> tuple[Tensor, TransportPlan]:
    """(KL(target || pi) = sum target log(target / pi), the plan), with the exact gradient to the cost [N, M].

    target   [N, M], any total mass; None is I/N, or diag(rows) if marginals are given, which needs M = N.
    options  those of `solve`, as are cost, epsilon and mass.

    The envelope theorem gives the gradient if the plan is balanced and the target has its marginals, the active-set solve
    otherwise. Luong et al. 2024, Eq. 6, 13.

    When: costs of a batch are at hand, and which of its pairs belong together.
    Related: the pair loss `LearningToMatch` makes the costs too; `log_plan`.

    >>> import torch
    >>> from ray_atr.objectives.transport import matching_loss
    >>> right, wrong = (matching_loss(cost, 0.1)[0] for cost in (1 - torch.eye(3), torch.eye(3)))
    >>> bool(right < 0.01 < wrong)
    True
    """
    if target is None and cost.shape[:1] != cost.shape[1:]:
        raise refuse("cost", tuple(cost.shape), "a tensor [N, N] without a target")
    if target is not None and target.shape != cost.shape:
        raise refuse("target", tuple(target.shape), f"a tensor {list(cost.shape)}, as the cost is")
    plan = solve(cost, epsilon, mass=mass, **options)
    rows, columns = options.get("rows"), options.get("columns")
    if target is None and rows is not None:
        target = torch.diag(rows.to(cost))
    is_balanced = mass == 1
    is_matched = is_balanced and (_has_marginals(target, rows, columns) if target is not None else columns is None)
    return _MatchingLoss.apply(cost, target, plan, epsilon, is_balanced, is_matched), plan


def _has_marginals(target: Tensor, rows: Tensor | None, columns: Tensor | None) -> bool:
    """Whether the target's row and column sums are the plan's, to 1e-5 of their mean."""
    N, M = target.shape
    row_gap = (target.sum(dim=1) - (1 / N if rows is None else rows)).abs().max() * N
    column_gap = (target.sum(dim=0) - (1 / M if columns is None else columns)).abs().max() * M
    return bool(torch.maximum(row_gap, column_gap) < 1e-5)
