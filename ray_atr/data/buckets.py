"""Texts of similar length together, so that little of a padded batch is padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def by_length(lengths: Sequence[int], size: int) -> Iterator[list[int]]:
    """The row numbers of `lengths`, shortest first (ties in their order), at most `size` at a time."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    for start in range(0, len(order), size):
        yield order[start : start + size]
