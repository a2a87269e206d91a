"""A batch of which no clip has a text that the scheme compares: its loss is zero, and the training goes on."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from ray_atr.data.shards import write_clips
from ray_atr.objectives.correspondence import Estimator
from ray_atr.training.batch import TrainingData
from ray_atr.training.checkpoint import Progress, load_checkpoint
from ray_atr.training.encoding.texts import TextBatcher
from ray_atr.training.experiment import Experiment
from ray_atr.training.group import WorkerGroup
from ray_atr.training.loop import train_trial
from ray_atr.training.setup import first_state
from ray_atr.training.step import training_step
from tests.support import tiny_checkpoints
from tests.support.processes import run_processes
from tests.support.tiny import prepared_for, tiny, tone_clip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of 16 training clips two have an English caption, so that of batches of four two at least have none."""
    folder = tmp_path_factory.mktemp("home")
    french = [tone_clip("train", index, {"fra": [f"un son, numéro {index}"]}) for index in range(2, 16)]
    both = [
        tone_clip(split, index, {"eng": [f"tone number {index}"], "fra": [f"un son, numéro {index}"]})
        for split, count in (("train", 2), ("val", 4), ("test", 4))
        for index in range(count)
    ]
    write_clips(folder / "tones", french + both, name="tones", licence="none")
    return folder


def experiment(home: Path, **changes: Any) -> Experiment:
    return tiny(home / "tones", **{"train__batch_size": 4, "objective__scheme": "english", **changes})


@pytest.mark.parametrize("changes", [{}, {"objective": "ask", "objective__scheme": "english"}])
def test_a_training_goes_on(home: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    chosen = experiment(home, **changes)
    rows: list[Any] = []
    train_trial(chosen, prepared_for(chosen, home), tmp_path, rows.append, use_ray_data=False)
    losses = [row["train/loss"] for row in rows if "train/loss" in row]
    assert len(losses) == chosen.train.epochs
    assert all(math.isfinite(value) for row in rows for value in row.values() if isinstance(value, float))


def test_it_has_no_gradient_and_no_pair_of_it_is_judged(home: Path, tmp_path: Path) -> None:
    chosen = experiment(home, objective__correspondence="small_loss")
    data = TrainingData(chosen, prepared_for(chosen, home), WorkerGroup())
    state = first_state(data, tmp_path)
    estimator: Estimator = state.estimator
    found = []
    _, batches = next(data.epochs(0, 0, use_ray=False))
    for batch in batches:
        state.optimizer.zero_grad(set_to_none=True)
        result = training_step(
            state.retriever, TextBatcher(state.retriever), chosen.objective, batch, data.group, estimator=estimator
        )
        found.append((bool(batch.mask[:, 0].any()), result))
        norms = [0.0 if p.grad is None else float(p.grad.norm()) for p in state.retriever.parameters()]
        assert (max(norms) > 0) == (int(batch.mask[:, 0].sum()) > 1)
        if not found[-1][0]:
            assert all(p.grad is None for p in state.retriever.parameters())
            assert result.scalars == {"loss": 0.0}
    assert {has_text for has_text, _ in found} == {False, True}
    assert int((~estimator.epoch_probabilities.isnan()).sum()) == 2


def test_the_mean_of_a_languages_loss_is_over_the_steps_that_had_its_captions() -> None:
    progress = Progress()
    for scalars in ({"loss": 1.0, "loss_audio_text0": 4.0}, {"loss": 2.0}, {"loss": 3.0, "loss_audio_text0": 6.0}):
        # As a run that is resumed after each step.
        progress = Progress(**vars(progress))
        progress.add(scalars, seconds=1.0)
    assert progress.end_epoch() == {"loss": 2.0, "loss_audio_text0": 5.0}
    progress.add({"loss_audio_text0": 1.0}, seconds=1.0)
    assert progress.end_epoch() == {"loss_audio_text0": 1.0}, "the next epoch's alone"


def test_weights_that_no_loss_uses_stay_as_they_are(home: Path, tmp_path: Path) -> None:
    """The output weight of the audio tower under late interaction; alone and in the mean of two batches."""
    for number, batches_per_step in enumerate((1, 2)):
        chosen = experiment(home, model__interaction="late", train__batches_per_step=batches_per_step)
        prepared, folder = prepared_for(chosen, home), tmp_path / str(number)
        before = first_state(TrainingData(chosen, prepared, WorkerGroup()), folder).retriever.state_dict()
        train_trial(chosen, prepared, folder, lambda row: None, use_ray_data=False)
        after = load_checkpoint(folder / "last")["model"]
        name = "audio_tower.out.weight"
        assert torch.equal(after[name], before[name])
        assert not torch.equal(after["audio_tower.convolutions.0.weight"], before["audio_tower.convolutions.0.weight"])


@pytest.mark.parametrize("text", ["small_transformer", "bert"])
def test_no_texts_have_no_tokens_and_a_gradient_of_zero_in_late_interaction(
    text: str, home: Path, tmp_path: Path
) -> None:
    """Of a worker whose share of a batch has no text, beside others that have some."""
    tower = {"model__text__checkpoint": str(tiny_checkpoints.bert(tmp_path / "bert"))} if text == "bert" else {}
    chosen = experiment(home, model__interaction="late", model__text=text, **tower)
    retriever = first_state(TrainingData(chosen, prepared_for(chosen, home), WorkerGroup()), tmp_path).retriever
    encoded = TextBatcher(retriever).embed_tokens([])
    assert [len(values) for values in encoded] == [0, 0, 0]
    encoded.tokens.sum().backward()
    gradients = [parameter.grad for parameter in retriever.text_projection.parameters()]
    assert all(gradient is not None and not bool(gradient.any()) for gradient in gradients)


def trained_share(rank: int, size: int, folder: Path, home: Path) -> tuple[list[int], list[float]]:
    """The number of texts of this worker's share, of those batches of which two or more texts are compared; and the weights."""
    changes = {"objective": "m_ltm", "objective.scheme": "english", "scaling.share_losses_from": 1}
    chosen = tiny(home / "halves", **{**changes, "train.batch_size": 4, "train.epochs": 1})
    group, prepared = WorkerGroup(rank, size, shares=(4 // size,) * size), prepared_for(chosen, home)
    data = TrainingData(chosen, prepared, group)
    _, batches = next(data.epochs(0, 0, use_ray=False))
    shared = [batch for batch in batches if int(batch.global_batch.mask[:, 0].sum()) >= 2]
    train_trial(chosen, prepared, folder / "run", lambda row: None, group, use_ray_data=False)
    weights = load_checkpoint(folder / "run" / "last")["model"]
    return [int(batch.mask[:, 0].sum()) for batch in shared], torch.cat(
        [w.flatten() for w in weights.values()]
    ).tolist()


@pytest.mark.slow
def test_a_worker_without_texts_takes_part_in_a_shared_plan(home: Path, tmp_path: Path) -> None:
    """It would else leave the exchange of gradients to the others, and its next one would be another than theirs."""
    clips = [
        tone_clip(
            split, index, {"fra": [f"un son, numéro {index}"], **({"eng": [f"tone {index}"]} if index % 2 else {})}
        )
        for split, count in (("train", 24), ("val", 4))
        for index in range(count)
    ]
    write_clips(home / "halves", clips, name="halves", licence="none")
    ((_, expected),) = run_processes(trained_share, 1, tmp_path / "one", home)
    (first, found), (second, _) = run_processes(trained_share, 2, tmp_path / "two", home)
    assert any(min(texts) == 0 for texts in zip(first, second, strict=True))
    assert found == pytest.approx(expected, abs=1e-4)
