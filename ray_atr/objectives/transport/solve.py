"""The door to the solvers: problem in, plan out; and the plan of least cost, the limit of epsilon -> 0."""

from __future__ import annotations

import warnings
from typing import TypedDict

import numpy as np
import torch
from torch import Tensor

from ray_atr.objectives.transport.balanced import solve_balanced
from ray_atr.objectives.transport.partial import solve_partial
from ray_atr.objectives.transport.problem import Problem, TransportPlan

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

    No gradient flows through the plan; `ray_atr.objectives.transport.log_plan` and `matching_loss` have exact ones.

    When: a matching of all rows with all columns is wanted. Related: `exact_plan`, without entropy.

    >>> import torch
    >>> from ray_atr.objectives.transport import solve
    >>> plan = solve(1 - torch.eye(3), 0.05, mass=0.9)
    >>> plan.is_converged, round(float(plan.matrix.sum()), 4)
    (True, 0.9)
    """
    problem = Problem(cost.detach(), float(epsilon), float(mass), rows, columns)
    wanted = problem.default_tolerance if tolerance is None else tolerance
    solver = solve_balanced if problem.is_balanced else solve_partial
    return solver(problem, start, wanted, max_iterations)


@torch.no_grad()
def exact_plan(cost: Tensor, *, mass: float = 1.0) -> Tensor:
    """The plan pi [N, M] of least <pi, c> with uniform marginals: rows 1/N and columns 1/M at mass 1, at most that below.

    Solved in float64 on the CPU by `ot.emd` (Bonneel et al. 2011), with a dummy row and column for the mass that stays behind
    (Chapel et al. 2020). O(N^3 log N): seconds at N = 2,000. The result has the cost's type and device.
    Raises ValueError if the cost is not finite, the mass is outside (0, 1], or the solver does not finish.

    When: a reference without regularisation is wanted. Related: `solve`, whose plan nears it as epsilon nears 0.

    >>> import torch
    >>> from ray_atr.objectives.transport import exact_plan
    >>> exact_plan(1 - torch.eye(2)).tolist()
    [[0.5, 0.0], [0.0, 0.5]]
    """
    # POT imports every array library that is installed: ten seconds, for which no loss should wait.
    import ot

    # Checks cost and mass; this problem has no entropy term, for which any epsilon will do.
    Problem(cost.detach(), epsilon=1.0, mass=float(mass))
    N, M = cost.shape
    costs = cost.detach().double().cpu().numpy()
    row, column = np.full(N, 1 / N), np.full(M, 1 / M)
    left = 1.0 - mass
    if left > 0:
        # The dummies take up what is not transported. Between them nothing may flow, so that exactly `left` stays on each side.
        padded = np.zeros((N + 1, M + 1))
        padded[:N, :M] = costs - costs.min()
        padded[N, M] = 2 * padded.max() + 1
        costs, row, column = padded, np.append(row, left), np.append(column, left)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            plan = ot.emd(row, column, costs, numItermax=10_000_000)
        except Warning as warning:
            raise ValueError(f"cost [{N}, {M}]: the exact solver stopped early: {warning}") from None
    return torch.from_numpy(plan[:N, :M]).to(cost)
