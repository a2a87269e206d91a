"""Schedulers over a run folder, without a cluster: what they know of earlier sessions, and what they may change."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ray_atr.experiment import Experiment
from ray_atr.run_folder import RunFolder
from ray_atr.space import Space
from ray_atr.sweep import FixedPoints, Goal, SweepPlan
from ray_atr.sweep.schedulers import check_perturbed, make_scheduler

RECALL = Goal("text_to_audio/eng/recall_at_1")
PLAN = SweepPlan(FixedPoints([]), goals=(RECALL,), scheduler="asha")


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", Experiment(), {"name": "sweep"})


def decision(scheduler: Any, **result: Any) -> str:
    trial = SimpleNamespace(trial_id="new")
    scheduler.on_trial_add(None, trial)
    return str(scheduler.on_trial_result(None, trial, result))


def test_asha_knows_what_earlier_sessions_reported(run: RunFolder) -> None:
    for seed, recall in enumerate((0.7, 0.8, 0.9)):
        run.add_trial({"seed": seed}).add_epoch({"epoch": 1, RECALL.metric: recall})
    bad, good = ({"epoch": 1, RECALL.metric: recall} for recall in (0.1, 0.95))
    assert decision(make_scheduler(PLAN, 9, run, []), **bad) == "CONTINUE"
    assert decision(make_scheduler(PLAN, 9, run, list(run.trials())), **bad) == "STOP"
    assert decision(make_scheduler(PLAN, 9, run, list(run.trials())), **good) == "CONTINUE"


def test_a_result_is_never_stopped(run: RunFolder) -> None:
    for seed in range(3):
        run.add_trial({"seed": seed}).add_epoch({"epoch": 9, RECALL.metric: 0.9})
    bad = {"epoch": 9, RECALL.metric: 0.1}
    assert decision(make_scheduler(PLAN, 12, run, list(run.trials())), **bad) == "STOP"
    assert decision(make_scheduler(PLAN, 12, run, list(run.trials())), **bad, is_final=True) == "CONTINUE"
    # Nothing would be spared by stopping a trial after its last epoch.
    assert decision(make_scheduler(PLAN, 9, run, list(run.trials())), **bad) == "CONTINUE"


def test_a_goal_to_lower_keeps_the_low(run: RunFolder) -> None:
    for seed in range(3):
        run.add_trial({"seed": seed}).add_epoch({"epoch": 1, "train/loss": 1.0})
    plan = SweepPlan(FixedPoints([]), goals=(Goal("train/loss", is_maximised=False),), scheduler="asha")
    recorded = list(run.trials())
    assert decision(make_scheduler(plan, 9, run, recorded), **{"epoch": 1, "train/loss": 2.0}) == "STOP"
    assert decision(make_scheduler(plan, 9, run, recorded), **{"epoch": 1, "train/loss": 0.5}) == "CONTINUE"


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("data.noise.ratio=uniform(0,0.5)", "only for what can change in a running trial: train.learning_rate"),
        ("model.embedding_width=choice(16,32)", "only for what can change in a running trial"),
        ("train.weight_decay=uniform(0,0.1)", "values above 0"),
    ],
)
def test_a_population_refuses_what_is_fixed_when_a_trial_starts(entry: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_perturbed(Space.parse([entry], Experiment()))
    check_perturbed(Space.parse(["train.learning_rate=grid(0.1,0.2)"], Experiment()))
