"""What the benchmarks share: contenders measured in turn in one process, and the peak of live tensor memory.

Times are CPU time of the process (all its threads), which other load on the machine disturbs less than wall time; a
round measures every contender once, so that what disturbs one disturbs all, and the median of the rounds is reported.
A timed run follows an untimed one of the same contender: what the one before left in the caches, and took out of them, is not
the next one's to pay for. `is_cold` leaves that out, as a step does that runs its towers between two losses.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch
from torch.profiler import ProfilerActivity, profile

SLOW_SECONDS = 2.0
SLOW_ROUNDS = 3


def cpu_milliseconds(
    contenders: Mapping[str, Callable[[], object]], rounds: int = 9, *, is_cold: bool = False
) -> dict[str, float]:
    """Median CPU milliseconds of each contender over interleaved rounds; those of over two seconds make three rounds."""
    took: dict[str, list[float]] = {name: [] for name in contenders}
    warm = {}
    for name, run in contenders.items():
        run()
        began = time.process_time()
        run()
        warm[name] = time.process_time() - began
    for number in range(rounds):
        for name, run in contenders.items():
            if warm[name] > SLOW_SECONDS and number >= SLOW_ROUNDS:
                continue
            if not is_cold and warm[name] <= SLOW_SECONDS:
                run()
            began = time.process_time()
            run()
            took[name].append(1e3 * (time.process_time() - began))
    return {name: statistics.median(times) for name, times in took.items()}


def peak_bytes(run: Callable[[], object]) -> int:
    """The most bytes of tensors alive at one time during a run, beyond those alive before it, by the allocator's own record."""
    run()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as record:
        run()
    events = record.profiler.kineto_results.events()  # type: ignore[union-attr]
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    alive = peak = 0
    for _, change in changes:
        alive += change
        peak = max(peak, alive)
    return peak


def relative_error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Norm of the difference over the norm of what is exact."""
    return float((found.double() - exact.double()).norm() / exact.double().norm())
