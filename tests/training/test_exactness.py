"""Two workers train as one does, and a run that was killed ends as one that never was."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch.nn import functional

import ray_atr.training.group as training_group
from ray_atr.common.override import flatten, override
from ray_atr.common.ranks import Ranks
from ray_atr.data.captions import TrainingCaptions
from ray_atr.data.features import open_features
from ray_atr.data.stream import share_sizes, stream, training_plan
from ray_atr.models.retriever import Retriever, build_retriever
from ray_atr.objectives import PRESETS
from ray_atr.objectives.knowledge.knowledge import KnowledgeBaseObjective
from ray_atr.training.base_encoding import SourceEncoder
from ray_atr.training.batch import Batch
from ray_atr.training.checkpoint import load_checkpoint
from ray_atr.training.correspondence import make_estimator
from ray_atr.training.encoding.texts import TextBatcher
from ray_atr.training.experiment import Experiment
from ray_atr.training.group import WorkerGroup
from ray_atr.training.inputs import Prepared
from ray_atr.training.knowledge_base.memory import Memory, MomentumMemory, SupportMemory, make_memory
from ray_atr.training.knowledge_base.queue import Identity
from ray_atr.training.knowledge_base.refresher import InProcessRefresher
from ray_atr.training.loop import train_trial
from ray_atr.training.run_folder import LAST
from ray_atr.training.share import Share
from ray_atr.training.step import StepResult, training_step
from tests.support.processes import run_processes
from tests.support.stopped import killed_after
from tests.support.tiny import MEASURED, prepared_for, tiny

ASK = {"objective__knowledge__prototypes": 4, "objective__knowledge__neighbours": 2}
# A tower that draws from the random state at each step, also in those after a checkpoint in the middle of an epoch.
DROPOUT = {
    "model__audio": "ced",
    "model__audio__size": "tiny",
    "model__audio__num_blocks": 1,
    "model__audio__dropout": 0.3,
}
WRITE_THROUGH = {**ASK, "objective__knowledge__refresh": "write_through", "objective__knowledge__refresh_lag": 1}
# Every preset, and steps that hold only a part of the batch's activations.
CASES: dict[str, dict[str, Any]] = {
    **{name: {"objective": name} for name in PRESETS},
    "by language, in chunks": {
        "objective__scheme": "kcl",
        "objective__pair": "partial_learning_to_match",
        "objective__pair__metric": "factored",
        "train__language_chunk": 1,
        "train__embedding_chunk": 3,
    },
    "plans that workers share": {"objective": "m_ltm_pot", "scaling__share_losses_from": 2},
    "plans by tiles": {"objective": "m_ltm_pot", "scaling__share_losses_from": 2, "scaling__loss_memory": 0},
    "texts that go around": {"objective": "kcl", "scaling__share_losses_from": 2},
    "texts that go around, by tiles": {
        "objective": "cacl",
        "scaling__share_losses_from": 2,
        "scaling__loss_memory": 0,
        "train__embedding_chunk": 3,
    },
    "texts that go around, by language": {
        "objective": "kcl",
        "objective__pair": "sigmoid",
        "scaling__share_losses_from": 2,
        "train__language_chunk": 1,
    },
    "ask, in chunks": {"objective": "ask", "objective__scheme": "cacl", "train__embedding_chunk": 3},
    # Beliefs of a first step: by the row of each clip of the global batch, by that batch's plan, by its probabilities.
    "oracle": {"objective__correspondence": "oracle"},
    "plan": {"objective__correspondence": "transport", "objective__correspondence__transport_mass": 0.6},
    "probability": {"objective__correspondence": "self_refining", "objective__correspondence__warmup_epochs": 0},
}


def recall_of(experiment: Experiment, prepared: Prepared, retriever: Retriever, ids: list[str], folder: Path) -> Memory:
    """A memory of the worker's own, made from the first weights as every other worker's is."""
    knowledge = experiment.objective.knowledge
    refresher = (
        InProcessRefresher(SourceEncoder(experiment, prepared), knowledge.snapshot_settings(0), folder)
        if isinstance(knowledge, KnowledgeBaseObjective)
        else None
    )
    recall = make_memory(
        knowledge,
        refresher=refresher,
        retriever=retriever,
        width=experiment.model.embedding_width,
        languages=len(experiment.data.languages),
        ids=ids,
        is_first=True,
        steps_per_epoch=3,
    )
    if isinstance(recall, SupportMemory | MomentumMemory):
        # As after some steps: with empty queues the first of moco's has nothing to compare with.
        D, K = experiment.model.embedding_width, len(experiment.data.languages)
        filled = torch.randn(5, K + 1, D, generator=torch.Generator().manual_seed(0))
        nobody = Identity(torch.arange(5) - 9, torch.arange(5) - 9)
        recall.queue.push(
            nobody, functional.normalize(filled[:, 0], dim=-1), functional.normalize(filled[:, 1:], dim=-1)
        )
    recall.begin_epoch(0, 0, retriever.state_dict)
    recall.before_step(0)
    return recall


def one_step(
    experiment: Experiment, prepared: Prepared, group: WorkerGroup, folder: Path
) -> tuple[float, torch.Tensor]:
    """Loss and all gradients, as one vector, of the first step."""
    memory = experiment.scaling.loss_bytes
    group = dataclasses.replace(
        group,
        share_losses_from=experiment.scaling.losses_shared_from,
        loss_bytes=math.inf if memory is None else memory,
    )
    features = open_features(prepared.features, "train")
    captions = TrainingCaptions(features, experiment.data.languages, experiment.data.noise, experiment.seed)
    retriever = build_retriever(
        experiment.model, tokenizer=prepared.load_tokenizer(), seed=0, learned=experiment.learned
    )
    plan = training_plan(features.clip_ids, seed=0, epoch=0, batch_size=8, rank=group.rank, num_workers=group.size)
    batch = next(stream(features, [plan], use_ray=False))
    assigned = captions.batch(batch.rows, 0)
    clip_ids = [features.clip_ids[row] for row in batch.rows]
    draw = experiment.objective.scheme.draw(0, 0, clip_ids, torch.from_numpy(assigned.mask))
    languages = experiment.data.languages
    result = training_step(
        retriever,
        TextBatcher(retriever),
        experiment.objective,
        Batch.gathered(clip_ids, batch.features, batch.frames, assigned, draw, languages, group),
        group,
        memory=recall_of(experiment, prepared, retriever, features.clip_ids, folder),
        estimator=make_estimator(experiment, captions, prepared.data, prepared.home, group.device, lambda: None),
        language_chunk=experiment.train.language_chunk,
        embedding_chunk=experiment.train.embedding_chunk,
    )
    gradients = [p.grad if p.grad is not None else torch.zeros_like(p) for p in retriever.parameters()]
    return result.scalars["loss"], torch.cat([gradient.flatten() for gradient in gradients])


def worker(
    rank: int, size: int, folder: Path, flats: list[dict[str, Any]], prepared: list[Prepared]
) -> list[tuple[float, torch.Tensor]]:
    # The tiny model's gradients travel in many buckets, as a large one's do.
    training_group.BUCKET_BYTES = 4096
    group = WorkerGroup(rank=rank, size=size)
    found = []
    for case, (flat, ready) in enumerate(zip(flats, prepared, strict=True)):
        with (
            patch.object(Ranks, "total", autospec=True, side_effect=Ranks.total) as total,
            patch.object(WorkerGroup, "gather", autospec=True, side_effect=WorkerGroup.gather) as gather,
        ):
            found.append(one_step(override(Experiment(), flat), ready, group, folder / f"{rank}-{case}"))
        shared = {call.args[0].size for call in total.call_args_list}
        assert shared == ({size} if flat["scaling.share_losses_from"] == 2 else set()), (case, shared)
        gathered = any(call.args[1].is_floating_point() for call in gather.call_args_list)
        assert gathered is not list(CASES)[case].startswith("texts that go around"), case
    return found


@pytest.mark.slow
def test_two_workers_give_the_loss_and_gradients_of_one(home: Path, tmp_path: Path) -> None:
    always = {"data__noise__ratio": 0.2, "model__learn_temperature": True}
    experiments = [
        tiny(home / "tones", **{**always, **settings, **(ASK if "ask" in name else {})})
        for name, settings in CASES.items()
    ]
    prepared = [prepared_for(experiment, home) for experiment in experiments]
    flats = [flatten(experiment) for experiment in experiments]
    of_workers = run_processes(worker, 2, tmp_path, flats, prepared)
    for index, (name, experiment) in enumerate(zip(CASES, experiments, strict=True)):
        loss, gradient = one_step(experiment, prepared[index], WorkerGroup(), tmp_path / f"alone-{index}")
        for rank in range(2):
            loss_there, gradient_there = of_workers[rank][index]
            assert loss_there == pytest.approx(loss, rel=1e-5), name
            difference = (gradient_there - gradient).norm() / gradient.norm()
            assert difference < 1e-5, f"{name}: relative difference {difference:.1e}"


def without_times(report: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in report.items() if "seconds" not in name}


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_checkpoint(folder / LAST)["model"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("objective", "settings", "kill_after_steps"),
    [("cacl", {}, 2), ("ask", {**ASK, **DROPOUT}, 4), ("ask", WRITE_THROUGH, 5)],
)
def test_a_killed_and_resumed_run_ends_with_the_weights_of_an_uninterrupted_one(
    home: Path,
    tmp_path: Path,
    objective: str,
    settings: dict[str, Any],
    kill_after_steps: int,
) -> None:
    experiment = tiny(
        home / "tones",
        objective=objective,
        data__noise__ratio=0.2,
        train__checkpoint_every_steps=2,
        **MEASURED,
        **settings,
    )
    prepared = prepared_for(experiment, home)
    whole: list[dict[str, Any]] = []
    train_trial(experiment, prepared, tmp_path / "whole", whole.append, use_ray_data=False)

    reports: list[dict[str, Any]] = []
    with killed_after(kill_after_steps):
        train_trial(experiment, prepared, tmp_path / "killed", reports.append, use_ray_data=False)
    np.random.seed(123)
    torch.manual_seed(123)
    reports.clear()
    train_trial(experiment, prepared, tmp_path / "killed", reports.append, use_ray_data=False)

    expected, found = weights(tmp_path / "whole"), weights(tmp_path / "killed")
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    assert [without_times(report) for report in reports] == [without_times(report) for report in whole]
    assert os.listdir(tmp_path / "killed" / LAST) == ["state.pt"]


def test_a_checkpoint_of_another_experiment_is_refused(home: Path, tmp_path: Path) -> None:
    experiment = tiny(home / "tones", train__epochs=1)
    prepared = prepared_for(experiment, home)
    train_trial(experiment, prepared, tmp_path, lambda metrics: None, use_ray_data=False)
    with pytest.raises(ValueError, match="another experiment"):
        train_trial(
            override(experiment, {"train.learning_rate": 0.1}),
            prepared,
            tmp_path,
            lambda metrics: None,
            use_ray_data=False,
        )


SHARES = share_sizes(8, 3)


class Tripled(torch.autograd.Function):
    """Gradients as workers have them before their mean: times the number of workers."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor) -> torch.Tensor:
        return values.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * len(SHARES)


