"""A trial that goes on from another's checkpoint, trained without Ray."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny import make_data, tiny

from ray_atr.evaluation.checkpoints import find_checkpoint
from ray_atr.experiment import Experiment
from ray_atr.run_folder import RunFolder, TrialFolder
from ray_atr.sweep.inheritance import experiment_of, inherit, perturbed_settings, save_for_others
from ray_atr.training.checkpoint import load_checkpoint
from ray_atr.training.inputs import prepare
from ray_atr.training.loop import train_trial


def test_weights_history_and_best_are_the_donors_and_the_rate_is_new(tmp_path: Path) -> None:
    experiment = tiny(make_data(tmp_path / "tones"), scaling__workers=0, train__epochs=4, train__weight_decay=0.02)
    run = RunFolder.create(tmp_path / "run", experiment, {"name": "test"})
    donor, heir = (run.add_trial({"train.learning_rate": rate, "seed": 0}) for rate in (0.004, 0.001))
    rows: list[dict[str, Any]] = []
    with pytest.raises(StopIteration):
        train_in_run(run, donor, tmp_path, rows, stop_after=2)
    save_for_others(donor, tmp_path / "aside", with_weights=True)
    settings = {"train.learning_rate": 0.002, "train.weight_decay": 0.01}
    inherit(heir, tmp_path / "aside", settings, donor.trial_id, experiment_of(run, heir))

    assert perturbed_settings(heir) == settings
    assert [row["epoch"] for row in heir.epochs()] == [1, 2]
    before, after = (load_checkpoint(trial.folder / "last") for trial in (donor, heir))
    assert all(before["model"][name].equal(after["model"][name]) for name in before["model"])
    assert all(
        new["initial_lr"] == pytest.approx(old["initial_lr"] / 2) and new["lr"] == pytest.approx(old["lr"] / 2)
        for old, new in zip(before["optimizer"]["param_groups"], after["optimizer"]["param_groups"], strict=True)
    )
    decays = {group["weight_decay"] for group in after["optimizer"]["param_groups"]}
    assert decays == {0.0, 0.01}

    # It goes on as a run of its own: the rates of the epochs that follow are half of what the donor's are.
    mine: list[dict[str, Any]] = []
    train_in_run(run, heir, tmp_path, mine)
    theirs: list[dict[str, Any]] = []
    train_in_run(run, donor, tmp_path, theirs)
    assert [row["epoch"] for row in mine] == [1, 2, 3, 4, 4]
    assert mine[2]["train/learning_rate"] == pytest.approx(theirs[2]["train/learning_rate"] / 2)
    assert json.loads(load_checkpoint(heir.folder / "last")["experiment"])["train.learning_rate"] == 0.002
    # An evaluation of it names what it was trained with.
    assert find_checkpoint(heir.folder).experiment.train.learning_rate == 0.002


def train_in_run(
    run: RunFolder, trial: TrialFolder, home: Path, rows: list[dict[str, Any]], stop_after: int = 1000
) -> None:
    experiment: Experiment = experiment_of(run, trial)

    def report(metrics: dict[str, Any]) -> None:
        rows.append(metrics)
        if len(rows) == stop_after:
            raise StopIteration

    prepared = prepare(experiment, home, use_ray=False, say=lambda message: None)
    train_trial(experiment, prepared, trial.folder, report, use_ray_data=False)
