"""Newton's method on the dual, for small problems on which sweeps converge slowly. Each step is halved until the dual rises.

With a and b the marginals of rows and columns. Balanced: with the row sums exact, phi(g) = <b, g> - sum_i a_i
logsumexp_j(-c_ij/epsilon + g_j) is concave in the column potentials g; its gradient is b - q (q the plan's column sums) and
its Hessian -(diag(q) - pi^T diag(1/a) pi).

Partial: D(u, v) = <a, u> + <b, v> - s log sum_ij exp(-c_ij/epsilon + u_i + v_j) is concave; it is maximised over u, v <= 0.
A potential at its bound that the gradient pushes against it is held; the others take Newton's step and are projected back
(Bertsekas 1982, "Projected Newton methods for optimization problems with simple constraints").
"""

from __future__ import annotations

import torch
from torch import Tensor

from ray_atr.objectives.transport.active_set import conjugate_gradients, solve_active_set
from ray_atr.objectives.transport.problem import violation

SUFFICIENT_RISE = 1e-4
MOST_HALVINGS = 12
LONGEST_STEP = 10.0
NEARLY_BOUND = 0.05
MOST_CONJUGATE = 8
ROWS_AT_A_TIME = 256
FINE_ENOUGH = 1e-2


def ascend(
    scores: Tensor, column: Tensor, tolerance: float, most: int, rows: Tensor, columns: Tensor
) -> tuple[Tensor, Tensor, float, int]:
    """(row and column potentials, summed error of the column sums, steps made); computed in float64.

    A step's system is solved by conjugate gradients, preconditioned by a factored Hessian: the first step's, in the
    scores' type, for as long as few iterations suffice with it. Steps are then far cheaper than a factorisation each.
    Stops at the tolerance, after `most` steps, or when rounding keeps phi from rising: then the error is above the tolerance.
    """
    dtype, column = scores.dtype, column.double()
    a, b = rows.double(), columns.double()
    plan, normalisers = row_normalised(scores, column, a)
    value = float(column @ b - normalisers @ a)
    factor: Tensor | None = None
    for step in range(most + 1):
        sums = plan.sum(dim=0)
        gradient = b - sums
        residual = float(gradient.abs().sum())
        if residual <= tolerance or step == most:
            break
        direction = None if factor is None else _solve_hessian(plan, sums, gradient, factor, a)
        if direction is None:
            factor, direction = _factor_and_solve(plan, sums, gradient, dtype, a)
        # If the Hessian is nearly singular, the direction may be too long for MOST_HALVINGS halvings.
        direction = direction * min(1.0, LONGEST_STEP / float(direction.abs().max()))
        climbed = _climb(scores, column, direction, value, float(direction @ gradient), a, b)
        if climbed is None:
            _, normalisers = row_normalised(scores, column, a)
            break
        column, value, plan, normalisers = climbed
    return (a.log() - normalisers).to(dtype), column.to(dtype), residual, step


def _climb(
    scores: Tensor, column: Tensor, direction: Tensor, value: float, slope: float, a: Tensor, b: Tensor
) -> tuple[Tensor, float, Tensor, Tensor] | None:
    """(potentials, phi, plan, log-sum-exps) after the longest of the halved steps that raises phi; None if none does."""
    scale = 1.0
    for _ in range(MOST_HALVINGS):
        candidate = column + scale * direction
        plan, normalisers = row_normalised(scores, candidate, a)
        reached = float(candidate @ b - normalisers @ a)
        if reached >= value + SUFFICIENT_RISE * scale * slope - 1e-12:
            return candidate, reached, plan, normalisers
        scale /= 2
    return None


