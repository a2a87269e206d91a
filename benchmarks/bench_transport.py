"""Learning to match's transport, forward and backward with respect to the cost, against POT and ott-jax in one run.

    uv sync --group bench
    python benchmarks/bench_transport.py                    # balanced at B = 64, 256 and 1,024, partial at B = 256, memory
    python benchmarks/bench_transport.py --part partial

All contenders start from the same float32 cost of synthetic "trained" embeddings (partners near, clusters of hard negatives)
and end with the gradient of KL(I/B || plan); one thread. `error` is the gradient's relative error against ours in float64
at a tolerance of 1e-12, which the tests hold against finite differences. Ours must be below 1e-3, or the run fails.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import ot
import torch
from ott.geometry import geometry
from ott.problems.linear import linear_problem
from ott.solvers.linear import sinkhorn
from side_by_side import compared, cpu_milliseconds, peak_bytes, relative_error
from torch import Tensor

from ray_atr.objectives.transport import matching_loss

Gradient = Callable[[], Tensor]


def trained_cost(B: int, D: int = 512, *, wrong: float = 0.0) -> Tensor:
    """Distances over their maximum, [B, B] float32; a share of the partners may be wrong."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(B // 8, D, generator=generator)
    latent = 0.8 * centres[torch.randint(len(centres), (B,), generator=generator)]
    latent = latent + torch.randn(B, D, generator=generator)
    u, v = (torch.nn.functional.normalize(latent + torch.randn(B, D, generator=generator), dim=1) for _ in range(2))
    num_wrong = int(wrong * B)
    v[:num_wrong] = v[:num_wrong].roll(1, 0)
    cost = torch.cdist(u, v)
    return cost / cost.max()


def divergence(plan: Tensor) -> Tensor:
    """KL(I/B || plan)."""
    B = len(plan)
    return -(plan.diagonal().log().mean() + math.log(B))


def gradient_of(loss: Callable[[Tensor], Tensor], cost: Tensor) -> Tensor:
    cost = cost.detach().clone().requires_grad_()
    loss(cost).backward()
    assert cost.grad is not None
    return cost.grad


def ours(cost: Tensor, epsilon: float, mass: float = 1.0) -> Tensor:
    return gradient_of(lambda c: matching_loss(c, epsilon, mass=mass)[0], cost)


def exact(cost: Tensor, epsilon: float, mass: float = 1.0) -> Tensor:
    return gradient_of(lambda c: matching_loss(c, epsilon, mass=mass, tolerance=1e-12)[0], cost.double())


def pot_unrolled(cost: Tensor, epsilon: float) -> Tensor:
    """As the paper's code calls it: a graph through every sweep."""
    uniform = torch.full((len(cost),), 1 / len(cost))
    return gradient_of(lambda c: divergence(ot.sinkhorn(uniform, uniform, c, reg=epsilon, warn=False)), cost)


def pot_envelope(cost: Tensor, epsilon: float) -> Tensor:
    def loss(c: Tensor) -> Tensor:
        value = ot.solve_batch(c[None], reg=epsilon, max_iter=2000, tol=1e-5, grad="envelope").value[0]
        return (c.diagonal().mean() - value) / epsilon

    return gradient_of(loss, cost)


def make_ott(cost: Tensor, epsilon: float) -> Gradient:
    B = len(cost)
    solver = sinkhorn.Sinkhorn(lse_mode=False, threshold=1e-5, max_iterations=2000)

    @jax.jit
    @jax.grad
    def gradient(c: jax.Array) -> jax.Array:
        found = solver(linear_problem.LinearProblem(geometry.Geometry(cost_matrix=c, epsilon=epsilon)))
        assert found.reg_ot_cost is not None
        return (jnp.trace(c) / B - found.reg_ot_cost) / epsilon

    given = jnp.asarray(cost.numpy())
    return lambda: torch.from_numpy(np.array(gradient(given).block_until_ready()))


def pot_partial(cost: Tensor, epsilon: float, mass: float) -> Tensor:
    """As the paper's code calls it: 1,000 projections and their graph."""
    uniform = torch.full((len(cost),), 1 / len(cost))
    plan = partial(ot.partial.entropic_partial_wasserstein, uniform, uniform, reg=epsilon, m=mass)
    return gradient_of(lambda c: divergence(plan(M=c)), cost)


