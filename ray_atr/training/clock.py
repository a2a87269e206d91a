"""Where a run's time goes: seconds by part of the training, as the host sees them (a GPU may still be computing)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")


class Clock:
    """Adds up seconds by part until they are `taken`."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.steps: list[float] = []
        self._unspent = 0.0

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Counts the time of a block for a part."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - started

    def waiting(self, part: str, items: Iterator[Item]) -> Iterator[Item]:
        """The items; the time until each is there counts for the part, what is done with it does not."""
        while True:
            started = time.perf_counter()
            try:
                item = next(items)
            except StopIteration:
                return
            waited = time.perf_counter() - started
            self.seconds[part] = self.seconds.get(part, 0.0) + waited
            self._unspent += waited
            yield item

    @contextmanager
    def step(self) -> Iterator[None]:
        """Counts a step."""
        started = time.perf_counter()
        yield
        self.steps.append(time.perf_counter() - started)
        self._unspent += self.steps[-1]

    def spent(self) -> float:
        """Seconds of steps and of waiting for their batches since the last time."""
        spent, self._unspent = self._unspent, 0.0
        return spent

    def taken(self) -> dict[str, float]:
        """Seconds by part, and the median step, since the last time; counting starts again."""
        taken, steps, self.seconds, self.steps = self.seconds, self.steps, {}, []
        return taken | ({"step": statistics.median(steps)} if steps else {})
