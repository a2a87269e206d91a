"""Schedules, rates of their own, and the rate that `auto` stands for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ray_atr.common.override import override
from ray_atr.models.retriever import build_retriever
from ray_atr.training.checkpoint import load_checkpoint
from ray_atr.training.experiment import Experiment, TrainSettings, automatic_rate, resolved
from ray_atr.training.inputs import prepare
from ray_atr.training.loop import train_trial
from ray_atr.training.run_folder import LAST
from ray_atr.training.setup import make_optimizer, make_schedule
from tests.support.tiny import make_data, prepared_for, tiny

STEPS = 4
"""of an epoch"""


def rates(settings: dict[str, Any]) -> list[float]:
    """The rate at each step of a run, relative to its peak."""
    parsed = override(TrainSettings(), {"epochs": 5, "learning_rate": 1.0, **settings})
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = make_schedule(optimizer, parsed, STEPS)
    found = []
    for _ in range(5 * STEPS):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return found


def test_steps_fall_by_the_factor_every_few_epochs() -> None:
    found = rates({"schedule": "step", "step_epochs": 2, "step_factor": 0.1, "warmup_fraction": 0})
    assert found == pytest.approx([0.1 ** (step // (2 * STEPS)) for step in range(5 * STEPS)])


def test_a_warm_up_goes_before_steps() -> None:
    found = rates({"schedule": "step", "step_epochs": 2, "step_factor": 0.5, "warmup_fraction": 0.25})
    expected = [min(1.0, (step + 1) / 5) * 0.5 ** (step // (2 * STEPS)) for step in range(5 * STEPS)]
    assert found == pytest.approx(expected)


def test_a_constant_stays() -> None:
    found = rates({"schedule": "constant", "warmup_fraction": 0.2})
    assert found == pytest.approx([0, 0.25, 0.5, 0.75] + [1.0] * 16)
    # 2.6 of 20 steps.
    found = rates({"schedule": "constant", "warmup_fraction": 0.13})
    assert found == pytest.approx([0, 1 / 3, 2 / 3] + [1.0] * 17)


@pytest.mark.parametrize("schedule", ["cosine", "step", "constant"])
def test_a_schedule_goes_on_from_its_state(schedule: str) -> None:
    settings = override(TrainSettings(), {"epochs": 5, "schedule": schedule, "step_epochs": 1, "warmup_fraction": 0.3})
    whole, resumed = (torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0) for _ in range(2))
    schedules = [make_schedule(optimizer, settings, STEPS) for optimizer in (whole, resumed)]
    for _ in range(9):
        whole.step()
        schedules[0].step()
    schedules[1].load_state_dict(schedules[0].state_dict())
    resumed.load_state_dict(whole.state_dict())
    for _ in range(9):
        for optimizer, one in zip((whole, resumed), schedules, strict=True):
            optimizer.step()
            one.step()
        assert whole.param_groups[0]["lr"] == resumed.param_groups[0]["lr"]


def test_the_metric_has_a_rate_of_its_own(tmp_path: Path) -> None:
    experiment = tiny(
        make_data(tmp_path / "tones", num_train=8, num_val=4, num_test=4),
        objective__pair="learning_to_match",
        objective__pair__metric="diagonal",
        train__metric_rate_scale=10.0,
        train__learning_rate=0.01,
    )
    retriever = build_retriever(
        experiment.model,
        tokenizer=prepared_for(experiment, tmp_path).load_tokenizer(),
        seed=0,
        learned=experiment.learned,
    )
    groups = make_optimizer(retriever, experiment).param_groups
    rate_of = {id(weight): group["lr"] for group in groups for weight in group["params"]}
    assert rate_of.pop(id(retriever.learned.metric)) == pytest.approx(0.1)
    assert set(rate_of.values()) == {0.01}


@pytest.mark.parametrize(
    ("settings", "rate"),
    [
        ({}, 1e-3),
        ({"model.audio": "resnet38", "model.audio.checkpoint": "x", "model.text": "bert"}, 5e-5),
        ({"model.audio": "small_cnn", "model.text": "bert"}, 5e-5),
        ({"model.audio": "ced", "model.audio.checkpoint": "x", "model.text": "sonar"}, 2e-5),
        ({"model.audio": "ced"}, 1e-3),
        ({"model.audio": "htsat", "model.audio.adapt.is_frozen": True}, 1e-3),
        (
            {
                "model.audio": "htsat",
                "model.audio.adapt.is_frozen": True,
                "model.text": "bert",
                "model.text.adapt.is_frozen": True,
            },
            1e-3,
        ),
        ({"model.audio": "resnet38", "model.audio.adapt.is_frozen": True, "model.text": "bert"}, 2e-5),
    ],
)
def test_auto_chooses_by_what_is_trained(settings: dict[str, Any], rate: float) -> None:
    experiment = override(Experiment(), settings)
    assert automatic_rate(experiment.model)[0] == experiment.learning_rate == rate
    assert resolved(experiment).train.learning_rate == rate
    chosen = override(experiment, {"train.learning_rate": "0.25"})
    assert chosen.learning_rate == resolved(chosen).train.learning_rate == 0.25


def test_a_rate_that_is_none_is_refused() -> None:
    for value in ("-1", "0", "fast"):
        with pytest.raises(ValueError, match=r"train\.learning_rate: got"):
            override(Experiment(), {"train.learning_rate": value})


def test_auto_is_printed_and_stored_as_a_number(tmp_path: Path) -> None:
    experiment = tiny(
        make_data(tmp_path / "tones", num_train=8, num_val=4, num_test=4), train__learning_rate="auto", train__epochs=1
    )
    said: list[str] = []
    prepare(experiment, tmp_path, use_ray=False, echo=said.append)
    assert "train.learning_rate: 0.001, chosen by auto because no pretrained tower is trained" in said
    train_trial(experiment, prepared_for(experiment, tmp_path), tmp_path / "run", lambda row: None, use_ray_data=False)
    state = load_checkpoint(tmp_path / "run" / LAST)
    assert '"train.learning_rate": 0.001' in state["experiment"]
    # Going on with the number instead of the word is the same run.
    named = override(experiment, {"train.learning_rate": 0.001})
    train_trial(named, prepared_for(named, tmp_path), tmp_path / "run", lambda row: None, use_ray_data=False)
