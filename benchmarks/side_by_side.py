"""What the benchmarks share: contenders measured in turn in one process, the peak of live tensor memory, and recorded rows.

Times are CPU time of the process (all its threads), which other load on the machine disturbs less than wall time; a
round measures every contender once, so that what disturbs one disturbs all, and the median of the rounds is reported.
A timed run follows an untimed one of the same contender: what the one before left in the caches, and took out of them, is not
the next one's to pay for. `is_cold` leaves that out, as a step does that runs its towers between two losses.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

SLOW_SECONDS = 2.0
SLOW_ROUNDS = 3
ROWS = "RAY_ATR_BENCHMARK_ROWS"
"""Environment variable: the file to which `compared` appends its rows (`benchmarks/run.py` sets it)."""


def compared(
    what: str, ours: float, peer: float, peer_name: str, *, unit: str = "ms", at_most: float | None = None
) -> float:
    """The ratio ours / peer, recorded as a row if `benchmarks/run.py` asked for rows. `at_most` is its goal; None: no goal."""
    ratio = ours / peer
    if ROWS in os.environ:
        row = {
            "what": what,
            "ours": ours,
            "peer": peer,
            "peer_name": peer_name,
            "unit": unit,
            "ratio": ratio,
            "goal": at_most,
        }
        with Path(os.environ[ROWS]).open("a") as file:
            file.write(json.dumps(row) + "\n")
    return ratio


def cpu_milliseconds(
    contenders: Mapping[str, Callable[[], object]], rounds: int = 9, *, is_cold: bool = False
) -> dict[str, float]:
    """Median CPU milliseconds of each contender over interleaved rounds; those of over two seconds make three rounds."""
    took = cpu_rounds(contenders, rounds, is_cold=is_cold)
    return {name: statistics.median(times) for name, times in took.items()}


def cpu_rounds(
    contenders: Mapping[str, Callable[[], object]], rounds: int = 9, *, is_cold: bool = False
) -> dict[str, list[float]]:
    """CPU milliseconds of each contender in each of the rounds."""
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
    return took


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
