"""Learning to match by W processes that share the plan's rows, against one process that holds the whole plan.

    python benchmarks/bench_plan_rows.py                              # loss and gradient, B 2,048, 1 and 4 processes
    python benchmarks/bench_plan_rows.py --size 16384 --processes 4
    python benchmarks/bench_plan_rows.py --size 65536 --tile 256      # potentials alone, rows computed again for each sweep

Embeddings are synthetic "trained" ones (partners near). Each process computes on one thread. Prints the seconds and the growth of
each process's memory from embeddings to gradients, in B^2/W floats, and the difference of loss and gradients (with
--tile of the columns' potentials) from those of one process. The difference must be below 1e-5 in float32, or the run fails.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from side_by_side import compared, one_of_a_group, peak_resident_bytes, relative_error
from torch import Tensor, multiprocessing
from torch.nn import functional

from ray_atr.objectives.pairs import Comparison, LearningToMatch
from ray_atr.objectives.ranks import Ranks
from ray_atr.objectives.transport.across_ranks import balanced_sweeps
from ray_atr.objectives.transport.row_blocks import TiledRows

TOLERATED = 1e-5


def embeddings(B: int, D: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    latent = torch.randn(B, D, generator=generator)
    u, v = (functional.normalize(latent + torch.randn(B, D, generator=generator), dim=1) for _ in range(2))
    return u, v


def loss_and_gradients(B: int, D: int, epsilon: float) -> dict[str, Tensor]:
    u, v = (side.requires_grad_() for side in embeddings(B, D))
    with Ranks.here().share(at_least=1):
        terms = LearningToMatch(epsilon=epsilon, metric="euclidean")(Comparison(u, v))
    terms.loss.backward()
    assert u.grad is not None
    assert v.grad is not None
    return {"loss": terms.loss.detach(), "u": u.grad, "v": v.grad, **_evidence(terms.scalars)}


def _evidence(scalars: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: scalars[f"transport_{name}"] for name in ("iterations", "residual")}


def potentials(B: int, D: int, epsilon: float, tile: int, sweeps: int) -> dict[str, Tensor]:
    """The columns' potentials of the plan, whose cost is at most 1 with the largest distance of unit vectors, 2."""
    u, v = embeddings(B, D)
    ranks = Ranks.here()
    own = u[ranks.own(B)]

    def make(rows: slice) -> Tensor:
        squared = (own[rows] @ (-2 * v).T).add_(2)
        return squared.clamp_(min=1e-12).sqrt_().mul_(-0.5 / epsilon)

    mass = torch.full((B,), 1 / B)
    block = TiledRows(make, len(own), tile, ranks)
    _, column, residual, iterations = balanced_sweeps(block, mass[ranks.own(B)], mass, 1e-5, sweeps)
    return {"column": column, "residual": torch.tensor(residual), "iterations": torch.tensor(iterations)}


def work(rank: int, size: int, folder: Path, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    with one_of_a_group(rank, size, folder) if size > 1 else nullcontext():
        found = measure(options)
    if rank == 0:
        torch.save(found, folder / f"{size}.pt")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """What this process finds and what that took."""
    before = peak_resident_bytes()
    began, cpu = time.perf_counter(), time.process_time()
    if options.tile:
        found = potentials(options.size, options.width, options.epsilon, options.tile, options.sweeps)
    else:
        found = loss_and_gradients(options.size, options.width, options.epsilon)
    took = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu}
    return {**found, **took, "bytes": peak_resident_bytes() - before}


def by_processes(size: int, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    multiprocessing.spawn(work, (size, folder, options), nprocs=size)
    found: dict[str, Any] = torch.load(folder / f"{size}.pt")
    floats = found["bytes"] / 4 / (options.size**2 / size)
    print(
        f"{size} processes: {found['seconds']:.1f} s, {found['cpu']:.1f} s of CPU each, {found['bytes'] / 2**20:.0f} MiB more "
        f"each ({floats:.2f} x B^2/W floats), {int(found['iterations'])} sweeps, residual {float(found['residual']):.1e}",
        flush=True,
    )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=2048, help="B")
    parser.add_argument(
        "--processes", type=int, nargs="+", default=[1, 4], help="the first is what the others must equal"
    )
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--epsilon", type=float, default=0.05)
    parser.add_argument("--tile", type=int, default=0, help="rows computed at a time; 0: rows are held")
    parser.add_argument("--sweeps", type=int, default=2000, help="with --tile: the most that are made")
    options = parser.parse_args()
    print(f"B = {options.size}, epsilon = {options.epsilon}, float32")
    with tempfile.TemporaryDirectory() as folder:
        found = {size: by_processes(size, options, Path(folder)) for size in options.processes}
    first = found[options.processes[0]]
    for size, other in list(found.items())[1:]:
        names = [name for name in ("loss", "u", "v", "column") if name in other]
        errors = {name: relative_error(other[name], first[name]) for name in names}
        print(
            f"{size} against {options.processes[0]}:",
            ", ".join(f"{name} {value:.1e}" for name, value in errors.items()),
        )
        compared(
            f"shared plan, B = {options.size}, memory of one of {size} processes",
            other["bytes"] / 2**20,
            first["bytes"] / 2**20,
            f"{options.processes[0]} process",
            unit="MiB",
        )
        assert max(errors.values()) < TOLERATED, errors


if __name__ == "__main__":
    main()
