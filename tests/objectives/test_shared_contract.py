"""A loss that workers share is the loss of one process: by pair loss, positives, weights, way to share, and 1 to 3 ranks."""

from __future__ import annotations

import itertools
import math
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import ray_atr.objectives.pairs.tiled_matching as tiled_matching
from ray_atr.common.ranks import Ranks
from ray_atr.objectives import same_group
from ray_atr.objectives.pairs import (
    PAIRS,
    Comparison,
    Contrastive,
    LearningToMatch,
    PairLoss,
    PartialLearningToMatch,
    Sigmoid,
)
from ray_atr.objectives.pairs.learned import Learned
from ray_atr.objectives.pairs.pair_loss import OwnPairs
from ray_atr.objectives.pairs.ring import Ring
from tests.support.pot_plans import pot_plan
from tests.support.threads import run_threads
from tests.support.whole_product import IS_WHOLE, ONLY_IN_WHOLE

N, D, TAU, BIAS, EPSILON, MASS = 7, 4, 0.3, -1.0, 0.2, 0.7
PLANS: dict[str, PairLoss] = {
    "learning_to_match": LearningToMatch(epsilon=EPSILON, metric="euclidean"),
    "partial_learning_to_match": PartialLearningToMatch(epsilon=EPSILON, metric="euclidean", transport_mass=MASS),
    "followed": PartialLearningToMatch(epsilon=EPSILON, metric="euclidean", transport_mass=MASS, target="followed"),
    "learned metric": LearningToMatch(epsilon=EPSILON, metric="mahalanobis"),
}
LOSSES: dict[str, PairLoss] = {**{name: loss() for name, loss in PAIRS.items()}, **PLANS}
GROUPS: dict[str, Tensor | None] = {
    "alone": None,
    "captions": torch.tensor([0, 1, 2, 0, 3, 1, 0])[:, None],
    # The second column joins pairs that the first does not: not all positives of a positive are one's own.
    "captions and clips": torch.tensor([[0, 0], [1, 1], [2, 2], [0, 3], [3, 1], [4, 4], [5, 3]]),
}
WEIGHTS: dict[str, Tensor | None] = {
    "unweighted": None,
    "weighed": torch.tensor([1.0, 0.3, 0.8, 0.0, 0.6, 1.0, 0.2], dtype=torch.float64),
}
MEMORY = {"held": math.inf, "tiles": 0.0}
AXES: tuple[dict[str, Any], ...] = (LOSSES, GROUPS, WEIGHTS, MEMORY)
# The half of the product that holds, with each loss, every choice of two of the others.
PRODUCT = [
    case
    for case in itertools.product(*AXES)
    if IS_WHOLE or sum(list(axis).index(one) for axis, one in zip(AXES, case, strict=True)) % 2 == 0
]
AROUND = [case for case in PRODUCT if LOSSES[case[0]].goes_around]
BLOCKS = {1: (slice(0, 7),), 2: (slice(0, 2), slice(2, 7)), 3: (slice(0, 3), slice(3, 3), slice(3, 7))}
"""Of 1, 2 and 3 workers; one of three has no pair."""


