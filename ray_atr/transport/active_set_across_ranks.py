"""active_set.py's system for a plan whose rows are on several processes, by conjugate gradients.

The rows are eliminated as there. What remains is never formed: a product with it is two products with the own rows, and a sum
over processes of M + 1 numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ray_atr.transport.ranks import Ranks

MOST_ITERATIONS = 2000
LEAST_DIAGONAL = 1e-6
"""Of a diagonal element, relative to its column's mass: smaller ones are rounding."""


def solve_active_set_across_ranks(
    matrix: Tensor,
    row_active: Tensor,
    column_active: Tensor,
    has_mass_row: bool,
    right: tuple[Tensor, Tensor, Tensor],
    ranks: Ranks,
) -> tuple[Tensor, Tensor, Tensor]:
    """(x of the own rows [n], y [M], w) with H (x, y, w) = right = (own row part [n], column part [M], mass part).

    0 off the active set; w = 0 without the mass row. Products are made in the matrix's number type, the rest in float64.
    """
    M = matrix.shape[1]
    row_part, column_part, mass_part = (part.double() for part in right)
    row_sums, columns = matrix.sum(dim=1).double(), column_active.double()
    column_sums = ranks.sum(matrix.sum(dim=0)).double()
    weight = row_active.double() / row_sums.clamp(min=torch.finfo(torch.float64).tiny)
    edge = column_sums * columns * has_mass_row
    mass = ranks.sum(row_sums.sum()) if has_mass_row else row_sums.new_ones(())
    diagonal = torch.where(column_active, column_sums, 1.0)

    def coupled(z: Tensor) -> Tensor:
        """[n]: the own rows' share of the columns' and the mass's unknowns."""
        return torch.mv(matrix, (z[:M] * columns).to(matrix)).double() + has_mass_row * row_sums * z[M]

    def collected(values: Tensor) -> Tensor:
        """[M + 1]: `coupled` transposed, summed over processes."""
        own = torch.mv(matrix.T, values.to(matrix)).double() * columns
        return ranks.sum(torch.cat([own, has_mass_row * (row_sums * values).sum()[None]]))

    def applied(z: Tensor) -> Tensor:
        straight = torch.cat([diagonal * z[:M] + edge * z[M], (edge @ z[:M] + mass * z[M])[None]])
        return straight - collected(weight * coupled(z))

    squares = ranks.sum(torch.mv(matrix.square().T, weight.to(matrix))).double() * columns
    of_mass = mass - has_mass_row * ranks.sum((weight * row_sums.square()).sum())
    exact = torch.cat([diagonal - squares, of_mass[None]])
    preconditioner = torch.maximum(exact, LEAST_DIAGONAL * torch.cat([diagonal, mass[None]]))
    reduced = torch.cat([column_part * columns, has_mass_row * mass_part[None]]) - collected(weight * row_part)
    # In float32 a residual below its rounding is noise.
    enough = 1e-13 if matrix.dtype == torch.float64 else 1e-7
    solution = _conjugate_gradients(applied, reduced, preconditioner, enough)
    x = weight * (row_part - coupled(solution))
    return x, solution[:M] * columns, solution[M] * has_mass_row


def _conjugate_gradients(
    applied: Callable[[Tensor], Tensor], right: Tensor, preconditioner: Tensor, enough: float
) -> Tensor:
    """z with applied(z) = right up to `enough` of it, the same on every process; the matrix may be semi-definite."""
    solution, left = torch.zeros_like(right), right
    wanted = enough * float(right.norm())
    search, size = right, 1.0
    for iteration in range(MOST_ITERATIONS):
        if float(left.norm()) <= wanted:
            break
        preconditioned = left / preconditioner
        new_size = float(left @ preconditioned)
        search = preconditioned if iteration == 0 else preconditioned + (new_size / size) * search
        size = new_size
        product = applied(search)
        curvature = float(search @ product)
        if not curvature > 0:
            break
        solution = solution + (size / curvature) * search
        left = left - (size / curvature) * product
    return solution
