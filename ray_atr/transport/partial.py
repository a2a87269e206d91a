"""The partial problem (Luong et al. 2024, Eq. 13): water-filling blocks, then Newton's steps on the active set.

log pi_ij = -c_ij/epsilon + u_i + v_j + l with u, v <= 0, and u_i < 0 only where row i is saturated. A block fixes v and
finds u and l together: with q_i = sum_j exp(-c_ij/epsilon + v_j), row i receives min(L q_i, 1/N), and L = exp(l) is the
one level at which the rows' sum is the mass; one sort finds it. Rows and columns alternate. Blocks need few sweeps where
epsilon is not small; where they crawl, Newton's method on the active set takes over, each step followed by a sweep, which
settles the active set and restores the mass.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ray_atr.transport.active_set import solve_active_set
from ray_atr.transport.plan import Plan
from ray_atr.transport.problem import KERNEL_RANGE, Problem

CHECK_EVERY = 5
LOG_SWEEPS = 4
NEWTON_AFTER_LEAST = 30
NEWTON_LARGEST = 2048
LONGEST_STEP = 5.0


def solve_partial(problem: Problem, start: Plan | None, tolerance: float, max_iterations: int) -> Plan:
    """The plan of total mass `problem.mass` whose row and column sums are at most 1/N and 1/M."""
    scores = problem.cost / -problem.epsilon
    N, M = scores.shape
    v = scores.new_zeros(M) if start is None else start.column_potential
    iterations, residual, domain = 0, math.inf, "kernel"
    if max(N, M) <= NEWTON_LARGEST:
        newton_after = min(max(NEWTON_AFTER_LEAST, M // 8), max_iterations)
    else:
        newton_after = max_iterations
    if problem.log_range <= KERNEL_RANGE:
        v, residual, iterations = kernel_blocks(scores, v, problem.mass, tolerance, newton_after)
    else:
        domain = "log"
        while iterations < newton_after and residual > tolerance:
            sweeps = min(LOG_SWEEPS, newton_after - iterations)
            for _ in range(sweeps):
                u, v, level = log_block_sweep(scores, v, problem.mass)
            residual = violation((log_inflow(scores, v) + u + level).exp(), u)
            iterations += sweeps
    if residual > tolerance and iterations < max_iterations:
        v, residual, steps = newton_on_active_set(scores, v, problem.mass, tolerance, max_iterations - iterations)
        iterations, domain = iterations + steps, "newton"
    # The row block once more: the potentials that belong to v, and the exact mass.
    u, level = fill(log_inflow(scores, v), problem.mass)
    return Plan(
        log_matrix=scores.add_(u[:, None]).add_(v).add_(level),
        row_potential=u + level,
        column_potential=v,
        row_active=u < 0,
        column_active=v < 0,
        residual=residual,
        iterations=iterations,
        tolerance=tolerance,
        domain=domain,
    )


def kernel_blocks(scores: Tensor, v: Tensor, mass: float, tolerance: float, most: int) -> tuple[Tensor, float, int]:
    """(v, violation, sweeps) of block sweeps on exp(-c/epsilon), shifted so that its largest entry is 1."""
    kernel = (scores - scores.max()).exp_()
    transposed = kernel.T
    N, M = scores.shape
    left_rows, left_columns = mass - torch.arange(N).to(scores) / N, mass - torch.arange(M).to(scores) / M
    inflow = torch.mv(kernel, v.exp())
    residual = math.inf
    for sweep in range(1, most + 1):
        alpha, _ = level_and_scaling(inflow, left_rows)
        beta, level = level_and_scaling(torch.mv(transposed, alpha), left_columns)
        inflow = torch.mv(kernel, beta)
        if sweep % CHECK_EVERY == 0 or sweep == most or sweep == 1:
            # The columns and the mass are exact after their block: the rows are judged.
            residual = violation(level * alpha * inflow, alpha < 1)
            if residual <= tolerance:
                break
    return beta.log(), residual, sweep


def level_and_scaling(inflow: Tensor, left: Tensor) -> tuple[Tensor, Tensor]:
    """Scalings in (0, 1] and the level L with L * scaling * inflow = min(L * inflow, 1/N) summing to the mass.

    With the k largest inflows saturated, L = (mass - k/N) / (sum of the others); the k sought is the smallest at which the
    next inflow stays below 1/N. left [N] is mass - k/N.
    """
    N = len(inflow)
    descending = inflow.sort(descending=True).values
    levels = left / descending.flip(0).cumsum(0).flip(0)
    is_enough = (levels * descending <= 1 / N) | (left <= 1 / N)
    # argmax of booleans: the first True.
    level = levels[is_enough.to(torch.uint8).argmax()]
    return (1 / (N * level * inflow)).clamp(max=1), level


def log_block_sweep(scores: Tensor, v: Tensor, mass: float) -> tuple[Tensor, Tensor, Tensor]:
    """(u, v, level) after a row block and a column block in the log domain."""
    u, _ = fill(log_inflow(scores, v), mass)
    v, level = fill(torch.logsumexp(scores + u[:, None], dim=0), mass)
    return u, v, level


def log_inflow(scores: Tensor, v: Tensor) -> Tensor:
    """log q [N]: what each row would receive at level 1."""
    return torch.logsumexp(scores + v, dim=1)


def fill(inflow: Tensor, mass: float) -> tuple[Tensor, Tensor]:
    """(u, l) of one block, from the log inflow [N]: `level_and_scaling` after a shift that keeps it from overflowing.

    Inflows more than exp(-80) below the largest are raised to that: they carry no mass and are not saturated.
    """
    shift = inflow.max()
    N = len(inflow)
    left = mass - torch.arange(N).to(inflow) / N
    descending = inflow.sort(descending=True).values - shift
    log_tail = descending.flip(0).logcumsumexp(0).flip(0)
    log_levels = left.clamp(min=torch.finfo(left.dtype).tiny).log() - log_tail
    is_enough = (log_levels + descending <= -math.log(N)) | (left <= 1 / N)
    level = log_levels[is_enough.to(torch.uint8).argmax()] - shift
    return (-math.log(N) - level - inflow).clamp(max=0), level


def violation(sums: Tensor, pushes: Tensor) -> float:
    """Mass by which rows exceed 1/N, or fall short of it though their potential pushes; `pushes` bool, or potentials <= 0."""
    if pushes.dtype != torch.bool:
        pushes = pushes < 0
    excess = sums - 1 / len(sums)
    return float(torch.where(pushes, excess.abs(), excess.clamp(min=0)).sum())


def newton_on_active_set(
    scores: Tensor, v: Tensor, mass: float, tolerance: float, most: int
) -> tuple[Tensor, float, int]:
    """(v, violation, steps): Newton's steps on the active set, each followed by a block sweep; sweeps alone where one fails."""
    N, M = scores.shape
    u, v, level = log_block_sweep(scores, v, mass)
    plan = (scores + u[:, None] + v + level).exp_()
    residual = violation(plan.sum(dim=1), u)
    steps = 1
    while residual > tolerance and steps < most:
        row_sums, column_sums = plan.sum(dim=1), plan.sum(dim=0)
        right = (1 / N - row_sums, 1 / M - column_sums, mass - row_sums.sum())
        row_active, column_active = (u < 0) | (row_sums > 1 / N), v < 0
        x, y, _ = solve_active_set(plan, row_active, column_active, True, right)
        longest = float(torch.maximum(x.abs().max(), y.abs().max()))
        scale = min(1.0, LONGEST_STEP / max(longest, 1e-30))
        candidate = log_block_sweep(scores, (v + (scale * y).to(v)).clamp(max=0), mass)
        candidate_plan = (scores + candidate[0][:, None] + candidate[1] + candidate[2]).exp_()
        candidate_residual = violation(candidate_plan.sum(dim=1), candidate[0])
        steps += 1
        if candidate_residual >= residual:
            for _ in range(LOG_SWEEPS):
                candidate = log_block_sweep(scores, v, mass)
                v = candidate[1]
            candidate_plan = (scores + candidate[0][:, None] + candidate[1] + candidate[2]).exp_()
            candidate_residual = violation(candidate_plan.sum(dim=1), candidate[0])
            steps += LOG_SWEEPS
        (u, v, level), plan, residual = candidate, candidate_plan, candidate_residual
    return v, residual, steps
