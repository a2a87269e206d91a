"""The Mahalanobis cost, forward and backward, against the einsum over [B, B, D] of learning to match's released code.

    python benchmarks/bench_metric_cost.py                  # B = 256, D = 1,024

The released einsum reads only M's diagonal, whatever M is; it is checked against our `diagonal` on the same M. Our full M and
factored forms are checked against differences computed pair by pair in float64. One thread, float32.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from side_by_side import compared, cpu_milliseconds, peak_bytes
from torch import Tensor

from ray_atr.objectives.pairs import Comparison
from ray_atr.objectives.pairs.learning_to_match import normalised_cost


def released(u: Tensor, v: Tensor, metric: Tensor) -> Tensor:
    """As the released code computes it: every difference formed, the metric's diagonal read."""
    difference = u[:, None, :] - v[None, :, :]
    squared = torch.einsum("ijk,ikj,kk->ij", difference, difference.transpose(1, 2), metric)
    cost = squared.sqrt()
    return cost / cost.max()


def exact(u: Tensor, v: Tensor, metric: Tensor) -> Tensor:
    rows = [((x - v.double()) @ metric.double() * (x - v.double())).sum(dim=1).sqrt() for x in u.double()]
    cost = torch.stack(rows)
    return cost / cost.max()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--width", type=int, default=1024)
    options = parser.parse_args()
    torch.set_num_threads(1)
    B, D = options.batch, options.width
    generator = torch.Generator().manual_seed(0)
    u, v = (torch.nn.functional.normalize(torch.randn(B, D, generator=generator), dim=1) for _ in range(2))
    small = 0.01 * torch.randn(D, D, generator=generator)
    full = (small + small.T) / 2 + torch.eye(D)
    factor = torch.linalg.cholesky(full)
    low_rank = factor[:, :128].contiguous()

    def run(cost: Callable[[Tensor, Tensor, Tensor], Tensor], metric: Tensor) -> Callable[[], Tensor]:
        def step() -> Tensor:
            leaves = [x.detach().clone().requires_grad_() for x in (u, v, metric)]
            value = cost(*leaves)
            value.sum().backward()
            return value.detach()

        return step

    def ours(kind: str) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        return lambda a, b, metric: normalised_cost(Comparison(a, b), kind, metric)

    contenders = {
        "released (diagonal only)": run(released, full),
        "ours, diagonal": run(ours("diagonal"), full.diagonal().contiguous()),
        "ours, full M": run(ours("mahalanobis"), full),
        "ours, factored": run(ours("factored"), factor),
        "ours, factored, rank 128": run(ours("factored"), low_rank),
    }
    references = [
        contenders["released (diagonal only)"]().double(),
        contenders["released (diagonal only)"]().double(),
        exact(u, v, full),
        exact(u, v, full),
        exact(u, v, low_rank @ low_rank.T),
    ]
    times = cpu_milliseconds(contenders)
    for name in list(contenders)[1:]:
        compared(
            f"Mahalanobis cost, {name}",
            times[name],
            times["released (diagonal only)"],
            "the released einsum",
            at_most=1.0,
        )
    print(f"Mahalanobis cost, forward and backward, B = {B}, D = {D}")
    print(f"{'contender':28} {'ms':>9} {'speed-up':>9} {'peak MB':>9} {'error':>9}")
    for (name, step), reference in zip(contenders.items(), references, strict=True):
        error = float((step().double() - reference).abs().max())
        assert error < 1e-4, (name, error)
        speed_up = times["released (diagonal only)"] / times[name]
        print(f"{name:28} {times[name]:9.1f} {speed_up:9.1f} {peak_bytes(step) / 2**20:9.1f} {error:9.0e}", flush=True)


if __name__ == "__main__":
    main()
