"""Two workers, each with half of the batch, end with the gradient of one that has all of it: for every preset."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.nn import functional

from ray_atr.common.ranks import Ranks
from ray_atr.objectives import KNOWLEDGE, PAIRS, PRESETS, Embeddings, Learned, Objective
from ray_atr.objectives.correspondence import CORRESPONDENCES, SelfRefining, TeacherEmbeddings, TrainingPairs, Transport
from ray_atr.objectives.knowledge.knowledge import Granularity, Neighbours, Queued, Retrieved
from ray_atr.objectives.pairs import Contrastive, ContrastiveEntropic
from ray_atr.training.group import WorkerGroup
from tests.support.threads import run_threads

B, K, D = 8, 3, 6
# Every preset, and kcl with every knowledge, also those that no preset has.
OBJECTIVES: dict[str, Objective] = {
    **PRESETS,
    **{
        f"kcl x {name}": Objective(scheme=PRESETS["kcl"].scheme, pair=Contrastive(), knowledge=knowledge())
        for name, knowledge in KNOWLEDGE.items()
    },
}
# Every pair loss whose pairs are believed by halves, and every correspondence under KCL.
OBJECTIVES |= {
    f"{pair} x self_refining": Objective(pair=loss(), correspondence=SelfRefining(warmup_epochs=0))
    for pair, loss in PAIRS.items()
}
OBJECTIVES |= {
    f"kcl x {name}": Objective(scheme=PRESETS["kcl"].scheme, correspondence=method())
    for name, method in CORRESPONDENCES.items()
}
# By itself it finds that this batch is all clean.
OBJECTIVES["kcl x transport"] = Objective(scheme=PRESETS["kcl"].scheme, correspondence=Transport(transport_mass=0.6))
# Similarities of which each worker has some rows.
OBJECTIVES |= {
    f"{scheme} x {pair.name} shared": Objective(
        scheme=PRESETS[scheme].scheme, pair=pair, correspondence=SelfRefining(warmup_epochs=0)
    )
    for scheme in ("cacl", "kcl")
    for pair in (Contrastive(), ContrastiveEntropic())
}
NAMES = list(OBJECTIVES)


def parameters() -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"audio": (4, D), "text": (5, D), "metric": (D, D)}
    made = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
    made["temperature"] = torch.tensor(0.2, dtype=torch.float64)
    return {name: nn.Parameter(value) for name, value in made.items()}


def batch() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    mask = torch.rand(B, K, generator=generator) > 0.2
    mask[:, 0] = True
    mask[:, 1] |= ~mask[:, 2]
    return {
        "audio": torch.randn(B, 4, generator=generator, dtype=torch.float64),
        "text": torch.randn(B, K, 5, generator=generator, dtype=torch.float64),
        "mask": mask,
        "group": torch.tensor([0, 1, 2, 3, 4, 0, 5, 6]),
    }


def unit(generator: torch.Generator, *shape: int) -> Tensor:
    return functional.normalize(torch.randn(*shape, D, generator=generator, dtype=torch.float64), dim=-1)


def retrieved_for(objective: Objective) -> Retrieved | Queued | None:
    """What the global batch retrieves: every worker looks the gathered positions up in the same snapshot."""
    if not objective.knowledge.needs_retrieval:
        return None
    generator = torch.Generator().manual_seed(2)
    if objective.knowledge.name == "moco":
        there = torch.rand(7, K, generator=generator) > 0.3
        negative = torch.rand(B, 7, generator=generator) > 0.2
        keys = unit(generator, B), unit(generator, B, K), unit(generator, 7), unit(generator, 7, K)
        return Queued(*keys, there, negative)

    def found() -> Granularity:
        valid = torch.rand(B, K, 4, generator=generator) > 0.2
        return Granularity(
            Neighbours(unit(generator, B, 1, 4), unit(generator, B, 1, 4), valid[:, :1]),
            Neighbours(unit(generator, B, K, 4), unit(generator, B, K, 4), valid),
        )

    return Retrieved(fine=found(), coarse=found())


def objective_loss(name: str, owned: dict[str, nn.Parameter], data: dict[str, Tensor], gather: object) -> Tensor:
    """The loss on the global batch of embeddings that `gather` puts together."""
    audio, text = data["audio"] @ owned["audio"], data["text"] @ owned["text"]
    objective = OBJECTIVES[name]
    whole = batch()
    draw = objective.scheme.draw(0, 0, [str(i) for i in range(B)], whole["mask"])
    groups = whole["group"]
    embeddings = Embeddings(
        audio=gather(audio),
        text=gather(text),
        mask=objective.scheme.needed(whole["mask"], draw),
        positives=groups[:, None] == groups[None, :],
    )
    metric = owned["metric"] if objective.pair.learns().metric != "euclidean" else None
    retrieved = retrieved_for(objective)
    options: dict[str, Any] = {
        "learned": Learned(temperature=owned["temperature"], metric=metric),
        "draw": draw,
        "retrieved": retrieved,
    }
    rows = torch.arange(B)
    estimator = objective.correspondence.estimator(pairs_of_the_batch())
    for epoch in range(4):
        # Each step judges by what the ones before recorded.
        estimator.begin_epoch(epoch)
        with Ranks.here().share(at_least=2 if name.endswith("shared") else None):
            loss = objective(embeddings, weigh_pairs=estimator.for_batch(rows, 0 * rows), **options).loss
    return loss


def pairs_of_the_batch() -> TrainingPairs:
    generator = torch.Generator().manual_seed(3)
    truth = torch.rand(B, 1, K, generator=generator) > 0.3
    teacher_embeddings = [TeacherEmbeddings(unit(generator, B), unit(generator, B, 1, K))]
    return TrainingPairs([f"clip {row}" for row in range(B)], 1, K, truth=truth, teacher_embeddings=teacher_embeddings)


def identity(tensor: Tensor) -> Tensor:
    return tensor


def outcome(name: str, data: dict[str, Tensor], gather: object) -> tuple[Tensor, dict[str, Tensor]]:
    owned = parameters()
    loss = objective_loss(name, owned, data, gather)
    loss.backward()
    gradients = {key: torch.zeros_like(value) if value.grad is None else value.grad for key, value in owned.items()}
    return loss.detach(), gradients


def work(rank: int, size: int) -> dict[str, tuple[Tensor, dict[str, Tensor]]]:
    """One of the workers: every objective on its half of the batch, gradients averaged as DDP does."""
    share = slice(rank * B // size, (rank + 1) * B // size)
    half = {name: value[share] for name, value in batch().items()}
    found = {}
    for name in NAMES:
        loss, gradients = outcome(name, half, WorkerGroup(rank, size).gather)
        for gradient in gradients.values():
            distributed.all_reduce(gradient)
            gradient /= size
        found[name] = (loss, gradients)
    return found


@pytest.fixture(scope="module")
def by_two() -> list[dict[str, tuple[Tensor, dict[str, Tensor]]]]:
    return run_threads(work, 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_two_workers_equal_one(name: str, by_two: list[dict[str, tuple[Tensor, dict[str, Tensor]]]]) -> None:
    loss, gradients = outcome(name, batch(), identity)
    for worker in by_two:
        torch.testing.assert_close(worker[name][0], loss, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(worker[name][1], gradients, rtol=1e-6, atol=1e-9)
    assert gradients["audio"].abs().sum() > 0
