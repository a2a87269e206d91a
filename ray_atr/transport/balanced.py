"""Sinkhorn's iterations for the balanced problem.

Each half step sets the row (column) potentials so that the row (column) sums are exact. It starts with one sweep in
the log domain, which brings every row and column to the right scale; from there the kernel exp(-c/epsilon + f + g)
is safe to hold, and a half step is one matrix-vector product.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ray_atr.transport.plan import Plan
from ray_atr.transport.problem import Problem

CHECK_EVERY = 10


def solve_balanced(problem: Problem, start: Plan | None, tolerance: float, max_iterations: int) -> Plan:
    """The plan with row sums 1/N and column sums 1/M."""
    scores = problem.cost / -problem.epsilon
    N, M = scores.shape
    log_row, log_column = -math.log(N), -math.log(M)
    column = scores.new_zeros(M) if start is None else start.column_potential
    iterations, residual = 0, math.inf
    while iterations < max_iterations:
        row = log_row - torch.logsumexp(scores + column, dim=1)
        column = log_column - torch.logsumexp(scores + row[:, None], dim=0)
        iterations += 1
        if iterations % CHECK_EVERY == 0 or iterations == max_iterations:
            residual = _row_error(scores, row, column)
            if residual <= tolerance:
                break
    log_matrix = scores + row[:, None] + column
    everywhere = torch.ones(1, dtype=torch.bool, device=scores.device)
    return Plan(
        log_matrix=log_matrix,
        row_potential=row,
        column_potential=column,
        row_active=everywhere.expand(N),
        column_active=everywhere.expand(M),
        residual=residual,
        iterations=iterations,
        tolerance=tolerance,
        domain="log",
    )


def _row_error(scores: Tensor, row: Tensor, column: Tensor) -> float:
    sums = torch.logsumexp(scores + row[:, None] + column, dim=1).exp()
    return float((sums - 1 / len(sums)).abs().sum())
