"""The balanced problem: Sinkhorn's sweeps in the kernel domain, Newton's steps where sweeps converge slowly.

The solution is log pi = -c/epsilon + row + column. A sweep sets the row potentials so that the row sums are exact, then
the column potentials so that the column sums are.

Kernel domain: hold K = exp(-c/epsilon + row + column) for potentials near the solution; a half sweep on the remaining
scalings u, v is then one matrix-vector product. Safe while the scalings are moderate: they are absorbed into the potentials
when they leave [exp(-30), exp(30)]. Log domain: a half sweep is a log-sum-exp, 6 to 16 times slower, and never overflows. It
is used first if max(c)/epsilon is large, and after the scalings have overflowed between two checks.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ray_atr.objectives.transport.newton import ascend
from ray_atr.objectives.transport.problem import Problem, Solution, TransportPlan

# A check costs about as much as two sweeps: the next one is made when, at the last rate, the tolerance may be met.
CHECK_EVERY, FARTHEST_CHECK = 4, 32
MODERATE = 30.0
EXTREME = 70.0
LOG_SWEEPS = 4
# Two or three Newton steps cost about as much as M/2 sweeps. They are used once that many sweeps have been made, or if more
# would be needed at the last rate; not beyond NEWTON_LARGEST.
PATIENCE_LEAST = 64
NEWTON_LARGEST = 2048


def solve_balanced(
    problem: Problem, start: TransportPlan | None, tolerance: float, max_iterations: int
) -> TransportPlan:
    """The plan with row sums a and column sums b."""
    scores = problem.cost / -problem.epsilon
    N, M = scores.shape
    row, column = scores.new_zeros(N), scores.new_zeros(M) if start is None else start.column_potential
    may_use_newton = max(N, M) <= NEWTON_LARGEST
    patience = max(PATIENCE_LEAST, M // 2) if may_use_newton else max_iterations
    is_uniform = problem.rows is None and problem.columns is None
    marginals = None if is_uniform else Marginals(problem.row_marginal, problem.column_marginal)
    iterations, residual, domain = 0, math.inf, "kernel"
    is_safe = problem.is_kernel_safe
    while True:
        if not is_safe:
            sweeps = min(LOG_SWEEPS, max_iterations - iterations)
            row, column = log_sweeps(scores, column, sweeps, marginals)
            iterations, domain = iterations + sweeps, "log"
        swept = kernel_sweeps(scores, column, tolerance, max(1, max_iterations - iterations), patience, marginals)
        iterations, is_safe = iterations + swept.sweeps, swept.is_safe
        if is_safe:
            row, column, residual, domain = swept.row, swept.column, swept.residual, "kernel"
        if residual <= tolerance or iterations >= max_iterations:
            break
        if may_use_newton and (swept.is_slow or iterations >= patience):
            # A step squares the error; one more than the tolerance needs makes small gradients relatively exact.
            a, b, iterations_left = problem.row_marginal, problem.column_marginal, max_iterations - iterations
            row, column, residual, steps = ascend(scores, column, tolerance / 10, iterations_left, a, b)
            iterations, domain = iterations + steps, "newton"
            break
    return TransportPlan.of_scores(scores, Solution(row, column, None, residual, iterations), tolerance, domain)


def log_sweeps(
    scores: Tensor, column: Tensor, sweeps: int, marginals: Marginals | None = None
) -> tuple[Tensor, Tensor]:
    """Row and column potentials after some sweeps in the log domain; the column sums are then exact."""
    N, M = scores.shape
    log_rows = -math.log(N) if marginals is None else marginals.rows.log()
    log_columns = -math.log(M) if marginals is None else marginals.columns.log()
    row = scores.new_zeros(N)
    for _ in range(sweeps):
        row = log_rows - torch.logsumexp(scores + column, dim=1)
        column = log_columns - torch.logsumexp(scores + row[:, None], dim=0)
    return row, column


class Swept(NamedTuple):
    """Potentials, the rows' summed error and the number of sweeps.

    is_safe   the scalings stayed within the range of floats.
    is_slow   the rate of convergence is too slow to continue.
    """

    row: Tensor
    column: Tensor
    residual: float
    sweeps: int
    is_safe: bool
    is_slow: bool = False


def kernel_sweeps(
    scores: Tensor,
    column: Tensor,
    tolerance: float,
    most: int,
    patience: float = math.inf,
    marginals: Marginals | None = None,
) -> Swept:
    """Sweep in the kernel domain until the tolerance is met, `most` sweeps are made, or the scalings should be absorbed.

    Stops early if, at the rate of the last two checks, more than `patience` further sweeps would be needed.
    """
    scalings = Scalings(scores, column, marginals)
    previous, is_slow = math.inf, False
    between = CHECK_EVERY
    check = min(between, most)
    for sweep in range(1, most + 1):
        scalings.sweep()
        if sweep == check:
            residual, low, high = scalings.residual_and_range()
            largest = max(high, 1 / low) if low > 0 else math.inf
            if not largest < math.exp(EXTREME):
                return Swept(column, column, math.inf, sweep, False)
            predicted = sweeps_left(previous, residual, tolerance, between)
            is_slow = predicted > patience
            if residual <= tolerance or largest > math.exp(MODERATE) or is_slow:
                break
            previous = residual
            # At most twice the sweeps so far: an early rate predicts too few.
            between = int(max(CHECK_EVERY, min(predicted, sweep, FARTHEST_CHECK)))
            check = min(sweep + between, most)
        scalings.fit_rows()
    return Swept(*scalings.potentials(), residual, sweep, True, is_slow)


def sweeps_left(previous: float, residual: float, tolerance: float, between: int) -> float:
    """Sweeps until the tolerance is met, if the residual keeps falling as it did in the last `between` sweeps, from `previous`.

    0 if `previous` is infinite: there was no check yet. The residual falls ever more slowly, so this is nearly always too few.
    """
    if residual <= tolerance or math.isinf(previous):
        return 0.0
    if not residual < previous:
        return math.inf
    return between * math.log(residual / max(tolerance, 1e-300)) / math.log(previous / residual)


class Marginals(NamedTuple):
    """The plan's row sums a [N] and column sums b [M], where one of them is not uniform."""

    rows: Tensor
    columns: Tensor