def numbers(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def values() -> dict[str, Tensor]:
    metric = torch.eye(D, dtype=torch.float64) + 0.1 * numbers(2, D, D)
    given = {"u": numbers(0, N, D), "v": numbers(0, N, D) + numbers(1, N, D), "metric": metric}
    given |= {"temperature": torch.tensor(TAU, dtype=torch.float64), "bias": torch.tensor(BIAS, dtype=torch.float64)}
    return {name: value.requires_grad_() for name, value in given.items()}


def learned_of(owned: dict[str, Tensor]) -> Learned:
    return Learned(metric=owned["metric"], temperature=owned["temperature"], bias=owned["bias"])


def found_of(loss: Tensor, owned: dict[str, Tensor], scalars: Any) -> dict[str, Tensor]:
    """The loss, what is logged, and every gradient."""
    (3 * loss).backward()
    gradients = {name: torch.zeros_like(value) if value.grad is None else value.grad for name, value in owned.items()}
    logged = {name: value for name, value in scalars.items() if not name.startswith("transport_")}
    return {"loss": loss.detach(), **logged, **gradients}


def shared(case: tuple[str, str, str, str], ranks: Ranks, at_least: int = 2) -> dict[str, Tensor]:
    loss, groups, weight, memory = case
    owned = values()
    u, v = (functional.normalize(owned[side], dim=1) for side in ("u", "v"))
    with ranks.share(at_least=at_least, memory=MEMORY[memory]):
        terms = LOSSES[loss](Comparison(u, v, groups=GROUPS[groups], sample_weight=WEIGHTS[weight]), learned_of(owned))
    return found_of(terms.loss, owned, terms.scalars)


def around(case: tuple[str, str, str, str], ranks: Ranks) -> dict[str, Tensor]:
    """The same of one worker that has its own pairs alone, and ends with their gradients."""
    loss, groups, weight, memory = case
    ring, owned = Ring(ranks, BLOCKS[ranks.size]), values()
    owned |= {side: owned[side].detach()[ring.own].requires_grad_() for side in ("u", "v")}
    u, v = (functional.normalize(owned[side], dim=1) for side in ("u", "v"))
    nothing = torch.zeros(N, 1, dtype=torch.float64)
    comparison = Comparison(nothing, nothing, groups=GROUPS[groups], sample_weight=WEIGHTS[weight])
    with ranks.share(memory=MEMORY[memory]):
        terms = LOSSES[loss].score_own(OwnPairs(comparison, u, v, ring), learned_of(owned))
    return found_of(terms.loss, owned, terms.scalars)


def work(rank: int, size: int) -> tuple[list[dict[str, Tensor]], list[dict[str, Tensor]]]:
    ranks = Ranks.here()
    return [shared(case, ranks) for case in PRODUCT], [around(case, ranks) for case in AROUND]


@pytest.mark.parametrize("size", [1, pytest.param(2, marks=ONLY_IN_WHOLE), 3])
def test_workers_that_share_a_loss_have_the_loss_and_gradients_of_one_process(size: int) -> None:
    with patch.object(tiled_matching, "TILE_BYTES", 2 * N * 8):
        by_worker = run_threads(work, size)
    for index, case in enumerate(PRODUCT):
        whole = shared(case, Ranks(), at_least=0)
        for worker in by_worker:
            assert_equal(worker[0][index], whole, case)
    for index, case in enumerate(AROUND):
        whole = shared(case, Ranks(), at_least=0)
        parts = [worker[1][index] for worker in by_worker]
        for part in parts:
            put_together = part | {side: torch.cat([one[side] for one in parts]) for side in ("u", "v")}
            assert_equal(put_together, whole, case)


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor], case: tuple[str, ...]) -> None:
    assert found.keys() == expected.keys(), case
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-8, msg=f"{case} {name}")


def of_a_large_batch(rank: int, size: int, memory: float = 0.0) -> tuple[Tensor, int]:
    """Loss and gradients of a partial plan of 1,024 pairs as one vector, and the sweeps that it took."""
    owned = [numbers(seed, 1024, 32) + numbers(2, 1024, 32) for seed in (0, 1)]
    u, v = (functional.normalize(side, dim=1).requires_grad_() for side in owned)
    pair = PartialLearningToMatch(epsilon=0.05, metric="euclidean", transport_mass=0.95)
    with Ranks.here().share(at_least=1, memory=memory):
        terms = pair(Comparison(u, v))
    terms.loss.backward()
    gradients = [side.grad.flatten() for side in (u, v) if side.grad is not None]
    return torch.cat([terms.loss.detach()[None], *gradients]), int(terms.scalars["transport_iterations"])


