"""The partial problem (Luong et al. 2024, Eq. 13): water-filling blocks, then Newton's steps on the active set.

log pi_ij = -c_ij/epsilon + u_i + v_j + l with u, v <= 0, and u_i < 0 only where row i is saturated. A block fixes v and
finds u and l together: with q_i = sum_j exp(-c_ij/epsilon + v_j), row i receives min(L q_i, a_i), and L = exp(l) is the
one level at which the rows' sum is the mass; one sort finds it. Rows and columns alternate. Blocks need few sweeps unless
epsilon is small. If they converge slowly, a projected Newton method is tried; if that is slow too, as it is if pairs are nearly
isolated and fill their row and column together, blocks continue.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ray_atr.common.ranks import Ranks
from ray_atr.objectives.transport.balanced import sweeps_left
from ray_atr.objectives.transport.newton import ascend_projected
from ray_atr.objectives.transport.problem import Problem, Solution, TransportPlan, violation
from ray_atr.objectives.transport.row_blocks import LogRows, RowBlock

CHECK_EVERY = 5
NEWTON_AFTER_LEAST = 30
NEWTON_LARGEST = 2048
NEWTON_MOST = 40
"""Most steps of Newton's method: where it works it takes about ten, at most about twenty."""
KERNEL_SWEEPS, LOG_SWEEPS = 0.5, 0.125
"""Sweeps of either kind, as a multiple of the columns, that are made before Newton's method is considered: they take less time
than its first step, which factorises an [M, M] system. Twice as many more are made if they will suffice."""
SMALL = 96 * 96
"""Entries of a matrix up to which NumPy's product with a vector computes on one thread. NumPy's calls cost a third of torch's."""


def solve_partial(
    problem: Problem, start: TransportPlan | None, tolerance: float, max_iterations: int
) -> TransportPlan:
    """The plan of total mass `problem.mass` whose row and column sums are at most a and b."""
    scores = problem.cost / -problem.epsilon
    N, M = scores.shape
    rows, columns = problem.row_marginal, problem.column_marginal
    v = scores.new_zeros(M) if start is None else start.column_potential
    few = max(NEWTON_AFTER_LEAST, M * (KERNEL_SWEEPS if problem.is_kernel_safe else LOG_SWEEPS))
    pace = Pace(tolerance, few if max(N, M) <= NEWTON_LARGEST else math.inf)
    domain = "kernel" if problem.is_kernel_safe else "log"

    def blocks(v: Tensor, pace: Pace, most: int) -> Solution:
        if problem.is_kernel_safe:
            return kernel_blocks(scores, v, problem.mass, pace, most, rows, columns)
        return shared_blocks(LogRows(scores, Ranks()), v, problem.mass, pace, most, rows, columns)

    best = blocks(v, pace, max_iterations)
    iterations = best.iterations
    if best.residual > tolerance and iterations < max_iterations:
        most = min(NEWTON_MOST, max_iterations - iterations)
        ascended = Solution(*ascend_projected(scores, best.u, best.v, problem.mass, tolerance, most, rows, columns))
        iterations += ascended.iterations
        if ascended.residual < best.residual:
            best, domain = ascended, "newton"
    if best.residual > tolerance and iterations < max_iterations:
        repeated = blocks(best.v, Pace(tolerance), max_iterations - iterations)
        iterations += repeated.iterations
        best = min(best, repeated, key=lambda solution: solution.residual)
    return TransportPlan.of_scores(scores, best._replace(iterations=iterations), tolerance, domain)


class Pace:
    """How fast block sweeps near the tolerance, and when they should end.

    few  sweeps that are made in any case; after these, sweeps end if more than twice as many are still needed. Infinite if
         there is no other method to fall back on.
    """

    def __init__(self, tolerance: float, few: float = math.inf) -> None:
        self.tolerance, self.few = tolerance, few
        self.checks: list[tuple[int, float]] = []

    def is_over(self, sweep: int, residual: float) -> bool:
        """Whether the residual after these sweeps is small enough, or shrinks too slowly."""
        self.checks.append((sweep, residual))
        return residual <= self.tolerance or (sweep >= self.few and self.sweeps_left() > 2 * self.few)

    def sweeps_left(self) -> float:
        """Sweeps to the tolerance if the residual goes on to shrink as it did in the second half of the sweeps."""
        sweep, residual = self.checks[-1]
        before, previous = next(check for check in self.checks if 2 * check[0] >= sweep)
        return sweeps_left(previous, residual, self.tolerance, sweep - before)


def shared_blocks(
    block: RowBlock, v: Tensor, mass: float, pace: Pace, most: int, rows: Tensor, columns: Tensor
) -> Solution:
    """Block sweeps over rows that one process or several hold, from v [M]; bounds [N] and [M]."""
    N, ranks = len(rows), block.ranks
    inflow = ranks.joined(block.row_sums(v), N)
    sweep, is_over = 0, False
    while sweep < most and not is_over:
        sweep += 1
        u, _ = fill(inflow, mass, rows)
        v, level = fill(block.column_sums(u[ranks.own(N)]), mass, columns)
        inflow = ranks.joined(block.row_sums(v), N)
        if sweep % CHECK_EVERY == 0 or sweep in (1, most):
            violated = violation((inflow + u + level).exp(), u < 0, rows)
            # A GPU's cumulative sums differ in the last bits from process to process, and all must make as many sweeps.
            residual = float(ranks.maximum(inflow.new_tensor(violated)))
            is_over = pace.is_over(sweep, residual)
    # For the same reason: by these, all have the same active set.
    u, v, level = map(ranks.maximum, (u, v, level))
    return Solution(u, v, level, residual, sweep)


