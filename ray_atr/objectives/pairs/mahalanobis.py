"""The one Mahalanobis distance of training and ranking: |u - v|_M with M learned, never forming [N, M, D].

|u_i - v_j|_M^2 = |u_i|_M^2 + |v_j|_M^2 - 2 u_i M v_j^T                (Luong et al. 2024, Eq. 9)
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ray_atr.common.settings import refuse

_SHAPES = {"diagonal": "[D]", "mahalanobis": "[D, D]", "factored": "[D, rank]"}


def shape_of(kind: str, D: int) -> str:
    """The shape that a metric of this kind must have, in the words of an error message."""
    return f"a tensor {_SHAPES[kind]} with D = {D} for a {kind} metric"


class WeighedRows(NamedTuple):
    """Rows u [N, D] and v [M, D] under a metric: `left @ right.T` is u M v^T, and their squared norms |u|_M^2, |v|_M^2."""

    left: Tensor
    right: Tensor
    left_norms: Tensor
    right_norms: Tensor


class Mahalanobis(NamedTuple):
    """A metric M: `mahalanobis`, the matrix [D, D]; `diagonal`, its diagonal [D]; `factored`, L [D, rank] with M = L L^T."""

    kind: str
    matrix: Tensor

    def weigh(self, u: Tensor, v: Tensor) -> WeighedRows:
        """The rows u [N, D] and v [M, D] under M; gradients reach u, v and the metric.

        Of a full matrix the symmetric part is used, and negative entries of a diagonal are 0, as after projection.
        """
        if self.kind == "factored":
            left, right = u @ self.matrix, v @ self.matrix
            return WeighedRows(left, right, left.square().sum(dim=1), right.square().sum(dim=1))
        if self.kind == "diagonal":
            scale = self.matrix.clamp(min=0)
            left, weighed_v = u * scale, v * scale
        else:
            symmetric = (self.matrix + self.matrix.T) / 2
            left, weighed_v = u @ symmetric, v @ symmetric
        return WeighedRows(left, v, (left * u).sum(dim=1), (weighed_v * v).sum(dim=1))

    def to(self, rows: Tensor) -> Mahalanobis:
        """The metric where the rows are, in their precision, without gradient."""
        return Mahalanobis(self.kind, self.matrix.detach().to(rows))

    def check_width(self, D: int, path: str = "metric.shape") -> None:
        """ValueError for a metric that does not fit rows of width D."""
        shape = tuple(self.matrix.shape)
        fits = {"diagonal": (D,), "mahalanobis": (D, D), "factored": (D, *shape[1:2])}[self.kind]
        if shape != fits or (self.kind == "factored" and len(shape) != 2):
            raise refuse(path, shape, shape_of(self.kind, D))

    @torch.no_grad()
    def root(self) -> Tensor:
        """R [D, r], float64, with M = R R^T: the Euclidean distances of rows u R are those of u under M."""
        matrix = self.matrix.detach().double()
        if self.kind == "factored":
            return matrix
        if self.kind == "diagonal":
            return matrix.clamp(min=0).sqrt().diag()
        values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
        return vectors * values.clamp(min=0).sqrt()


def squared_distances(weighed: WeighedRows, gain: Tensor | None = None) -> Tensor:
    """Squared distances [N, M]; a gain scales the cross term. Rounding may leave values slightly below 0."""
    cross = weighed.left @ weighed.right.T
    if gain is not None:
        cross = gain * cross
    return weighed.left_norms[:, None] + weighed.right_norms - 2 * cross
