"""Newton's method on the semi-dual of the balanced problem, for small problems on which sweeps converge slowly.

With the row sums exact, phi(g) = mean(g) - mean_i logsumexp_j(-c_ij/epsilon + g_j) is concave in the column potentials g, its
gradient is 1/M - q (q the plan's column sums) and its Hessian -(diag(q) - N pi^T pi). Each step is halved until phi rises.
"""

from __future__ import annotations

import torch
from torch import Tensor

SUFFICIENT_RISE = 1e-4
MOST_HALVINGS = 8


def ascend(scores: Tensor, column: Tensor, tolerance: float, most: int) -> tuple[Tensor, float, int]:
    """(column potentials, summed error of the column sums, steps made).

    Stops at the tolerance, after `most` steps, or where rounding keeps phi from rising; the error says which.
    """
    N, M = scores.shape
    value, normalisers = _semi_dual(scores, column)
    residual = float("inf")
    for step in range(most + 1):
        plan = (scores + column - normalisers[:, None]).exp_().div_(N)
        sums = plan.sum(dim=0)
        gradient = 1 / M - sums
        residual = float(gradient.abs().sum())
        if residual <= tolerance or step == most:
            break
        direction = _direction(plan, sums, gradient)
        slope = float(direction @ gradient.double())
        scale = 1.0
        for _ in range(MOST_HALVINGS):
            candidate = column + (scale * direction).to(column.dtype)
            candidate_value, candidate_normalisers = _semi_dual(scores, candidate)
            if candidate_value >= value + SUFFICIENT_RISE * scale * slope - 1e-12:
                break
            scale /= 2
        else:
            break
        column, value, normalisers = candidate, candidate_value, candidate_normalisers
    return column, residual, step


def _semi_dual(scores: Tensor, column: Tensor) -> tuple[float, Tensor]:
    normalisers = torch.logsumexp(scores + column, dim=1)
    return float(column.double().mean() - normalisers.double().mean()), normalisers


def _direction(plan: Tensor, sums: Tensor, gradient: Tensor) -> Tensor:
    """The ascent direction [M], float64: the Hessian is nearly singular where the plan is nearly a permutation."""
    N, M = plan.shape
    exact = plan.double()
    hessian = exact.T @ exact
    hessian.mul_(-N)
    hessian.diagonal().add_(sums.double())
    # Adding a constant to all potentials changes nothing: the constant direction is pinned, and rounding is kept from
    # making the rest indefinite.
    hessian.add_(1 / M**2)
    hessian.diagonal().add_(1e-12 / M)
    right = gradient.double()
    factor, failed = torch.linalg.cholesky_ex(hessian)
    if int(failed) != 0:
        hessian.diagonal().add_(1e-6 / M)
        factor = torch.linalg.cholesky(hessian)
    return torch.cholesky_solve(right[:, None], factor).squeeze(1)
