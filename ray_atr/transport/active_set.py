"""The linear system of the optimality conditions on the active rows and columns: Newton's step and the exact gradient.

With A and C the active rows and columns, r and q the plan's row and column sums and S its mass, the system is

    H = [ diag(r_A)   pi_AC      r_A ]
        [ pi_AC^T     diag(q_C)  q_C ]
        [ r_A^T       q_C^T      S   ]

H is symmetric and positive semi-definite; the diagonal row block is eliminated, so that a Cholesky factorisation of size
|C| + 1 remains. A balanced plan has all rows and columns active, and then the mass row says nothing new.
"""

from __future__ import annotations

import torch
from torch import Tensor


def solve_active_set(
    matrix: Tensor, row_active: Tensor, column_active: Tensor, has_mass_row: bool, right: tuple[Tensor, Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """(x [N], y [M], w) with H (x, y, w) = right = (row part [N], column part [M], mass part); 0 off the active set.

    Without the mass row, w = 0. Computed in float64.
    """
    plan = matrix.double()
    row_part, column_part, mass_part = (part.double() for part in right)
    rows, columns = row_active.double(), column_active.double()
    row_sums, column_sums = plan.sum(dim=1), plan.sum(dim=0)
    # Inactive rows and columns stay in the system with a unit diagonal and zeros elsewhere: no index is gathered.
    weight = rows / row_sums.clamp(min=torch.finfo(torch.float64).tiny)
    M = plan.shape[1]
    border = 1 if has_mass_row else 0
    coupling = plan.new_zeros(plan.shape[0], M + border)
    torch.mul(plan, columns, out=coupling[:, :M])
    if has_mass_row:
        coupling[:, M] = row_sums
    schur = coupling.T @ (coupling * -weight[:, None])
    diagonal = torch.where(column_active, column_sums, 1.0)
    schur.diagonal()[:M].add_(diagonal)
    reduced = torch.cat([column_part * columns, mass_part[None]])[: M + border]
    if has_mass_row:
        edge = column_sums * columns
        schur[M, :M] += edge
        schur[:M, M] += edge
        schur[M, M] += row_sums.sum()
    else:
        # Adding a constant to the rows' and taking it from the columns' potentials changes nothing: pin the constant.
        schur.add_(1 / M**2)
    reduced = reduced - coupling.T @ (weight * row_part)
    solution = _solve_semi_definite(schur, reduced)
    x = weight * (row_part - coupling @ solution)
    y = solution[:M] * columns
    w = solution[M] if has_mass_row else solution.new_zeros(())
    return x, y, w


def _solve_semi_definite(matrix: Tensor, right: Tensor) -> Tensor:
    """Where the matrix is singular (isolated pairs that fill their row and column), a ridge chooses among the solutions."""
    scale = float(matrix.diagonal().abs().max())
    for ridge in (1e-14, 1e-11, 1e-8, 1e-5):
        matrix.diagonal().add_(ridge * scale)
        factor, failed = torch.linalg.cholesky_ex(matrix)
        if int(failed) == 0:
            return torch.cholesky_solve(right[:, None], factor).squeeze(1)
    return torch.linalg.lstsq(matrix, right[:, None]).solution.squeeze(1)
