"""The contrastive loss of two processes against open_clip's local loss with gather-with-grad: time, memory, exactness.

    uv sync --group bench
    python benchmarks/bench_contrastive.py                  # B = 4,096, D = 1,024, two processes of one thread

Forward and backward of the loss with respect to the process's own float32 embeddings, interleaved, median of 9, on the
first process. Ours is what a training step does: each worker keeps its own pairs, and the texts go around; `tiles` is the same
where a worker does not hold its similarities. `gathered` is a gather, then the pair loss, whose similarities the workers share,
and `whole` the same with all similarities on each. Gradients are compared with those of one float64 process that holds the
batch.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from open_clip.loss import ClipLoss
from side_by_side import compared, one_of_a_group, peak_bytes, relative_error
from torch import Tensor, distributed, multiprocessing
from torch.nn import functional

from ray_atr.objectives import Comparison
from ray_atr.objectives.learned import NOTHING_LEARNED
from ray_atr.objectives.pairs import Contrastive
from ray_atr.objectives.pairs.pair_loss import OwnPairs
from ray_atr.training.group import WorkerGroup

WORKERS = 2
TEMPERATURE = 0.07
ROUNDS = 9

Step = Callable[[], tuple[Tensor, Tensor]]


def exact_gradient(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    u, v = (x.double().requires_grad_() for x in (u, v))
    logits, labels = u @ v.T / TEMPERATURE, torch.arange(len(u))
    loss = (functional.cross_entropy(logits, labels) + functional.cross_entropy(logits.T, labels)) / 2
    first, second = torch.autograd.grad(loss, (u, v))
    return first, second


def work(rank: int, folder: str, B: int, D: int) -> None:
    with one_of_a_group(rank, WORKERS, Path(folder)):
        compare(rank, B, D)


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

    def of_settings(u: Tensor, v: Tensor, shared_from: int) -> Tensor:
        with group.ranks.share(at_least=shared_from):
            return Contrastive(temperature=TEMPERATURE)(Comparison(group.gather(u), group.gather(v))).loss

    def around(u: Tensor, v: Tensor, memory: float) -> Tensor:
        nothing = u.new_zeros(B, 0)
        pairs = OwnPairs(Comparison(nothing, nothing), group.keep(u), group.keep(v), group.ring(B))
        with group.ranks.share(memory=memory):
            return Contrastive(temperature=TEMPERATURE).score_own(pairs, NOTHING_LEARNED).loss

    contenders: dict[str, Step] = {
        "ours": lambda: step(lambda u, v: around(u, v, math.inf)),
        "tiles": lambda: step(lambda u, v: around(u, v, 0)),
        "gathered": lambda: step(lambda u, v: of_settings(u, v, shared_from=1)),
        "whole": lambda: step(lambda u, v: of_settings(u, v, shared_from=0)),
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
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(work, args=(folder, options.batch, options.width), nprocs=WORKERS)


if __name__ == "__main__":
    main()
