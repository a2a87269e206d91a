"""Equal rows of a base, so that a search orders them by their index and not by how their scores were rounded.

Two clips may have the same caption, and noise gives it to more. Their texts' scores differ in the last digit at most, depending
on chunks, threads and device; but the clips' audio, which a query gets with them, differs.
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
    """Which rows of an array [N, D] are equal, by their `row_keys` [N]. Stores only the rows that have an equal one."""

    def __init__(self, keys: NDArray[np.uint64], device: torch.device) -> None:
        order = np.argsort(keys, kind="stable")
        is_first = np.diff(keys[order], prepend=~keys[order[:1]]) != 0
        sizes = np.diff(np.flatnonzero(is_first), append=len(keys))
        self.any_equal = bool((sizes > 1).any())
        if not self.any_equal:
            return
        # The numbers of these rows, group by group and in order; where each group begins, and its number of rows.
        row_numbers, sizes = order[np.repeat(sizes > 1, sizes)], sizes[sizes > 1]
        self.starts, self.sizes = self._as_int32(np.cumsum(sizes) - sizes, device), self._as_int32(sizes, device)
        self.row_numbers = self._as_int32(row_numbers, device)
        # The same numbers in order, and the group of each.
        self.sorted = self._as_int32(np.sort(row_numbers), device)
        self.group = self._as_int32(np.repeat(np.arange(len(sizes)), sizes)[np.argsort(row_numbers)], device)

    @staticmethod
    def _as_int32(numbers: NDArray[np.int64], device: torch.device) -> Tensor:
        return torch.from_numpy(numbers.astype(np.int32)).to(device)

    def in_order(self, scores: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """(scores, row numbers) [B, k] of the k best rows, equal ones in the order of their index.

        `positions` [B, k] are k best rows, best first, with their `scores` [B, k]; of equal rows, any may be among them. They
        contain every row that is better than the last one, and so a row of every group among the k best.
        """
        if not self.any_equal:
            return scores, positions
        place_in_sorted = torch.searchsorted(self.sorted, positions.int()).clamp(max=len(self.sorted) - 1)
        # A row without an equal is a group of its own, of a number that no other group has.
        G = len(self.sizes)
        groups = self.group[place_in_sorted].long().where(self.sorted[place_in_sorted] == positions, G + positions)
        # Where there is no result, any position may be named several times.
        wanted = torch.arange(positions.shape[1], device=positions.device).expand(len(positions), -1).contiguous()
        groups = groups.where(scores > -torch.inf, G + 2**31 + wanted)
        # Each group is placed at its first occurrence; later ones get size 0.
        ordered, order = groups.sort(dim=1, stable=True)
        is_repeated = torch.zeros_like(ordered, dtype=torch.bool)
        is_repeated[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
        sizes = self.sizes[groups.clamp(max=G - 1)].long().where(groups < G, 1)
        sizes = sizes.masked_fill(torch.zeros_like(is_repeated).scatter(1, order, is_repeated), 0)
        ends = sizes.cumsum(1)
        which = torch.searchsorted(ends, wanted, right=True)
        within = wanted - (ends - sizes).gather(1, which)
        chosen = groups.gather(1, which)
        is_equal = chosen < G
        row_numbers = self.row_numbers[(self.starts[chosen.clamp(max=G - 1)] + within).where(is_equal, 0)]
        return scores.gather(1, which), row_numbers.long().where(is_equal, chosen - G)


def row_keys(rows: NDArray[Any], present: NDArray[np.bool_] | None, first: int = 0) -> NDArray[np.uint64]:
    """A number for each row [n, D]: equal for equal bytes, and for other rows with a chance of 2^-64. A sum of integers, so that
    the order of summation does not matter. A row where `present` [n] is False is equal to none; `first` is the index of the
    first row in the base.
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