def one_after_the_other(embed: Callable[[Share], torch.Tensor]) -> Callable[..., torch.Tensor]:
    """What embeds a batch of 8 in the shares of three workers, each within an autocast of its own."""

    def embedded(self: Share, *columns: torch.Tensor) -> torch.Tensor:
        whole, needed, parts, start = self.batch, self.needed, [], 0
        for size in SHARES:
            rows = slice(start, start := start + size)
            captions = dataclasses.replace(whole.captions, texts=whole.captions.texts[rows])
            audio = {"features": whole.features[rows], "frames": whole.frames[rows], "clips": torch.arange(size)}
            self.batch = dataclasses.replace(whole, captions=captions, **audio)
            self.needed = needed[rows]
            parts.append(embed(self, *columns))
        self.batch, self.needed = whole, needed
        return Tripled.apply(torch.cat(parts))

    return embedded


def in_bfloat16(rank: int, size: int, folder: Path, experiment: Experiment, prepared: Prepared) -> torch.Tensor:
    """The weights that a training ends with; one worker computes what three do."""
    group = WorkerGroup(rank, size)

    def mean_step(retriever: Retriever, *arguments: Any, **options: Any) -> StepResult:
        result = training_step(retriever, *arguments, **options)
        for parameter in retriever.parameters():
            if size == 1 and parameter.grad is not None:
                parameter.grad /= len(SHARES)
        return result

    with pytest.MonkeyPatch.context() as change:
        change.setattr("ray_atr.training.loop.training_step", mean_step)
        if size == 1:
            for name in ("audio", "text"):
                change.setattr(Share, name, one_after_the_other(getattr(Share, name)))
        train_trial(experiment, prepared, folder, lambda row: None, group, use_ray_data=False)
    return torch.cat([value.flatten().double() for value in weights(folder).values() if value.is_floating_point()])


@pytest.mark.slow
def test_three_workers_in_bfloat16_round_what_their_shares_round(home: Path, tmp_path: Path) -> None:
    """They are apart from one worker as far as that precision rounds: sums over a share, and gradients times three."""
    experiment = tiny(home / "tones", objective="kcl", train__precision="bfloat16", train__epochs=1)
    prepared = prepared_for(experiment, home)
    three = run_processes(in_bfloat16, 3, tmp_path / "three", experiment, prepared)[0]
    (shares,) = run_processes(in_bfloat16, 1, tmp_path / "shares", experiment, prepared)
    assert (three - shares).norm() < 1e-6 * shares.norm()
    train_trial(experiment, prepared, tmp_path / "one", lambda row: None, use_ray_data=False)
    whole = weights(tmp_path / "one").values()
    one = torch.cat([value.flatten().double() for value in whole if value.is_floating_point()])
    assert 1e-5 < (three - one).norm() / one.norm() < 1e-2
