"""Many small balanced problems at once: the sweeps of all of them in one product a half sweep.

Up to some sixty rows a sweep's time is that of calling the operations, so that P problems together take little longer
than one. Problems on which sweeps crawl, or that are unsafe in the kernel domain, go on by themselves.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ray_atr.settings import refuse
from ray_atr.transport.balanced import CHECK_EVERY, MODERATE, sweeps_left
from ray_atr.transport.plan import Plan
from ray_atr.transport.problem import KERNEL_RANGE, Problem
from ray_atr.transport.solve import MAX_ITERATIONS, solve

PATIENCE = 64
LARGEST = 64


@torch.no_grad()
def solve_batch(
    costs: Tensor,
    epsilon: float,
    *,
    mass: float = 1.0,
    tolerance: float | None = None,
    max_iterations: int = MAX_ITERATIONS,
) -> list[Plan]:
    """The plans of costs [P, N, M], each as `solve` finds it, to the same tolerance.

    Raises ValueError where `solve` does. Partial problems, and those of more than 64 rows or columns, are solved in turn:
    together they would take as long.
    """
    if costs.ndim != 3 or 0 in costs.shape:
        raise refuse("costs", tuple(costs.shape), "a tensor [P, N, M]")
    costs = costs.detach()
    problems = [Problem(cost, float(epsilon), float(mass)) for cost in costs]
    starts: list[Plan | None] = [None] * len(problems)
    is_small = max(costs.shape[1:]) <= LARGEST
    if is_small and mass == 1 and all(problem.log_range <= KERNEL_RANGE for problem in problems):
        starts = list(_sweep_together(costs / -epsilon, problems, tolerance, max_iterations))
    return [
        start
        if start is not None and start.is_converged
        else solve(cost, epsilon, mass=mass, start=start, tolerance=tolerance, max_iterations=max_iterations)
        for cost, start in zip(costs, starts, strict=True)
    ]


def _sweep_together(scores: Tensor, problems: list[Problem], tolerance: float | None, most: int) -> list[Plan | None]:
    """Each problem's plan after some sweeps, converged or not; None where its scalings left the range that is safe."""
    P, N, M = scores.shape
    wanted = [problem.default_tolerance if tolerance is None else tolerance for problem in problems]
    row = -torch.logsumexp(scores, dim=2) - math.log(N)
    kernel = (scores + row[:, :, None]).exp_()
    u = kernel.new_ones(P, N, 1)
    previous = [math.inf] * P
    for sweep in range(1, most + 1):
        v = torch.bmm(kernel.mT, u).mul_(M).reciprocal_()
        inflow = torch.bmm(kernel, v)
        if sweep % CHECK_EVERY == 0 or sweep == most:
            residuals = (u * inflow).sub_(1 / N).abs_().sum(dim=(1, 2)).tolist()
            left = [sweeps_left(*of_problem) for of_problem in zip(previous, residuals, wanted, strict=True)]
            is_worth_it = any(
                residual > enough and sweeps <= PATIENCE
                for residual, enough, sweeps in zip(residuals, wanted, left, strict=True)
            )
            if not is_worth_it:
                break
            previous = residuals
        u = inflow.mul_(N).reciprocal_()
    log_u, log_v = u.squeeze(2).log(), v.squeeze(2).log()
    extents = torch.maximum(log_u.abs().amax(dim=1), log_v.abs().amax(dim=1)).tolist()
    row = row + log_u
    log_matrices = scores.add_(row[:, :, None]).add_(log_v[:, None, :])
    everywhere = torch.ones(1, dtype=torch.bool, device=scores.device)
    return [
        Plan(
            log_matrix=log_matrices[p],
            row_potential=row[p],
            column_potential=log_v[p],
            row_active=everywhere.expand(N),
            column_active=everywhere.expand(M),
            residual=residuals[p],
            iterations=sweep,
            tolerance=wanted[p],
            domain="kernel",
        )
        if extents[p] <= MODERATE
        else None
        for p in range(P)
    ]
