"""Equal rows of a base, found once, so that a search orders them by their place and not by how their scores were rounded.

Two clips may have one caption, and noise gives it to more. Their texts' scores are equal but for the last digit, which
depends on chunks, threads and device; what a query then gets with them, the clips' audio, differs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

AT_A_TIME = 8_192
"""Rows whose numbers are multiplied at a time."""


class EqualRows:
    """Which rows of an array [N, D] are equal, by their `row_keys` [N]."""

    def __init__(self, keys: NDArray[np.uint64], device: torch.device) -> None:
        group = np.unique(keys, return_inverse=True)[1].reshape(-1).astype(np.int64)
        sizes = np.bincount(group)
        self.are_there = bool((sizes > 1).any())
        """Whether any two rows are equal."""
        if not self.are_there:
            return
        # The places of all rows, group by group and in order; where each group begins, and its number of rows.
        self.places = torch.from_numpy(np.argsort(group, kind="stable")).to(device)
        self.group, self.sizes = torch.from_numpy(group).to(device), torch.from_numpy(sizes).to(device)
        self.starts = self.sizes.cumsum(0) - self.sizes

    def in_order(self, scores: Tensor, found: Tensor) -> tuple[Tensor, Tensor]:
        """(scores, places) [B, k] of the k best rows, equal ones by their place.

        `found` [B, k] are k best rows, best first, with `scores` [B, k]; of equal ones any may be there. Every row that is
        better than the last one is there, so that the groups of the k best are.
        """
        groups = self.group[found]
        # A group counts where its first row is.
        ordered, order = groups.sort(dim=1, stable=True)
        again = torch.zeros_like(ordered, dtype=torch.bool)
        again[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
        sizes = self.sizes[groups].masked_fill(torch.zeros_like(again).scatter(1, order, again), 0)
        ends = sizes.cumsum(1)
        wanted = torch.arange(found.shape[1], device=found.device).expand(len(found), -1).contiguous()
        which = torch.searchsorted(ends, wanted, right=True)
        within = wanted - (ends - sizes).gather(1, which)
        return scores.gather(1, which), self.places[self.starts[groups.gather(1, which)] + within]


def row_keys(rows: NDArray[Any], present: NDArray[np.bool_] | None, first: int = 0) -> NDArray[np.uint64]:
    """A number of each row [n, D], the same for equal bytes; unequal rows share one by chance once in 2^64. Sums of integers,
    since they are the same in any order. A row where `present` [n] is False is equal to none; `first` is the place of the first
    row in the base.
    """
    rows = np.ascontiguousarray(rows)
    numbers: NDArray[Any] = rows.view(np.uint16 if rows.dtype.itemsize == 2 else np.uint32)
    random = np.random.default_rng(0).integers(0, 2**63, numbers.shape[1], dtype=np.uint64)
    factors = 2 * random + 1
    keys = np.empty(len(rows), np.uint64)
    for start in range(0, len(rows), AT_A_TIME):
        keys[start : start + AT_A_TIME] = (numbers[start : start + AT_A_TIME].astype(np.uint64) * factors).sum(axis=1)
    if present is not None:
        keys[~present] = ~(first + np.flatnonzero(~present)).astype(np.uint64)
    return keys
