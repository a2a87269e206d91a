"""Which entries of a base a part holds, and which part a worker searches. Both are divided into contiguous ranges."""

from __future__ import annotations

from typing import NamedTuple

UNIT = 1024
"""Parts begin at multiples of it. FAISS multiplies the queries with this many entries at a time, and a source is encoded in
blocks that divide it. So each product has the same shape, and rounding, as for a base in one part."""
SEARCHED_IN_PARTS = ("exact", "flat")
"""The kinds of search that find the same neighbours in parts; ivf's lists and hnsw's graphs of parts would find others."""


class BasePart(NamedTuple):
    """The part `number` (counted from 0) of a base in `of` parts."""

    number: int = 0
    of: int = 1

    @property
    def is_whole(self) -> bool:
        return self.of == 1

    def rows(self, count: int) -> slice:
        """Its entries among `count`. Can be empty: a base of fewer than `UNIT` entries for each part is divided unevenly."""
        units = -(-count // UNIT)
        first, last = (min(count, UNIT * (number * units // self.of)) for number in (self.number, self.number + 1))
        return slice(first, last)

    def workers(self, size: int) -> range:
        """The ranks that search it, of `size` workers: consecutive ones, which are on one node."""
        return range(-(-self.number * size // self.of), -(-(self.number + 1) * size // self.of))

    def worker_rows(self, count: int, rank: int, size: int) -> slice:
        """A worker's share of the part's entries, where the workers of the part divide them."""
        mine, workers = self.rows(count), self.workers(size)
        length, place = mine.stop - mine.start, rank - workers.start
        first, last = (mine.start + length * number // len(workers) for number in (place, place + 1))
        return slice(first, last)


WHOLE = BasePart()


def part_of_worker(rank: int, size: int, parts: int) -> BasePart:
    """The part that a worker searches. There is a worker for every part: `parts` is at most `size`."""
    return BasePart(rank * parts // size, parts)