def row_normalised(scores: Tensor, column: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """(the plan with exactly these row sums [N] under the column potentials, log-sum-exps of the rows).

    Both in the potentials' number type.
    """
    # A sum of two number types would copy the scores once more.
    plan = scores.to(column.dtype, copy=True).add_(column)
    largest = plan.amax(dim=1)
    plan.sub_(largest[:, None]).exp_()
    sums = plan.sum(dim=1)
    plan.mul_((rows / sums)[:, None])
    return plan, largest + sums.log_()


def _factor_and_solve(
    plan: Tensor, sums: Tensor, gradient: Tensor, dtype: torch.dtype, rows: Tensor
) -> tuple[Tensor, Tensor]:
    """(the Hessian's Cholesky factor, the ascent direction [M]): in `dtype` where that serves, else in float64."""
    for precision, ridge in ((dtype, torch.finfo(dtype).eps), (torch.float64, 1e-12), (torch.float64, 1e-6)):
        factor = _hessian(plan, sums, precision, ridge, rows)
        failed = torch.empty(0, dtype=torch.int32, device=plan.device)
        torch.linalg.cholesky_ex(factor, out=(factor, failed))
        if int(failed) == 0:
            direction = _solve_hessian(plan, sums, gradient, factor, rows)
            if direction is not None:
                return factor, direction
    # Singular to float64's precision: the direction that the ridge gives still ascends.
    return factor, torch.cholesky_solve(gradient[:, None], factor).squeeze(1)


def _hessian(plan: Tensor, sums: Tensor, dtype: torch.dtype, ridge: float, rows: Tensor) -> Tensor:
    """diag(q) - pi^T diag(1/a) pi + 1/M^2, [M, M]; nearly singular where the plan is nearly a permutation.

    Adding a constant to all potentials changes nothing: the constant direction is pinned, and the ridge keeps rounding from
    making the rest indefinite.
    """
    M = plan.shape[1]
    hessian = plan.new_zeros(M, M, dtype=dtype)
    for block, of_block in zip(plan.split(ROWS_AT_A_TIME), rows.split(ROWS_AT_A_TIME), strict=True):
        rounded = (block / of_block.sqrt()[:, None]).to(dtype)
        hessian.addmm_(rounded.T, rounded, alpha=-1)
    hessian.diagonal().add_(sums)
    hessian.add_(1 / M**2)
    hessian.diagonal().add_(ridge / M)
    return hessian


def _solve_hessian(plan: Tensor, sums: Tensor, right: Tensor, factor: Tensor, rows: Tensor) -> Tensor | None:
    """x [M] with Hessian x = right, up to a relative residual of FINE_ENOUGH, by conjugate gradients in float64.

    None if MOST_CONJUGATE iterations do not suffice.
    """
    M = plan.shape[1]

    def applied(x: Tensor) -> Tensor:
        return sums * x - torch.mv(plan.T, torch.mv(plan, x) / rows) + x.sum() / M**2

    def preconditioned(x: Tensor) -> Tensor:
        return torch.cholesky_solve(x.to(factor.dtype)[:, None], factor).squeeze(1).to(x.dtype)

    solution, is_fine = conjugate_gradients(applied, preconditioned, right, FINE_ENOUGH, MOST_CONJUGATE)
    return solution if is_fine else None


def ascend_projected(
    scores: Tensor, u: Tensor, v: Tensor, mass: float, tolerance: float, most: int, rows: Tensor, columns: Tensor
) -> tuple[Tensor, Tensor, Tensor, float, int]:
    """(u, v <= 0, log level l, summed violation of the optimality conditions, steps made), from u and v <= 0 near them.

    Computed in float64, returned in the scores' type.
    """
    dtype, exact = scores.dtype, scores.double()
    u, v, a, b = u.double(), v.double(), rows.double(), columns.double()
    value, level = _partial_dual(exact, u, v, mass, a, b)
    for step in range(most + 1):
        plan = (exact + u[:, None]).add_(v).add_(level).exp_()
        row_sums, column_sums = plan.sum(dim=1), plan.sum(dim=0)
        row_gradient, column_gradient = a - row_sums, b - column_sums
        residual = violation(row_sums, u < 0, a) + violation(column_sums, v < 0, b)
        if residual <= tolerance or step == most:
            break
        near = min(NEARLY_BOUND, residual * len(exact))
        row_held, column_held = (u > -near) & (row_gradient > 0), (v > -near) & (column_gradient > 0)
        x, y, _ = solve_active_set(
            plan, ~row_held, ~column_held, True, (row_gradient, column_gradient, plan.new_zeros(()))
        )
        x, y = torch.where(row_held, -u, x), torch.where(column_held, -v, y)
        scale = 1.0
        for _ in range(MOST_HALVINGS):
            new_u = (u + (scale * x).clamp(-LONGEST_STEP, LONGEST_STEP)).clamp(max=0)
            new_v = (v + (scale * y).clamp(-LONGEST_STEP, LONGEST_STEP)).clamp(max=0)
            new_value, new_level = _partial_dual(exact, new_u, new_v, mass, a, b)
            rise = float((new_u - u) @ row_gradient + (new_v - v) @ column_gradient)
            if new_value >= value + SUFFICIENT_RISE * rise - 1e-14:
                break
            scale /= 2
        else:
            break
        u, v, value, level = new_u, new_v, new_value, new_level
    return u.to(dtype), v.to(dtype), level.to(dtype), residual, step


def _partial_dual(scores: Tensor, u: Tensor, v: Tensor, mass: float, a: Tensor, b: Tensor) -> tuple[float, Tensor]:
    """(D, the log level at which the plan's mass is `mass`)."""
    log_total = torch.logsumexp((scores + u[:, None]).add_(v).flatten(), dim=0)
    return float(u @ a + v @ b - mass * log_total), torch.log(log_total.new_tensor(mass)) - log_total