class Scalings:
    """Scalings u [N] and v [M] of the kernel exp(scores + column) [N, M]. Marginals None: 1/N and 1/M."""

    def __init__(self, scores: Tensor, column: Tensor, marginals: Marginals | None) -> None:
        self.column, self.marginals = column, marginals
        # Rows of the kernel sum to 1, so that u starts at 1: the first half sweep is made in the log domain.
        exponents = scores + column
        self.kernel = torch.softmax(exponents, dim=1)
        N, M = scores.shape
        row = self.kernel.amax(dim=1).log_().sub_(exponents.amax(dim=1))
        self.row = row.sub_(math.log(N)) if marginals is None else row.add_(marginals.rows.log())
        self.u, self.v, self.inflow = row.new_ones(N), row.new_empty(M), row.new_empty(N)

    def sweep(self) -> None:
        """Make the columns' sums exact. The rows' sums are exact too where `inflow` is 1/u."""
        if self.marginals is None:
            N, M = self.kernel.shape
            torch.mv(self.kernel.T, self.u, out=self.v).reciprocal_()
            if N != M:
                self.v.mul_(N / M)
        else:
            torch.mv(self.kernel.T, self.u * self.marginals.rows, out=self.v).reciprocal_().mul_(self.marginals.columns)
        torch.mv(self.kernel, self.v, out=self.inflow)

    def fit_rows(self) -> None:
        """Make the rows' sums exact."""
        torch.reciprocal(self.inflow, out=self.u)

    def residual_and_range(self) -> tuple[float, float, float]:
        """(the rows' summed error after `sweep`, the smallest and the largest scaling)."""
        deviation = (self.u * self.inflow - 1).abs_()
        error = deviation.mean() if self.marginals is None else torch.dot(deviation, self.marginals.rows)
        residual, low, high = torch.stack([error, *torch.aminmax(torch.cat([self.u, self.v]))]).tolist()
        return residual, low, high

    def potentials(self) -> tuple[Tensor, Tensor]:
        """The potentials of the rows [N] and of the columns [M], with the scalings absorbed."""
        return self.row + self.u.log(), self.column + self.v.log()
