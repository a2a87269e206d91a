"""Water-filling blocks for the partial problem (Luong et al. 2024, Eq. 13).

log pi_ij = -c_ij/epsilon + u_i + v_j + l with u, v <= 0, and u_i < 0 only where row i is saturated. A block fixes v and
finds u and l together: with q_i = sum_j exp(-c_ij/epsilon + v_j), row i receives min(L q_i, 1/N), and L = exp(l) is the
one level at which the rows' sum is the mass; one sort finds it. Rows and columns alternate.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ray_atr.transport.plan import Plan
from ray_atr.transport.problem import Problem

CHECK_EVERY = 5


def solve_partial(problem: Problem, start: Plan | None, tolerance: float, max_iterations: int) -> Plan:
    """The plan of total mass `problem.mass` whose row and column sums are at most 1/N and 1/M."""
    scores = problem.cost / -problem.epsilon
    v = scores.new_zeros(scores.shape[1]) if start is None else start.column_potential
    level = scores.new_zeros(())
    iterations, residual = 0, math.inf
    while iterations < max_iterations:
        u, level = fill(torch.logsumexp(scores + v, dim=1), problem.mass)
        v, level = fill(torch.logsumexp(scores + u[:, None], dim=0), problem.mass)
        iterations += 1
        if iterations % CHECK_EVERY == 0 or iterations == max_iterations:
            residual = _violation(torch.logsumexp(scores + v, dim=1) + u + level, u)
            if residual <= tolerance:
                break
    return Plan(
        log_matrix=scores + u[:, None] + v + level,
        row_potential=u + level,
        column_potential=v,
        row_active=u < 0,
        column_active=v < 0,
        residual=residual,
        iterations=iterations,
        tolerance=tolerance,
        domain="log",
    )


def fill(log_inflow: Tensor, mass: float) -> tuple[Tensor, Tensor]:
    """Potentials u <= 0 [N] and the log level l at which the mass is met: log of what row i receives is l + u_i + inflow_i.

    exp(l + u_i + inflow_i) = min(exp(l + inflow_i), 1/N). With the k largest inflows saturated, the level is
    (mass - k/N) / (sum of the others); the k sought is the smallest at which the next inflow stays below 1/N.
    """
    N = len(log_inflow)
    descending = log_inflow.sort(descending=True).values
    log_tail = descending.flip(0).logcumsumexp(0).flip(0)
    saturated = torch.arange(N, device=log_inflow.device, dtype=log_inflow.dtype)
    left = mass - saturated / N
    log_levels = torch.log(left.clamp(min=torch.finfo(left.dtype).tiny)) - log_tail
    is_enough = (log_levels + descending <= -math.log(N)) & (left > 0)
    # argmax of a boolean: the first True. When rounding leaves none, all but the last possible row are saturated.
    last = min(N, math.ceil(mass * N)) - 1
    first = torch.where(is_enough.any(), is_enough.to(torch.uint8).argmax(), last)
    level = log_levels[first]
    return (-math.log(N) - level - log_inflow).clamp(max=0), level


def _violation(log_sums: Tensor, potential: Tensor) -> float:
    """Mass by which rows exceed 1/N, or fall short of it though their potential pushes."""
    excess = log_sums.exp() - 1 / len(log_sums)
    return float(torch.where(potential < 0, excess.abs(), excess.clamp(min=0)).sum())
