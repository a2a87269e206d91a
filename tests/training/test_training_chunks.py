"""Chunks of languages and of embeddings change what is held in memory and nothing of the gradient."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ray_atr.common.override import override
from ray_atr.data.captions import TrainingCaptions
from ray_atr.data.features import open_features
from ray_atr.data.stream import stream, training_plan
from ray_atr.models.retriever import build_retriever
from ray_atr.objectives import Embeddings
from ray_atr.training.batch import Batch
from ray_atr.training.checks import check_experiment
from ray_atr.training.encoding import encode
from ray_atr.training.encoding.encode import embed_in_chunks
from ray_atr.training.encoding.texts import TextBatcher
from ray_atr.training.experiment import Experiment
from ray_atr.training.group import WorkerGroup
from ray_atr.training.inputs import prepare
from ray_atr.training.step import _together, training_step
from tests.support.tiny import tiny

MIXTURE = {"objective__scheme": "random_mixture", "objective__pair": "contrastive"}
PARTIAL = {
    "objective__scheme": "kcl",
    "objective__pair": "partial_learning_to_match",
    "objective__pair__metric": "factored",
}


def test_what_a_step_leaves_has_the_texts_of_all_chunks() -> None:
    audio, text = torch.eye(3), torch.eye(3)[torch.tensor([[0, 1], [2, 0], [1, 2]])]
    masks = [torch.tensor([[True, False]] * 3), torch.tensor([[False, True], [False, False], [False, True]])]
    parts = [Embeddings(audio=audio, text=text * mask[:, :, None], mask=mask) for mask in masks]
    whole = _together(parts, masks[0] | masks[1])
    torch.testing.assert_close(whole.text, text * (masks[0] | masks[1])[:, :, None])
    assert whole.mask is not None
    assert torch.equal(whole.mask, masks[0] | masks[1])


@pytest.fixture(scope="module")
def data(home: Path) -> Path:
    return home / "tones"


def gradient(experiment: Experiment, home: Path) -> tuple[dict[str, float], Tensor]:
    """(scalars, all gradients as one vector) of the first step, from one seed of dropout."""
    prepared = prepare(experiment, home, use_ray=False, echo=lambda message: None)
    features = open_features(prepared.features, "train")
    captions = TrainingCaptions(features, experiment.data.languages, experiment.data.noise, experiment.seed)
    retriever = build_retriever(
        experiment.model, tokenizer=prepared.load_tokenizer(), seed=0, learned=experiment.learned
    ).train()
    plan = training_plan(features.clip_ids, seed=0, epoch=0, batch_size=12, rank=0, num_workers=1)
    batch = next(stream(features, [plan], use_ray=False))
    assigned = captions.batch(batch.rows, 0)
    # A language that some clips lack: parts then differ in their number of pairs.
    assigned.mask[[1, 4, 5], 1] = False
    clip_ids = [features.clip_ids[row] for row in batch.rows]
    draw = experiment.objective.scheme.draw(0, 0, clip_ids, torch.from_numpy(assigned.mask))
    languages, group = experiment.data.languages, WorkerGroup()
    torch.manual_seed(5)
    result = training_step(
        retriever,
        TextBatcher(retriever),
        experiment.objective,
        Batch.gathered(clip_ids, batch.features, batch.frames, assigned, draw, languages, group),
        group,
        language_chunk=experiment.train.language_chunk,
        embedding_chunk=experiment.train.embedding_chunk,
    )
    gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in retriever.parameters()]
    return result.scalars, torch.cat([one.flatten() for one in gradients])


def assert_equal(found: tuple[dict[str, float], Tensor], expected: tuple[dict[str, float], Tensor]) -> None:
    assert found[0] == pytest.approx(expected[0], rel=1e-4, abs=1e-5)
    assert float((found[1] - expected[1]).norm() / expected[1].norm()) < 1e-5


@pytest.mark.parametrize("embedding_chunk", [0, 5])
@pytest.mark.parametrize("settings", [{"objective": "kcl"}, PARTIAL, MIXTURE], ids=["kcl", "partial", "mixture"])
def test_language_by_language_is_the_joint_step(data: Path, settings: dict[str, Any], embedding_chunk: int) -> None:
    experiment = tiny(data, model__learn_temperature=True, **settings)
    by_language = override(experiment, {"train.language_chunk": 1, "train.embedding_chunk": embedding_chunk})
    assert_equal(gradient(by_language, data.parent), gradient(experiment, data.parent))


@pytest.mark.parametrize("objective", ["cacl", "m_ltm_pot"])
def test_embedding_in_chunks_is_the_joint_step(data: Path, objective: str) -> None:
    experiment = tiny(data, objective=objective, model__learn_temperature=True)
    in_chunks = override(experiment, {"train.embedding_chunk": 5})
    assert_equal(gradient(in_chunks, data.parent), gradient(experiment, data.parent))


@pytest.mark.parametrize("language_chunk", [0, 1])
def test_dropout_falls_alike_when_texts_are_embedded_again(
    data: Path, language_chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = tiny(
        data,
        objective="kcl",
        model__text__dropout=0.4,
        train__embedding_chunk=5,
        train__language_chunk=language_chunk,
    )
    in_chunks = gradient(experiment, data.parent)
    without_dropout = gradient(override(experiment, {"model.text.dropout": 0.0}), data.parent)
    # The same chunks and random draws with all activations kept.
    monkeypatch.setattr(encode, "checkpoint", lambda embed, *inputs, use_reentrant: embed(*inputs))
    assert_equal(in_chunks, gradient(experiment, data.parent))
    assert float((in_chunks[1] - without_dropout[1]).norm() / without_dropout[1].norm()) > 0.1


def test_chunks_keep_their_inputs_alone_and_leave_the_random_state_where_it_would_be() -> None:
    encoder = nn.Sequential(nn.Linear(6, 50), nn.GELU(), nn.Dropout(0.5), nn.Linear(50, 3))
    x = torch.randn(8, 6)
    kept: dict[int, int] = {}
    after: dict[int, Tensor] = {}
    for chunk in (0, 2):
        torch.manual_seed(1)
        sizes: list[int] = []

        def keep(tensor: Tensor, sizes: list[int] = sizes) -> Tensor:
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            embedded = embed_in_chunks(encoder, (x,), chunk)
        kept[chunk] = sum(sizes)
        embedded.square().sum().backward()
        after[chunk] = torch.get_rng_state()
    assert kept[2] < kept[0] / 10
    assert torch.equal(after[0], after[2])


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"objective": "cacl"}, "objective.scheme=cacl"),
        ({"objective": "contrastive"}, "objective.scheme=english"),
        ({"objective__scheme": "kcl", "objective__knowledge": "ask"}, "objective.knowledge=ask"),
    ],
)
def test_what_does_not_split_by_language_is_refused_before_anything_starts(
    data: Path, settings: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValueError, match=rf"train\.language_chunk: got 1; allowed 0 with {named}"):
        check_experiment(tiny(data, train__language_chunk=1, **settings))
