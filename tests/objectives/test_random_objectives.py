"""Random objectives on random batches: parts, weights, soft targets, missing languages, equal vectors, batches of one.

The gradient is the slope of the loss, the order of the clips does not matter, and workers that each have some of the clips, or
none, have the loss and the gradients of one. With RAY_ATR_WHOLE_PRODUCT=1 fifty times as many are drawn.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ray_atr.common.ranks import Ranks
from ray_atr.objectives import KNOWLEDGE, PAIRS, Embeddings, Learned, Objective, Terms
from ray_atr.objectives.knowledge.knowledge import Granularity, Neighbours, Queued, Retrieved
from ray_atr.objectives.pairs import Comparison
from ray_atr.objectives.pairs.ring import Ring
from ray_atr.objectives.schemes import SCHEMES
from tests.support.threads import run_threads
from tests.support.whole_product import IS_WHOLE

MANY = 50 if IS_WHOLE else 1
SMOOTH, SHARED = 50 * MANY, 50 * MANY
D, STEP, NEAR = 5, 1e-5, 1e-4
HELD = {"transport": False, "detach_reliability": False}
"""Of `ask`: what it holds constant is not in a slope."""
AROUND = sorted(name for name, loss in PAIRS.items() if loss.goes_around)


@dataclass(frozen=True, eq=False)
class Case:
    """An objective and its batch; `values` are what gradients reach. Weights [B, K] and targets [B, B] of the pairs, or None."""

    objective: Objective
    values: dict[str, Tensor]
    needed: Tensor
    groups: Tensor | None
    draw: Tensor | None
    weights: Tensor | None
    targets: Tensor | None
    retrieved: Any

    def loss(self, values: dict[str, Tensor]) -> Terms:
        embeddings = Embeddings(values["audio"], values["text"], self.needed, groups=self.groups)
        return self.objective(
            embeddings, learned=learned(values), draw=self.draw, retrieved=self.retrieved, weigh_pairs=self.weigh
        )

    def weigh(self, comparison: Comparison) -> Comparison:
        rows, changes = comparison.row_numbers, {}
        if self.weights is not None and comparison.v_language is not None:
            changes["sample_weight"] = self.weights[rows, comparison.v_language]
        if self.targets is not None:
            among = self.targets[rows][:, rows]
            # A clip whose partners are all missing has its own.
            among = among + torch.diag((among.sum(dim=1) == 0).to(among))
            changes["targets"] = functional.normalize(among, p=1, dim=1)
        return dataclasses.replace(comparison, **changes)

    def in_order(self, order: Tensor) -> Case:
        """The same with the clips in another order."""
        one = {"needed": self.needed[order], "retrieved": permuted(self.retrieved, order)}
        for name in ("groups", "draw", "weights"):
            one[name] = None if (value := getattr(self, name)) is None else value[order]
        one["targets"] = None if self.targets is None else self.targets[order][:, order]
        sides = {side: self.values[side][order] for side in ("audio", "text")}
        return dataclasses.replace(self, values=self.values | sides, **one)


def learned(values: dict[str, Tensor]) -> Learned:
    return Learned(**{name: values.get(name) for name in ("temperature", "metric", "bias")})


def cases(count: int, pairs: list[str], *, knowledge: bool) -> Iterator[Case]:
    for seed in range(count):
        generator, noise = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
        B, K = int(generator.choice([1, 2, 3, 6, 8])), int(generator.integers(1, 4))
        mask = torch.from_numpy(generator.random((B, K)) < generator.choice([0.5, 0.8, 1.0]))
        mask[0, 0] = True
        parts = {"scheme": SCHEMES[str(generator.choice(list(SCHEMES)))](), "pair": _pair(generator, pairs)}
        if knowledge:
            parts["knowledge"] = _knowledge(generator, parts["pair"])
        objective = Objective(**parts)
        draw = objective.scheme.draw(seed, 0, [f"clip {row}" for row in range(B)], mask)
        if not bool((needed := objective.scheme.needed(mask, draw)).any()):
            continue
        values = {
            "audio": torch.randn(B, D, generator=noise, dtype=torch.float64),
            "text": torch.randn(B, K, D, generator=noise, dtype=torch.float64),
            "temperature": torch.tensor(float(generator.choice([0.1, 0.3, 1.0])), dtype=torch.float64),
            "bias": torch.tensor(float(generator.choice([-10, -1, 1])), dtype=torch.float64),
        }
        if generator.random() < 0.3:
            # Several clips that are one recording, and several captions that are one text.
            for side in ("audio", "text"):
                values[side] = values[side][torch.from_numpy(generator.integers(0, B, size=B))]
        if (kind := objective.pair.learns().metric) != "euclidean":
            factor = torch.randn(D, D, generator=noise, dtype=torch.float64)
            values["metric"] = {"diagonal": factor[0] ** 2, "factored": factor, "mahalanobis": factor @ factor.T}[kind]
        groups = torch.from_numpy(generator.integers(0, B, size=(B, int(generator.integers(1, 3)))))
        weights = torch.from_numpy(generator.random((B, K)).round(1) * (generator.random((B, K)) < 0.7))
        targets = torch.from_numpy(generator.random((B, B)) * (generator.random((B, B)) < 0.6))
        yield Case(
            objective,
            values,
            needed,
            groups if generator.random() < 0.5 else None,
            draw,
            weights if generator.random() < 0.5 else None,
            # Workers that share a loss read no targets.
            targets if knowledge and generator.random() < 0.4 else None,
            _retrieved(objective, B, K, noise, generator),
        )


def _pair(generator: np.random.Generator, names: list[str]) -> Any:
    loss = PAIRS[str(generator.choice(names))]
    settings: dict[str, Any] = {
        "mining": str(generator.choice(["hardest", "all", "weighted"])),
        "form": str(generator.choice(["log", "tan", "gce"])),
        "metric": str(generator.choice(["euclidean", "diagonal", "factored", "mahalanobis"])),
        "epsilon": float(generator.choice([0.1, 0.5])),
        "transport_mass": float(generator.choice([0.4, 0.9])),
    }
    return loss(**{field.name: settings[field.name] for field in dataclasses.fields(loss) if field.name in settings})


def _knowledge(generator: np.random.Generator, pair: Any) -> Any:
    chosen = KNOWLEDGE[str(generator.choice(list(KNOWLEDGE)))]
    made = chosen(**(HELD if chosen.name == "ask" else {}))
    try:
        made.check_pair(pair)
    except ValueError:
        return KNOWLEDGE["none"]()
    return made


def _retrieved(objective: Objective, B: int, K: int, noise: torch.Generator, generator: np.random.Generator) -> Any:
    def unit(*shape: int) -> Tensor:
        rows = torch.randn(*shape, D, generator=noise, dtype=torch.float64)
        return functional.normalize(rows, dim=-1)

    def some(*shape: int) -> Tensor:
        return torch.from_numpy(generator.random(shape) < 0.6)

    def found() -> Granularity:
        by_audio = Neighbours(unit(B, 1, 3), unit(B, 1, 3), some(B, 1, 3), some(B, 1, 3, B))
        return Granularity(by_audio, Neighbours(unit(B, K, 3), unit(B, K, 3), some(B, K, 3), some(B, K, 3, B)))

    if objective.knowledge.name == "moco":
        return Queued(unit(B), unit(B, K), unit(4), unit(4, K), some(4, K), some(B, 4))
    return Retrieved(found(), found()) if objective.knowledge.needs_retrieval else None


def permuted(retrieved: Any, order: Tensor) -> Any:
    """What was retrieved for the clips in another order."""
    if isinstance(retrieved, Queued):
        own = {name: getattr(retrieved, name)[order] for name in ("audio", "text", "negative")}
        return dataclasses.replace(retrieved, **own)

    def of(side: Neighbours) -> Neighbours:
        assert side.like is not None
        return Neighbours(side.audio[order], side.text[order], side.valid[order], side.like[order][..., order])

    def among(one: Granularity | None) -> Granularity | None:
        return None if one is None else Granularity(of(one.by_audio), of(one.by_text))

    return retrieved if retrieved is None else Retrieved(among(retrieved.fine), among(retrieved.coarse))


def slopes(case: Case, name: str, way: Tensor) -> tuple[float, float]:
    """The slopes of the loss along a way of one of the values, before and after it."""
    values = case.values
    before, here, after = (
        float(case.loss(values | {name: values[name] + step * way}).loss) for step in (-STEP, 0, STEP)
    )
    return (here - before) / STEP, (after - here) / STEP


def test_the_gradient_of_random_objectives_is_the_slope_of_their_loss() -> None:
    compared = 0
    for case in cases(SMOOTH, list(PAIRS), knowledge=True):
        values = {name: value.clone().requires_grad_() for name, value in case.values.items()}
        loss = case.loss(values).loss
        gradients = torch.autograd.grad(loss, list(values.values()), allow_unused=True)
        for (name, value), gradient in zip(values.items(), gradients, strict=True):
            way = torch.randn(value.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
            before, after = slopes(case, name, way)
            if abs(before - after) > NEAR * max(1, abs(before)):
                continue  # A hinge, a largest cost, or a row's bound: there is no slope.
            found = 0.0 if gradient is None else float((gradient * way).sum())
            assert abs(found - (before + after) / 2) < NEAR * max(1, abs(found)), (name, case.objective)
            compared += 1
    assert compared > 3 * SMOOTH


def test_the_order_of_the_clips_does_not_matter_to_random_objectives() -> None:
    for seed, case in enumerate(cases(SMOOTH, list(PAIRS), knowledge=True)):
        order = torch.randperm(len(case.needed), generator=torch.Generator().manual_seed(seed))
        turned = case.in_order(order)
        with torch.no_grad():
            expected, found = case.loss(case.values), turned.loss(turned.values)
        assert torch.isfinite(expected.loss)
        torch.testing.assert_close(found.loss, expected.loss, rtol=1e-7, atol=1e-7, msg=str(case.objective))


def of_worker(case: Case, ranks: Ranks, blocks: tuple[slice, ...]) -> dict[str, Tensor]:
    """The loss and the gradients of a worker that has its own clips alone, put where they are in the batch."""
    ring = Ring(ranks, blocks)
    values = {name: value.clone().requires_grad_() for name, value in case.values.items()}
    own = {side: values[side][ring.own] for side in ("audio", "text")}
    terms = case.objective.score_own(
        own["audio"], own["text"], case.needed, ring,
        groups=case.groups, learned=learned(values), draw=case.draw, weigh_pairs=case.weigh,
    )  # fmt: skip
    terms.loss.backward()
    return found_of(terms, values)


def found_of(terms: Terms, values: dict[str, Tensor]) -> dict[str, Tensor]:
    gradients = {name: torch.zeros_like(value) if value.grad is None else value.grad for name, value in values.items()}
    return {"loss": terms.loss.detach(), **terms.scalars, **gradients}


def work(rank: int, size: int) -> list[dict[str, Tensor]]:
    found = []
    for seed, case in enumerate(cases(SHARED, AROUND, knowledge=False)):
        B = len(case.needed)
        cuts = sorted(np.random.default_rng(seed).integers(0, B + 1, size=size - 1).tolist())
        blocks = tuple(slice(*ends) for ends in itertools.pairwise([0, *cuts, B]))
        found.append(of_worker(case, Ranks.here(), blocks))
    return found


def test_workers_with_any_share_of_the_clips_have_the_loss_of_one() -> None:
    by_worker = run_threads(work, 3)
    for number, case in enumerate(cases(SHARED, AROUND, knowledge=False)):
        values = {name: value.clone().requires_grad_() for name, value in case.values.items()}
        terms = case.loss(values)
        terms.loss.backward()
        expected, parts = found_of(terms, values), [found[number] for found in by_worker]
        together = {side: torch.stack([part[side] for part in parts]).sum(dim=0) for side in ("audio", "text")}
        for part in parts:
            torch.testing.assert_close(part | together, expected, rtol=1e-7, atol=1e-9, msg=str(case.objective))
