"""Many queries together against all rows: products of 8-bit integers find candidates, and exact scores decide.

Such a product reads half the bytes of 16-bit rows and, on a processor made for it, takes a quarter of the time of a product
of floats. The error of its scores has a bound, so every row that could be among the best is ranked by its exact score: the answer
is exact.

Shapes: N rows, M queries, r width of a vector, C candidates.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

CANDIDATES = 64
"""Rows per query whose exact scores are computed first."""
TOGETHER = 64
"""Queries whose scores of all rows are in memory at once."""
BLOCK = 4_096
"""Rows whose products are made at once."""
GROUP = 32  # scores per group, of which the largest is used first
ROUNDED = 512  # rows that are rounded at a time
STEPS = 127
ROUNDING = 1e-5
"""Error of 32-bit sums, as a share of the product of the vectors' lengths."""


def inner_products(
    rows: NDArray[np.float16], queries: NDArray[np.float32], positions: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Inner products [M, C] of queries [M, r] with the rows at positions [M, C]; equal rows have the same to the last bit."""
    # Products of matrices round the last rows of a block differently, which would put copies out of their order.
    return np.einsum("mr,mcr->mc", queries, torch.from_numpy(rows[positions]).float().numpy())


class CoarseRows:
    """16-bit rows [N, r] with copies in 8 bits, with one scale per row."""

    def __init__(self, rows: NDArray[np.float16], *, block: int = BLOCK) -> None:
        self.rows, self.block = rows, block
        self.codes = torch.empty(rows.shape, dtype=torch.int8)
        self.scales = torch.empty(len(rows))
        self.off = self.longest = 0.0
        for start in range(0, len(rows), ROUNDED):
            part = torch.from_numpy(rows[start : start + ROUNDED]).float()
            codes, scales, off = _rounded(part)
            self.codes[start : start + ROUNDED], self.scales[start : start + ROUNDED] = codes, scales
            self.off = max(self.off, float(off.max()))
            self.longest = max(self.longest, float(part.norm(dim=1).max()))

    def nearest(self, queries: NDArray[np.float32], k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """(inner products, positions), both [M, k], of the k <= N largest inner products, best first; equal ones in row order."""
        parts = [self._nearest(queries[first : first + TOGETHER], k) for first in range(0, len(queries), TOGETHER)]
        scores, positions = zip(*parts, strict=True)
        return np.concatenate(scores), np.concatenate(positions)

    def _nearest(self, queries: NDArray[np.float32], k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        given = torch.from_numpy(np.ascontiguousarray(queries, np.float32))
        codes, scales, off = _rounded(given)
        rough, maxima = self._rough(codes)
        size = min(len(self.rows), max(CANDIDATES, 2 * k))
        # The best k rows are in the k groups with the largest maxima, which are much faster to find than a full order.
        groups = maxima.topk(min(size, maxima.shape[1]), dim=1).indices
        inside = (groups[:, :, None] * GROUP + torch.arange(GROUP)).flatten(1)
        values, where = rough.gather(1, inside).topk(size, dim=1)
        candidates = inside.gather(1, where)
        positions = candidates.numpy()
        scores = inner_products(self.rows, queries, positions)
        best = -np.partition(-scores, k - 1, axis=1)[:, k - 1]
        # Bound on exact minus approximate score, by the Cauchy-Schwarz inequality.
        lengths = given.norm(dim=1)
        most = off * self.longest + (lengths + off) * self.off + ROUNDING * lengths * self.longest
        least = (torch.from_numpy(best) - most) / scales
        rest = values[:, -1] >= least if size < len(self.rows) else torch.zeros(len(given), dtype=torch.bool)
        order = np.lexsort((positions, -scores), axis=-1)[:, :k]
        scores, positions = np.take_along_axis(scores, order, 1), np.take_along_axis(positions, order, 1)
        for number in torch.nonzero(rest).flatten().tolist():
            likely = torch.nonzero(rough[number] >= least[number]).flatten().numpy()
            exact = inner_products(self.rows, queries[number : number + 1], likely[None])[0]
            order = np.lexsort((likely, -exact))[:k]
            scores[number], positions[number] = exact[order], likely[order]
        return scores, positions

    def _rough(self, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Products [M, N or a little more] of the queries' codes [M, r] with the rows, and the largest of each group of them.

        Works in blocks, so that the products stay in the processor's cache until they are scaled and ranked.
        """
        N = len(self.rows)
        count = math.ceil(N / GROUP)
        rough, maxima = torch.empty(len(codes), count * GROUP), torch.empty(len(codes), count)
        rough[:, N:] = -torch.inf
        for start in range(0, N, self.block):
            end = min(start + self.block, N)
            products = torch._int_mm(codes, self.codes[start:end].T)
            torch.mul(products, self.scales[start:end], out=rough[:, start:end])
            columns = slice(start // GROUP, math.ceil(end / GROUP))
            groups = rough[:, start : columns.stop * GROUP].unflatten(1, (-1, GROUP))
            torch.amax(groups, dim=2, out=maxima[:, columns])
        return rough, maxima


def _rounded(vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(codes [N, r] in 8 bits, scales [N], distances [N] from the codes times the scales) of vectors [N, r]."""
    scales = vectors.abs().amax(dim=1).clamp_min(torch.finfo(torch.float32).tiny * STEPS) / STEPS
    rounded = (vectors / scales[:, None]).round_()
    return rounded.to(torch.int8), scales, (vectors - rounded * scales[:, None]).norm(dim=1)
