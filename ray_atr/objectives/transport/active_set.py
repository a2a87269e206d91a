"""The linear system of the optimality conditions on the active rows and columns: Newton's step and the exact gradient.

With A and C the active rows and columns, r and q the plan's row and column sums and S its mass, the system is

    H = [ diag(r_A)   pi_AC      r_A ]
        [ pi_AC^T     diag(q_C)  q_C ]
        [ r_A^T       q_C^T      S   ]

H is symmetric and positive semi-definite; the diagonal row block is eliminated, so that a Cholesky factorisation of size
|C| + 1 remains. A balanced plan has all rows and columns active, and then the mass row says nothing new.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ray_atr.common.ranks import Ranks

MOST_ITERATIONS = 2000
LEAST_DIAGONAL = 1e-6
"""Smallest diagonal element, relative to its column's mass: smaller ones are rounding error."""


def solve_active_set(
    matrix: Tensor, row_active: Tensor, column_active: Tensor, has_mass_row: bool, right: tuple[Tensor, Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """(x [N], y [M], w) with H (x, y, w) = right = (row part [N], column part [M], mass part); 0 off the active set.

    Without the mass row, w = 0. Computed in float64.
    """
    plan = matrix.double()
    row_part, column_part, mass_part = (part.double() for part in right)
    columns, row_sums, column_sums = column_active.double(), plan.sum(dim=1), plan.sum(dim=0)
    # Inactive rows and columns stay in the system, with a unit diagonal and zeros elsewhere: selecting them would copy.
    weight = inverse(row_sums, row_active)
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
    """x with matrix x = right. A ridge selects one if the matrix is singular (isolated pairs fill their row and column)."""
    scale = float(matrix.diagonal().abs().max())
    for ridge in (1e-14, 1e-11, 1e-8, 1e-5):
        matrix.diagonal().add_(ridge * scale)
        factor, failed = torch.linalg.cholesky_ex(matrix)
        if int(failed) == 0:
            return torch.cholesky_solve(right[:, None], factor).squeeze(1)
    return torch.linalg.lstsq(matrix, right[:, None]).solution.squeeze(1)


class PlanRows:
    """The rows of a plan pi, [n, M], that one process owns, a tile at a time, with the products that conjugate gradients need.

    matrix  returns pi [t, M] of a slice of the own rows.
    tiles   the slices; rows that are in memory are one tile.
    """

    def __init__(self, matrix: Callable[[slice], Tensor], tiles: Sequence[slice]) -> None:
        self.matrix, self.tiles = matrix, tiles

    def sums(self, row_active: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(row sums [n], own part of the column sums [M], that of sum_i pi_ij^2 / row sum_i over active rows [M]), float64."""
        row_sums = torch.empty(len(row_active), dtype=torch.float64, device=row_active.device)
        column_sums: Any = 0
        squares: Any = 0
        for rows in self.tiles:
            matrix = self.matrix(rows)
            row_sums[rows] = matrix.sum(dim=1).double()
            column_sums = column_sums + matrix.sum(dim=0).double()
            weight = inverse(row_sums[rows], row_active[rows]).to(matrix)
            squares = squares + torch.mv(matrix.square().T, weight).double()
        return row_sums, column_sums, squares

    def times(self, vector: Tensor) -> Tensor:
        """pi @ vector, [n], of a vector [M]; float64, as the other products."""
        matrices = map(self.matrix, self.tiles)
        return torch.cat([torch.mv(matrix, vector.to(matrix)).double() for matrix in matrices])

    def transposed_times(self, vector: Tensor) -> Tensor:
        """pi^T @ vector, [M], of a vector [n]: the own rows' part."""
        total: Any = 0
        for rows in self.tiles:
            matrix = self.matrix(rows)
            total = total + torch.mv(matrix.T, vector[rows].to(matrix)).double()
        return torch.as_tensor(total)

    def times_then_transposed(self, vector: Tensor, between: Callable[[Tensor, slice], Tensor]) -> Tensor:
        """pi^T @ between(pi @ vector), [M]; `between` gets the products of a slice of the own rows, and the slice."""
        total: Any = 0
        for rows in self.tiles:
            matrix = self.matrix(rows)
            values = between(torch.mv(matrix, vector.to(matrix)).double(), rows)
            total = total + torch.mv(matrix.T, values.to(matrix)).double()
        return torch.as_tensor(total)


def inverse(row_sums: Tensor, row_active: Tensor) -> Tensor:
    """1 / row sum of the active rows, 0 for the others; [n]."""
    return row_active.to(row_sums) / row_sums.clamp(min=torch.finfo(row_sums.dtype).tiny)


def solve_active_set_across_ranks(
    plan: PlanRows,
    row_active: Tensor,
    column_active: Tensor,
    has_mass_row: bool,
    right: tuple[Tensor, Tensor, Tensor],
    ranks: Ranks,
) -> tuple[Tensor, Tensor, Tensor]:
    """As `solve_active_set`, for a plan whose rows are on several processes: x and the row part are of the own ones, [n].

    The reduced system is solved by conjugate gradients and never formed: a product with it is two products with the own rows,
    and a sum over processes of M + 1 numbers. Products are made in the plan's number type, the rest in float64.
    """
    M = len(column_active)
    dtype = right[0].dtype
    row_part, column_part, mass_part = (part.double() for part in right)
    row_sums, own_column_sums, own_squares = plan.sums(row_active)
    columns = column_active.double()
    column_sums = ranks.sum(own_column_sums)
    weight = inverse(row_sums, row_active)
    edge = column_sums * columns * has_mass_row
    mass = ranks.sum(row_sums.sum()) if has_mass_row else row_sums.new_ones(())
    diagonal = torch.where(column_active, column_sums, 1.0)

    def coupled(z: Tensor, products: Tensor, rows: slice) -> Tensor:
        """The product of the system's off-diagonal block with z, for a slice of the own rows, [t]; `products` is pi @ z[:M]."""
        return products + has_mass_row * row_sums[rows] * z[M]

    def collected(products: Tensor, values: Tensor) -> Tensor:
        """The transposed block's product with values [n], summed over processes, [M + 1]; `products` is pi^T @ values."""
        return ranks.sum(torch.cat([products * columns, has_mass_row * (row_sums * values).sum()[None]]))

    def applied(z: Tensor) -> Tensor:
        values = torch.empty_like(row_sums)

        def weighed(products: Tensor, rows: slice) -> Tensor:
            values[rows] = weight[rows] * coupled(z, products, rows)
            return values[rows]

        products = plan.times_then_transposed(z[:M] * columns, weighed)
        straight = torch.cat([diagonal * z[:M] + edge * z[M], (edge @ z[:M] + mass * z[M])[None]])
        return straight - collected(products, values)

    squares = ranks.sum(own_squares) * columns
    of_mass = mass - has_mass_row * ranks.sum((weight * row_sums.square()).sum())
    exact = torch.cat([diagonal - squares, of_mass[None]])
    preconditioner = torch.maximum(exact, LEAST_DIAGONAL * torch.cat([diagonal, mass[None]]))
    first = weight * row_part
    reduced = torch.cat([column_part * columns, has_mass_row * mass_part[None]])
    reduced = reduced - collected(plan.transposed_times(first), first)
    # In float32 a residual below its rounding is noise.
    enough = 1e-13 if dtype == torch.float64 else 1e-7
    solution, _ = conjugate_gradients(applied, lambda left: left / preconditioner, reduced, enough, MOST_ITERATIONS)
    x = weight * (row_part - coupled(solution, plan.times(solution[:M] * columns), slice(None)))
    return x, solution[:M] * columns, solution[M] * has_mass_row


def conjugate_gradients(
    applied: Callable[[Tensor], Tensor],
    preconditioned: Callable[[Tensor], Tensor],
    right: Tensor,
    enough: float,
    most: int,
) -> tuple[Tensor, bool]:
    """(x with applied(x) = right, whether the residual fell to `enough` of the right side's norm in at most `most` steps).

    `applied` is a product with a symmetric matrix, which may be semi-definite; `preconditioned` one with nearly its inverse.
    """
    solution, residual = torch.zeros_like(right), right
    wanted = enough * float(right.norm())
    search, size = right, 0.0
    for iteration in range(most):
        conditioned = preconditioned(residual)
        new_size = float(residual @ conditioned)
        search = conditioned if iteration == 0 else conditioned + (new_size / size) * search
        size = new_size
        product = applied(search)
        curvature = float(search @ product)
        if not curvature > 0 or not size > 0:
            break
        solution = solution + (size / curvature) * search
        residual = residual - (size / curvature) * product
        if float(residual.norm()) <= wanted:
            return solution, True
    return solution, False
