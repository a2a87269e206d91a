"""What the benchmarks share: contenders measured in turn in one process, peaks of memory, recorded rows, and what is compared.

Times are CPU time of the process (all its threads), which other load on the machine disturbs less than wall time; a
round measures every contender once, so that what disturbs one disturbs all, and the median of the rounds is reported.
A timed run follows an untimed one of the same contender: what the one before left in the caches, and took out of them, is not
the next one's to pay for. `is_cold` leaves that out, as a step does that runs its towers between two losses.
"""

from __future__ import annotations

import contextlib
import io
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import soundfile
import torch
from rows import compared as compared
from torch import distributed
from torch.profiler import ProfilerActivity, profile

SLOW_SECONDS = 2.0
SLOW_ROUNDS = 3


def cpu_seconds(run: Callable[[], object]) -> float:
    """CPU seconds of this process, all its threads."""
    began = time.process_time()
    run()
    return time.process_time() - began


def cpu_milliseconds(
    contenders: Mapping[str, Callable[[], object]], rounds: int = 9, *, is_cold: bool = False
) -> dict[str, float]:
    """Median CPU milliseconds of each contender over interleaved rounds; those of over two seconds make three rounds."""
    took: dict[str, list[float]] = {name: [] for name in contenders}
    warm = {}
    for name, run in contenders.items():
        run()
        warm[name] = cpu_seconds(run)
    for number in range(rounds):
        for name, run in contenders.items():
            if warm[name] > SLOW_SECONDS and number >= SLOW_ROUNDS:
                continue
            if not is_cold and warm[name] <= SLOW_SECONDS:
                run()
            took[name].append(1e3 * cpu_seconds(run))
    return {name: statistics.median(times) for name, times in took.items()}


def peak_bytes(run: Callable[[], object]) -> int:
    """The most bytes of tensors alive at one time during a run, beyond those alive before it, by the allocator's own record."""
    run()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as record:
        run()
    events = record.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    alive = peak = 0
    for _, change in changes:
        alive += change
        peak = max(peak, alive)
    return peak


def peak_resident_bytes() -> int:
    """The most memory that this process has held since its start, or since `forget_peak`.

    Of its own program alone: `getrusage` would begin with the peak of the process that started this one.
    """
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def forget_peak() -> None:
    """Begin the peak of `peak_resident_bytes` anew, with the memory that is held now."""
    Path("/proc/self/clear_refs").write_text("5")


@contextlib.contextmanager
def one_of_a_group(rank: int, size: int, folder: Path) -> Iterator[None]:
    """This process, on one thread, as one of the `size` of a group, which all of them leave together."""
    torch.set_num_threads(1)
    store = distributed.FileStore(str(folder / f"store{size}"), size)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
    yield
    distributed.barrier()
    distributed.destroy_process_group()


def made_sounds(number: int, seconds: float, sample_rate: int, form: str) -> list[bytes]:
    """Files of noise that swells and fades, which compresses about as recordings do; `form` is soundfile's."""
    rng = np.random.default_rng(0)
    swell = np.sin(np.linspace(0, np.pi, round(seconds * sample_rate)))
    sounds = []
    for _ in range(number):
        file = io.BytesIO()
        soundfile.write(
            file, (0.1 * rng.standard_normal(len(swell)) * swell).astype(np.float32), sample_rate, format=form
        )
        sounds.append(file.getvalue())
    return sounds


def gradient_of(model: torch.nn.Module) -> torch.Tensor:
    """All gradients of a model, flat."""
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])


def relative_error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Norm of the difference over the norm of what is exact."""
    return float((found.double() - exact.double()).norm() / exact.double().norm())
