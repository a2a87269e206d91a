"""Sinkhorn's scalings u and v of a kernel near the solution: pi_ij = a_i u_i K_ij v_j, each row of K summing to 1.

A sweep makes the column sums exact, then fits the rows to theirs: two products of a matrix and a vector.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

# NumPy's calls cost a third of torch's, and up to this size its product of a matrix and a vector computes on one thread.
SMALL = 96 * 96


def has_view(tensor: Tensor) -> bool:
    """Whether a view of NumPy's shares the tensor's memory: not on a GPU, nor under `torch.compile`."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def is_small(matrix: Tensor) -> bool:
    """Whether sweeps over a matrix [N, M] are better made on a view of NumPy's."""
    return matrix.numel() <= SMALL and has_view(matrix)


def times(matrix: Any, vector: Any) -> Any:
    """The product of a matrix [N, M] and a vector [M]; a vector of NumPy's gives one, also where torch has the matrix."""
    if isinstance(vector, np.ndarray) and isinstance(matrix, Tensor):
        return (matrix @ torch.from_numpy(vector)).numpy()
    return matrix @ vector


class Marginals(NamedTuple):
    """The plan's row sums a [N] and column sums b [M], where one of them is not uniform."""

    rows: Tensor
    columns: Tensor


class Scalings:
    """u [N] and v [M] on the kernel of exp(scores + column), [N, M]. Marginals None: 1/N and 1/M."""

    def __init__(self, scores: Tensor, column: Tensor, marginals: Marginals | None) -> None:
        self.column, self.marginals = column, marginals
        # Rows of the kernel sum to 1, so that u starts at 1: the first half sweep is made in the log domain.
        exponents = scores + column
        self.kernel = torch.softmax(exponents, dim=1)
        N, M = scores.shape
        row = self.kernel.amax(dim=1).log_().sub_(exponents.amax(dim=1))
        self.row = row.sub_(math.log(N)) if marginals is None else row.add_(marginals.rows.log())
        self.u, self.v, self.inflow = row.new_ones(N), row.new_empty(M), row.new_empty(N)

    def sweep(self) -> None:
        """Make the columns' sums exact; `inflow` is then 1/u where the rows' are."""
        if self.marginals is None:
            N, M = self.kernel.shape
            torch.mv(self.kernel.T, self.u, out=self.v).reciprocal_()
            if N != M:
                self.v.mul_(N / M)
        else:
            torch.mv(self.kernel.T, self.u * self.marginals.rows, out=self.v).reciprocal_().mul_(self.marginals.columns)
        torch.mv(self.kernel, self.v, out=self.inflow)

    def fit_rows(self) -> None:
        """Make the rows' sums exact."""
        torch.reciprocal(self.inflow, out=self.u)

    def residual_and_range(self) -> tuple[float, float, float]:
        """(the rows' summed error after `sweep`, the smallest and the largest scaling)."""
        left = (self.u * self.inflow - 1).abs_()
        error = left.mean() if self.marginals is None else torch.dot(left, self.marginals.rows)
        residual, low, high = torch.stack([error, *torch.aminmax(torch.cat([self.u, self.v]))]).tolist()
        return residual, low, high

    def potentials(self) -> tuple[Tensor, Tensor]:
        """Those of the rows [N] and of the columns [M], which the scalings are brought into."""
        return self.row + self.u.log(), self.column + self.v.log()
