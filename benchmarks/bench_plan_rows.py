"""Learning to match by W processes that share the plan's rows, against one process that holds the whole plan.

    python benchmarks/bench_plan_rows.py                              # loss and gradient, B 2,048, 1 and 4 processes
    python benchmarks/bench_plan_rows.py --size 16384 --processes 4
    python benchmarks/bench_plan_rows.py --size 65536 --processes 4 --memory 1
    python benchmarks/bench_plan_rows.py --processes 1 4 --memory inf 0 --mass 0.8 --precision float64

Embeddings are synthetic "trained" ones (partners near). Each process computes on one thread. Rows that would take more than
--memory GiB of a process are computed again by tiles; its second number is for all but the first of --processes. Prints the
seconds and the growth of each process's memory from embeddings to gradients, in B^2/W floats, and the difference of loss and
gradients from those of the first. The difference must be below 1e-5 in float32 and 1e-6 in float64, or the run fails.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from side_by_side import compared, forget_peak, one_of_a_group, peak_resident_bytes, relative_error
from torch import Tensor, multiprocessing
from torch.nn import functional

from ray_atr.common.ranks import Ranks
from ray_atr.objectives.pairs import Comparison, PartialLearningToMatch

TOLERATED = {"float32": 1e-5, "float64": 1e-6}


def embeddings(B: int, D: int, precision: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    latent = torch.randn(B, D, generator=generator)
    u, v = (functional.normalize(latent + torch.randn(B, D, generator=generator), dim=1) for _ in range(2))
    dtype: torch.dtype = getattr(torch, precision)
    return u.to(dtype), v.to(dtype)


def loss_and_gradients(options: argparse.Namespace, memory: float) -> dict[str, Tensor]:
    u, v = (side.requires_grad_() for side in embeddings(options.size, options.width, options.precision))
    pair = PartialLearningToMatch(
        epsilon=options.epsilon, metric="euclidean", transport_mass=options.mass, max_iterations=options.sweeps
    )
    with Ranks.here().share(at_least=1, memory=memory * 2**30):
        terms = pair(Comparison(u, v))
    terms.loss.backward()
    assert u.grad is not None
    assert v.grad is not None
    return {"loss": terms.loss.detach(), "u": u.grad, "v": v.grad, **_evidence(terms.scalars)}


def _evidence(scalars: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: scalars[f"transport_{name}"] for name in ("iterations", "residual")}


def work(rank: int, size: int, folder: Path, options: argparse.Namespace, memory: float) -> None:
    torch.set_num_threads(1)
    with one_of_a_group(rank, size, folder) if size > 1 else nullcontext():
        found = measure(options, memory)
    if rank == 0:
        torch.save(found, folder / f"{size}.pt")


def measure(options: argparse.Namespace, memory: float) -> dict[str, Any]:
    """What this process finds and what that took."""
    forget_peak()
    before = peak_resident_bytes()
    began, cpu = time.perf_counter(), time.process_time()
    found = loss_and_gradients(options, memory)
    took = {"seconds": time.perf_counter() - began, "cpu": time.process_time() - cpu}
    return {**found, **took, "bytes": peak_resident_bytes() - before}


def by_processes(size: int, options: argparse.Namespace, folder: Path, memory: float) -> dict[str, Any]:
    multiprocessing.spawn(work, (size, folder, options, memory), nprocs=size)
    found: dict[str, Any] = torch.load(folder / f"{size}.pt")
    floats = found["bytes"] / torch.finfo(getattr(torch, options.precision)).bits * 8 / (options.size**2 / size)
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
    parser.add_argument("--mass", type=float, default=1.0, help="share of the mass that is transported; 1: balanced")
    parser.add_argument("--memory", type=float, nargs="+", default=[math.inf], help="GiB that held rows may take")
    parser.add_argument("--precision", default="float32", choices=TOLERATED)
    parser.add_argument("--sweeps", type=int, default=2000, help="the most that are made")
    options = parser.parse_args()
    print(f"B = {options.size}, epsilon = {options.epsilon}, mass = {options.mass}, {options.precision}")
    found = []
    for number, size in enumerate(options.processes):
        memory = options.memory[min(number, len(options.memory) - 1)]
        with tempfile.TemporaryDirectory() as folder:
            found.append((size, by_processes(size, options, Path(folder), memory)))
    (_, first), *others = found
    for size, other in others:
        errors = {name: relative_error(other[name], first[name]) for name in ("loss", "u", "v")}
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
        assert max(errors.values()) < TOLERATED[options.precision], errors


if __name__ == "__main__":
    main()