@pytest.mark.slow
def test_four_workers_by_tiles_have_the_partial_plan_of_one_that_holds_its_rows() -> None:
    expected, sweeps = of_a_large_batch(0, 1, memory=math.inf)
    # Were no row at its bound, one would do.
    assert sweeps > 1
    with patch.object(tiled_matching, "TILE_BYTES", 2**18):
        by_worker = run_threads(of_a_large_batch, 4)
    for found, _ in by_worker:
        assert (found - expected).norm() < 1e-6 * expected.norm()


# What the one process computes, as plain loops.


def plain(loss: str, groups: str, weight: str) -> float:
    given = values()
    u, v = (functional.normalize(given[side].detach(), dim=1) for side in ("u", "v"))
    s = (u @ v.T).tolist()
    known = GROUPS[groups]
    same = (torch.eye(N, dtype=torch.bool) if known is None else same_group(known)).tolist()
    weights = WEIGHTS[weight]
    y = [1.0] * N if weights is None else weights.tolist()
    if loss == "contrastive":
        return sum(
            y[i] * (softmax_loss(s[i], same[i], y, i) + softmax_loss(column(s, i), same[i], y, i)) for i in range(N)
        ) / (2 * N)
    if loss == "sigmoid":
        return sum(
            y[i] * (sigmoid_loss(s[i], same[i], y, i) + sigmoid_loss(column(s, i), same[i], y, i)) for i in range(N)
        ) / (2 * N)
    return matching_divergence(loss, s, same, y)


def column(matrix: list[list[float]], j: int) -> list[float]:
    return [row[j] for row in matrix]


def softmax_loss(scores: list[float], positives: list[bool], y: list[float], i: int) -> float:
    negatives = sum(y[j] * math.exp(scores[j] / TAU) for j in range(N) if not positives[j])
    mates = [j for j in range(N) if positives[j]]
    total = sum(y[j] for j in mates)
    if total == 0:
        return 0.0
    return (
        sum(y[j] * -math.log(math.exp(scores[j] / TAU) / (math.exp(scores[j] / TAU) + negatives)) for j in mates)
        / total
    )


def sigmoid_loss(scores: list[float], positives: list[bool], y: list[float], i: int) -> float:
    found = 0.0
    for j in range(N):
        logit = scores[j] / TAU + BIAS
        found += (1.0 if i == j else y[j]) * math.log1p(math.exp(-logit if positives[j] else logit))
    return found


def matching_divergence(loss: str, s: list[list[float]], same: list[list[bool]], y: list[float]) -> float:
    kept = [i for i in range(N) if y[i] > 0]
    a = [y[i] / sum(y) for i in kept]
    distances = [[math.sqrt(2 - 2 * s[i][j]) for j in kept] for i in kept]
    largest = max(map(max, distances))
    cost = torch.tensor(distances, dtype=torch.float64) / largest
    marginal = torch.tensor(a, dtype=torch.float64)
    plan = pot_plan(cost, EPSILON, 1.0 if loss == "learning_to_match" else MASS, marginal, marginal)
    found = 0.0
    for i, at in enumerate(kept):
        mates = [j for j, other in enumerate(kept) if same[at][other]]
        for j in mates:
            target = a[i] * a[j] / sum(a[mate] for mate in mates)
            found += target * math.log(target / float(plan[i, j]))
    return found * sum(y) / N


@pytest.mark.parametrize(
    ("loss", "groups", "weight"),
    itertools.product(("contrastive", "sigmoid", "learning_to_match", "partial_learning_to_match"), GROUPS, WEIGHTS),
)
def test_one_process_computes_the_plain_loops(loss: str, groups: str, weight: str) -> None:
    found = shared((loss, groups, weight, "held"), Ranks(), at_least=0)["loss"]
    assert float(found) == pytest.approx(plain(loss, groups, weight), rel=1e-6)


def test_what_goes_around_is_contrastive_and_sigmoid() -> None:
    assert {name for name, loss in PAIRS.items() if loss.goes_around} == {Contrastive.name, Sigmoid.name}
