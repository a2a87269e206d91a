"""Which entries of a base a part holds, and which part a worker searches: contiguous, in the order of both."""

from __future__ import annotations

from typing import NamedTuple

UNIT = 1024
"""Parts begin at multiples of it. FAISS multiplies the queries with as many entries at a time, and a source is encoded in blocks
that divide it. So each product has the shape that it has for a whole base, and is rounded alike."""
SEARCHED_IN_PARTS = ("exact", "flat")
"""The kinds of search that parts do as the whole: ivf's lists and hnsw's graphs of parts would find other neighbours."""


class BasePart(NamedTuple):
    """The part `number` (counted from 0) of a base in `of` parts."""

    number: int = 0
    of: int = 1

    @property
    def is_whole(self) -> bool:
        return self.of == 1

    def rows(self, count: int) -> slice:
        """Its entries among `count`. It can be empty: a base of fewer than `UNIT` entries a part is divided unevenly."""
        units = -(-count // UNIT)
        first, last = (min(count, UNIT * (number * units // self.of)) for number in (self.number, self.number + 1))
        return slice(first, last)

    def workers(self, size: int) -> range:
        """The ranks that search it, of `size` workers: neighbours, as on one node."""
        return range(-(-self.number * size // self.of), -(-(self.number + 1) * size // self.of))

    def worker_rows(self, count: int, rank: int, size: int) -> slice:
        """What falls to a worker of the part where each entry is to be worked on once."""
        mine, workers = self.rows(count), self.workers(size)
        length, place = mine.stop - mine.start, rank - workers.start
        first, last = (mine.start + length * number // len(workers) for number in (place, place + 1))
        return slice(first, last)


WHOLE = BasePart()


def part_of_worker(rank: int, size: int, parts: int) -> BasePart:
    """The part that a worker searches. There is a worker for every part: `parts` is at most `size`."""
    return BasePart(rank * parts // size, parts)
