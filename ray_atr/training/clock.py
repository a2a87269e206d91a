"""Seconds by part of the training, on the host (a GPU may still be computing)."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

Item = TypeVar("Item")


class Clock:
    """Adds up seconds by part until they are `taken`."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.steps: list[float] = []
        self._unspent = 0.0

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        """Counts the time of a block for a part."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[part] += time.perf_counter() - started

    def waiting(self, items: Iterator[Item]) -> Iterator[Item]:
        """The items. The time until each is available counts as `data`; the time of the loop's body does not."""
        started = time.perf_counter()
        for item in items:
            waited = time.perf_counter() - started
            self.seconds["data"] += waited
            self._unspent += waited
            yield item
            started = time.perf_counter()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Counts a step."""
        started = time.perf_counter()
        yield
        self.steps.append(time.perf_counter() - started)
        self._unspent += self.steps[-1]

    def spent(self) -> float:
        """Seconds of steps, and of waiting for their batches, since the last call."""
        spent, self._unspent = self._unspent, 0.0
        return spent

    def taken(self) -> dict[str, float]:
        """Seconds by part, and of the median step, since the last call."""
        taken, steps, self.seconds, self.steps = dict(self.seconds), self.steps, defaultdict(float), []
        return taken | ({"step": statistics.median(steps)} if steps else {})
