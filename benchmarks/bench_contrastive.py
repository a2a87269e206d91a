"""The contrastive loss of two processes against open_clip's local loss with gather-with-grad: time, memory, exactness.

    uv sync --group bench
    python benchmarks/bench_contrastive.py                  # B = 4,096, D = 1,024, two processes of one thread
    python benchmarks/bench_contrastive.py --frames 100     # whole steps, with towers; clips of a second
    python benchmarks/bench_contrastive.py --frames 100 --latency 200

Forward and backward of the loss with respect to the process's own float32 embeddings, interleaved, median of 9, on the
first process. Ours is what a training step does: each worker keeps its own pairs, and the texts go around; `tiles` is the same
where a worker does not hold its similarities. `gathered` is a gather, then the pair loss, with all similarities on each.
Gradients are compared with those of one float64 process that holds the batch.

With --frames it is a whole training step of small towers, wall time on the first process, median of 4. `ours` waits for the
gradients of its texts when the audio tower has been back-propagated, `waits` before; both are to leave the same gradients. With
--latency each block arrives so many milliseconds after it was sent, as on a slow network.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import torch
from bench_step_memory import MadeStep
from open_clip.loss import ClipLoss
from side_by_side import compared, one_of_a_group, peak_bytes, relative_error
from torch import Tensor, distributed, multiprocessing
from torch.nn import functional

import ray_atr.objectives.pairs.ring as ring_module
import ray_atr.training.step as step_module
from ray_atr.common.ranks import Ranks
from ray_atr.objectives import Comparison
from ray_atr.objectives.pairs import Contrastive
from ray_atr.objectives.pairs.learned import NOTHING_LEARNED
from ray_atr.objectives.pairs.pair_loss import OwnPairs
from ray_atr.objectives.pairs.ring import PendingGradients, _Exchange
from ray_atr.training.group import WorkerGroup

WORKERS = 2
TEMPERATURE = 0.07
ROUNDS = 9
STEP_ROUNDS = 4

Step = Callable[[], tuple[Tensor, Tensor]]


def exact_gradient(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    u, v = (x.double().requires_grad_() for x in (u, v))
    logits, labels = u @ v.T / TEMPERATURE, torch.arange(len(u))
    loss = (functional.cross_entropy(logits, labels) + functional.cross_entropy(logits.T, labels)) / 2
    first, second = torch.autograd.grad(loss, (u, v))
    return first, second


def work(rank: int, folder: str, options: argparse.Namespace) -> None:
    with one_of_a_group(rank, WORKERS, Path(folder)):
        if options.frames:
            compare_steps(rank, options.batch, options.frames, options.latency / 1e3)
        else:
            compare(rank, options.batch, options.width)


class WaitsAtOnce(PendingGradients):
    """Gradients of texts are waited for where the loss is back-propagated."""

    def add(self, used: Tensor, received: Callable[[], Tensor]) -> None:
        come = received()
        super().add(used, lambda: come)


class SlowExchange(_Exchange):
    """What arrives no sooner than `seconds` after it was sent."""

    seconds = 0.0

    def __init__(self, ranks: Ranks, sent: Tensor, received: Tensor) -> None:
        super().__init__(ranks, sent, received)
        self.arrives = time.monotonic() + self.seconds

    def received(self) -> Tensor:
        into = super().received()
        time.sleep(max(0.0, self.arrives - time.monotonic()))
        return into


def compare_steps(rank: int, B: int, frames: int, latency: float) -> None:
    """Wall time of a step where the texts' gradients are waited for last, at once, and where embeddings are gathered."""
    SlowExchange.seconds = latency
    made = MadeStep(B // WORKERS, frames, 1, group=WorkerGroup(rank, WORKERS, share_losses_from=1))

    def step(waits: type[PendingGradients], is_around: bool = True) -> None:
        with (
            mock.patch.object(ring_module, "_Exchange", SlowExchange),
            mock.patch.object(step_module, "PendingGradients", waits),
            mock.patch.object(step_module, "goes_around", return_value=is_around),
        ):
            made("contrastive", 0, 0)

    contenders: dict[str, Callable[[], None]] = {
        "ours": lambda: step(PendingGradients),
        "waits": lambda: step(WaitsAtOnce),
        "gathered": lambda: step(PendingGradients, is_around=False),
    }
    gradients = {name: made.gradient(run) for name, run in contenders.items()}
    walls: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(STEP_ROUNDS):
        for name, run in contenders.items():
            distributed.barrier()
            began = time.perf_counter()
            run()
            walls[name].append(1e3 * (time.perf_counter() - began))
    if rank == 0:
        assert torch.equal(gradients["ours"], gradients["waits"])
        assert relative_error(gradients["ours"], gradients["gathered"]) < 1e-5
        took = {name: statistics.median(times) for name, times in walls.items()}
        print(f"a step, {WORKERS} processes, B = {B}, {frames} frames, {1e3 * latency:.0f} ms a block: ", end="")
        print(", ".join(f"{name} {value:.0f} ms" for name, value in took.items()))
        what = f"step with towers, 2 processes, B {B}, {1e3 * latency:.0f} ms a block, wall"
        for name in ("waits", "gathered")[: 1 if latency else 2]:
            compared(what, took["ours"], took[name], name, at_most=1.1)


def compare(rank: int, B: int, D: int) -> None:
    """The costs of every contender and its errors, printed by the first process."""
    generator = torch.Generator().manual_seed(0)
    whole_u = functional.normalize(torch.randn(B, D, generator=generator), dim=1)
    whole_v = functional.normalize(whole_u + functional.normalize(torch.randn(B, D, generator=generator), dim=1), dim=1)
    share = slice(rank * B // WORKERS, (rank + 1) * B // WORKERS)

    def step(loss: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        u, v = (x[share].detach().clone().requires_grad_() for x in (whole_u, whole_v))
        loss(u, v).backward()
        assert u.grad is not None
        assert v.grad is not None
        return u.grad, v.grad

    peer = ClipLoss(local_loss=True, gather_with_grad=True, cache_labels=True, rank=rank, world_size=WORKERS)
    group = WorkerGroup(rank, WORKERS)

    def gathered(u: Tensor, v: Tensor) -> Tensor:
        return Contrastive(temperature=TEMPERATURE)(Comparison(group.gather(u), group.gather(v))).loss

    def around(u: Tensor, v: Tensor, memory: float) -> Tensor:
        nothing = u.new_zeros(B, 0)
        pairs = OwnPairs(Comparison(nothing, nothing), group.keep(u), group.keep(v), group.ring(B))
        with group.ranks.share(memory=memory):
            return Contrastive(temperature=TEMPERATURE).score_own(pairs, NOTHING_LEARNED).loss

    contenders: dict[str, Step] = {
        "ours": lambda: step(lambda u, v: around(u, v, math.inf)),
        "tiles": lambda: step(lambda u, v: around(u, v, 0)),
        "gathered": lambda: step(gathered),
        "open_clip": lambda: step(lambda u, v: peer(u, v, 1 / TEMPERATURE)),
    }
    found = {name: run() for name, run in contenders.items()}
    walls: dict[str, list[float]] = {name: [] for name in contenders}
    processor: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        for name, run in contenders.items():
            distributed.barrier()
            wall, used = time.perf_counter(), time.process_time()
            run()
            walls[name].append(time.perf_counter() - wall)
            processor[name].append(time.process_time() - used)
    peaks = {name: peak_bytes(run) for name, run in contenders.items()}
    if rank == 0:
        exact = exact_gradient(whole_u, whole_v)
        print(f"contrastive, {WORKERS} processes, B = {B}, D = {D}")
        print(f"{'contender':12} {'cpu ms':>9} {'wall ms':>9} {'peak MB':>9} {'error':>9}")
        for name in contenders:
            # Averaging over the processes, as DDP does, divides by their number.
            errors = [
                relative_error(gradient / WORKERS, whole[share])
                for gradient, whole in zip(found[name], exact, strict=True)
            ]
            assert max(errors) < 1e-5, (name, errors)
            cpu, wall = (1e3 * statistics.median(times[name]) for times in (processor, walls))
            print(f"{name:12} {cpu:9.0f} {wall:9.0f} {peaks[name] / 2**20:9.1f} {max(errors):9.0e}")
        ratios = [
            compared(
                f"contrastive loss, 2 processes, B {B}, {name}",
                1e3 * statistics.median(times["ours"]),
                1e3 * statistics.median(times["open_clip"]),
                "open_clip",
                at_most=1.1,
            )
            for name, times in (("CPU", processor), ("wall", walls))
        ]
        for what, times in (("CPU", processor), ("wall", walls)):
            ours, before = (1e3 * statistics.median(times[name]) for name in ("ours", "gathered"))
            compared(f"texts go around, 2 processes, B {B}, {what}", ours, before, "gathered", at_most=1.1)
        compared(
            "contrastive loss, peak memory", peaks["ours"], peaks["open_clip"], "open_clip", unit="bytes", at_most=1.0
        )
        print(
            f"ours over open_clip: cpu {ratios[0]:.2f}, wall {ratios[1]:.2f}, memory {peaks['ours'] / peaks['open_clip']:.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument(
        "--frames", type=int, default=0, help="log-mel frames of a clip, for whole steps; 0: losses alone"
    )
    parser.add_argument("--latency", type=float, default=0.0, help="milliseconds that a block travels, in whole steps")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(work, args=(folder, options), nprocs=WORKERS)


if __name__ == "__main__":
    main()