@np.errstate(divide="ignore", over="ignore", invalid="ignore")  # as torch
def kernel_blocks(
    scores: Tensor, v: Tensor, mass: float, pace: Pace, most: int, rows: Tensor, columns: Tensor
) -> Solution:
    """`shared_blocks` on exp(-c/epsilon), shifted so that its largest entry is 1."""
    shift = scores.max()
    kernel: Any = (scores - shift).exp_()
    vectors: list[Any] = [v.exp(), rows, columns]
    # NumPy can view the memory of the CPU's tensors, but not under `torch.compile`.
    if kernel.device.type == "cpu" and not torch.compiler.is_compiling():
        vectors = [tensor.numpy() for tensor in vectors]
        kernel = kernel.numpy() if kernel.numel() <= SMALL else kernel
    beta, rows, columns = vectors
    inflow = times(kernel, beta)
    of_rows: Any = 0.0
    level: Any = 0.0
    for sweep in range(1, most + 1):
        alpha, of_rows = level_and_scaling(inflow, mass, rows, of_rows)
        beta, level = level_and_scaling(times(kernel.T, alpha), mass, columns, level)
        inflow = times(kernel, beta)
        if sweep % CHECK_EVERY == 0 or sweep == most or sweep == 1:
            # The columns and the mass are exact after their block: the residual is the rows' error.
            residual = violation(level * alpha * inflow, alpha < 1, rows)
            if pace.is_over(sweep, residual):
                break
    u, v, level = (torch.as_tensor(scaling).log() for scaling in (alpha, beta, level))
    return Solution(u, v, level - shift, residual, sweep)


def level_and_scaling(inflow: Any, mass: float, bounds: Any, near: Any) -> tuple[Any, Any]:
    """Scalings in (0, 1] and the level L with L * scaling * inflow = min(L * inflow, bound) summing to the mass; all [N].

    Tensors, or arrays of NumPy: for these the level is searched from one that is `near`, 0 if none is known.
    """
    ratio = bounds / inflow
    in_numpy = isinstance(inflow, np.ndarray)
    level = level_near(near, ratio, inflow, mass, bounds) if in_numpy else level_of_order(ratio, inflow, mass, bounds)
    return (ratio / level).clip(max=1), level


def level_near(level: Any, ratio: Any, inflow: Any, mass: float, bounds: Any) -> Any:
    """The level by Newton's method, for arrays [N] of NumPy; `ratio` is bound / inflow.

    What is transported is concave in the level and linear between the ratios. After one step from anywhere the level
    only rises, and it is exact once the same rows are saturated twice: one or two steps from the level of the sweep before.
    """
    unsaturated = -1
    for step in range(len(ratio) + 4):
        is_free = ratio > level
        before, unsaturated = unsaturated, int(np.count_nonzero(is_free))
        # No row is unsaturated if the first level was too high; later this comes from rounding alone.
        if unsaturated == before or (unsaturated == 0 and step > 1):
            break
        free = is_free.astype(inflow.dtype)
        # The bounds of all rows sum to 1.
        level = (mass - 1 + bounds @ free) / (inflow @ free)
    return level


def level_of_order(ratio: Tensor, inflow: Tensor, mass: float, bounds: Tensor) -> Tensor:
    """The level by a sort, for tensors [N]: it needs no number back from a GPU.

    With the rows of the least bound / inflow saturated, L = (mass - their bounds) / (sum of the other inflows); as few are
    as leave the next row below its bound.
    """
    order = ratio.argsort(descending=True)
    rising, limits = inflow[order], bounds[order]
    mass_left = mass - limits.sum() + limits.cumsum(0)
    levels = mass_left / rising.cumsum(0)
    is_enough = (levels * rising <= limits) | (mass_left <= limits)
    # The last True: where their number is first the largest. torch.compile counts no booleans.
    return levels[(1 * is_enough).cumsum(0).argmax()]


def fill(inflow: Tensor, mass: float, bounds: Tensor) -> tuple[Tensor, Tensor]:
    """(u, l) of one block, from the log inflow [N]: `level_and_scaling` in the log domain."""
    shift = inflow.max()
    order = (inflow - bounds.log()).argsort(descending=True)
    descending, limits = inflow[order] - shift, bounds[order]
    mass_left = mass - limits.cumsum(0) + limits
    log_tail = descending.flip(0).logcumsumexp(0).flip(0)
    log_levels = mass_left.clamp(min=torch.finfo(mass_left.dtype).tiny).log() - log_tail
    is_enough = (log_levels + descending <= limits.log()) | (mass_left <= limits)
    level = log_levels[is_enough.to(torch.uint8).argmax()] - shift
    return (bounds.log() - level - inflow).clamp(max=0), level


def times(matrix: Any, vector: Any) -> Any:
    """The product of a matrix [N, M] and a vector [M]: an array if the vector is one, even if the matrix is a tensor."""
    if isinstance(vector, np.ndarray) and isinstance(matrix, Tensor):
        return (matrix @ torch.from_numpy(vector)).numpy()
    return matrix @ vector