def pot_partial_log(cost: Tensor, epsilon: float, mass: float) -> Tensor:
    """Its log-domain variant, 100 projections."""
    uniform = torch.full((len(cost),), 1 / len(cost))
    plan = partial(
        ot.partial.entropic_partial_wasserstein_logscale,
        uniform,
        uniform,
        reg=epsilon,
        m=torch.tensor(mass),
        numItermax=100,
    )
    return gradient_of(lambda c: divergence(plan(M=c)), cost)


def report(title: str, contenders: dict[str, Gradient], reference: Tensor) -> None:
    errors = {name: relative_error(run(), reference) for name, run in contenders.items()}
    warm, cold = cpu_milliseconds(contenders), cpu_milliseconds(contenders, is_cold=True)
    print(f"\n{title}\n{'contender':34} {'ms':>10} {'over ours':>10} {'cold ms':>10} {'over ours':>10} {'error':>9}")
    for name in contenders:
        ratios = (
            f"{warm[name]:10.2f} {warm[name] / warm['ours']:10.1f} {cold[name]:10.2f} {cold[name] / cold['ours']:10.1f}"
        )
        print(f"{name:34} {ratios} {errors[name]:9.0e}", flush=True)
    for what, times in ((title, warm), (f"{title}, cold", cold)):
        fastest = min(times.keys() - {"ours"}, key=times.__getitem__)
        compared(what, times["ours"], times[fastest], fastest, at_most=1.0)
    assert errors["ours"] < 1e-3, errors


def balanced(B: int, epsilon: float) -> None:
    cost = trained_cost(B)
    contenders: dict[str, Gradient] = {
        "ours": lambda: ours(cost, epsilon),
        "POT solve_batch (envelope)": lambda: pot_envelope(cost, epsilon),
        "ott-jax (jitted, kernel)": make_ott(cost, epsilon),
        "POT sinkhorn (unrolled)": lambda: pot_unrolled(cost, epsilon),
    }
    report(f"balanced, B = {B}, epsilon = {epsilon}", contenders, exact(cost, epsilon))


def partial_transport(B: int, epsilon: float, mass: float) -> None:
    cost = trained_cost(B, wrong=0.3)
    contenders: dict[str, Gradient] = {
        "ours": lambda: ours(cost, epsilon, mass),
        "POT partial, log scale, 100": lambda: pot_partial_log(cost, epsilon, mass),
        "POT partial (paper's call)": lambda: pot_partial(cost, epsilon, mass),
    }
    report(f"partial, B = {B}, epsilon = {epsilon}, mass = {mass}", contenders, exact(cost, epsilon, mass))


def memory(B: int) -> None:
    """Peak of live tensors from embeddings to their gradients, in units of B^2 floats."""
    from ray_atr.objectives.pairs import Comparison, LearningToMatch

    generator = torch.Generator().manual_seed(0)
    u, v = (torch.randn(B, 64, generator=generator) for _ in range(2))

    def step(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        a, b = (torch.nn.functional.normalize(x, dim=1).requires_grad_() for x in (u, v))
        loss(a, b).backward()

    def unrolled(a: Tensor, b: Tensor) -> Tensor:
        cost = torch.cdist(a, b)
        uniform = torch.full((B,), 1 / B)
        return divergence(ot.sinkhorn(uniform, uniform, cost / cost.max(), reg=0.05, warn=False))

    peer = "POT sinkhorn (unrolled)"
    mine = peak_bytes(partial(step, lambda a, b: LearningToMatch(metric="euclidean")(Comparison(a, b)).loss))
    theirs = peak_bytes(partial(step, unrolled))
    print(f"\npeak of live tensors, B = {B}, in B^2 floats")
    for name, peak in (("ours", mine), (peer, theirs)):
        print(f"{name:34} {peak / (4 * B * B):10.2f}", flush=True)
    compared(f"learning to match, B = {B}, peak memory", mine, theirs, peer, unit="bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("balanced", "partial", "memory", "all"), default="all")
    part = parser.parse_args().part
    torch.set_num_threads(1)
    if part in ("balanced", "all"):
        for B, epsilon in ((64, 0.05), (64, 0.1), (256, 0.03), (256, 0.05), (256, 0.1), (1024, 0.05), (1024, 0.1)):
            balanced(B, epsilon)
    if part in ("partial", "all"):
        for mass in (0.95, 0.6):
            partial_transport(256, 0.05, mass)
    if part in ("memory", "all"):
        memory(1024)


if __name__ == "__main__":
    main()
