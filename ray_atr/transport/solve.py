"""The one door to the solvers: problem in, plan out."""

from __future__ import annotations

from typing import TypedDict

import torch
from torch import Tensor

from ray_atr.transport.balanced import solve_balanced
from ray_atr.transport.partial import solve_partial
from ray_atr.transport.plan import TransportPlan
from ray_atr.transport.problem import Problem

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
    start           a plan of the previous, similar problem of the same shape; its potentials are where this one begins.
    tolerance       residual to reach, in units of mass; None: 1e-5 in float32, 1e-9 in float64.
    max_iterations  cap; a plan that hit it says so (`is_converged` is False) and holds what was reached.

    No gradient flows through the plan; `ray_atr.transport.log_plan` and `matching_loss` have exact ones.
    """
    problem = Problem(cost.detach(), float(epsilon), float(mass), rows, columns)
    wanted = problem.default_tolerance if tolerance is None else tolerance
    solver = solve_balanced if problem.is_balanced else solve_partial
    return solver(problem, start, wanted, max_iterations)
