"""Schedulers over a run folder, without a cluster: what they know of earlier sessions, and whom they rank."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ray_atr.sweep import FixedPoints, Goal, GridSearch, RandomSearch, SweepPlan
from ray_atr.sweep.describe import conditions_of
from ray_atr.sweep.schedulers import check_scheduler, compared, make_scheduler
from ray_atr.sweep.space import Space
from ray_atr.training.experiment import Experiment
from ray_atr.training.run_folder import RunFolder, TrialFolder

RECALL = Goal("text_to_audio/eng/recall_at_1")
PLAN = SweepPlan(FixedPoints([], (RECALL,)), scheduler="asha")
NEW = {"train.learning_rate": 0.5}


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", Experiment(), {"name": "sweep"})


def decision(scheduler: Any, run: RunFolder, overrides: Mapping[str, Any] = NEW, **result: Any) -> str:
    """What the scheduler says to the result of a trial that it did not know."""
    trial_id = run.add_trial(overrides).trial_id
    trial = SimpleNamespace(trial_id=f"new {trial_id}", config={"trial_id": trial_id})
    scheduler.on_trial_add(None, trial)
    return str(scheduler.on_trial_result(None, trial, result))


def record(run: RunFolder, metric: str, epoch: int, *values: float, **others: Any) -> list[TrialFolder]:
    """Trials of as many learning rates that reported these values."""
    for number, value in enumerate(values):
        trial = run.add_trial({"train.learning_rate": 0.1**number, **others})
        trial.add_epoch({"epoch": epoch, metric: value})
    return list(run.trials())


def test_asha_knows_what_earlier_sessions_reported(run: RunFolder) -> None:
    recorded = record(run, RECALL.metric, 1, 0.7, 0.8, 0.9)
    bad, good = ({"epoch": 1, RECALL.metric: recall} for recall in (0.1, 0.95))
    assert decision(make_scheduler(PLAN, 9, run, []), run, **bad) == "CONTINUE"
    assert decision(make_scheduler(PLAN, 9, run, recorded), run, **bad) == "STOP"
    assert decision(make_scheduler(PLAN, 9, run, recorded), run, **good) == "CONTINUE"


def test_a_resumed_trial_is_ranked_as_it_was_before(run: RunFolder) -> None:
    """Better trials have come since; and its session may have ended before it was recorded as stopped."""

    def decisions(trial: TrialFolder, *further: Mapping[str, Any]) -> list[str]:
        scheduler = make_scheduler(PLAN, 9, run, [third, fourth, second, first])
        overrides = trial.describe()["overrides"]
        return [decision(scheduler, run, overrides, **row) for row in (*trial.epochs(), *further)]

    first, second, third, fourth = (run.add_trial({"train.learning_rate": rate}) for rate in (1.0, 0.1, 0.2, 0.3))
    for trial, epoch, recall in ((first, 1, 0.5), (second, 1, 0.1), (third, 1, 0.6), (fourth, 1, 0.7), (first, 2, 0.5)):
        trial.add_epoch({"epoch": epoch, RECALL.metric: recall})
    assert decisions(first) == ["CONTINUE", "CONTINUE"]
    assert decisions(second) == ["STOP"]
    fourth.add_epoch({"epoch": 3, RECALL.metric: 0.7})
    assert decisions(first, {"epoch": 3, RECALL.metric: 0.5})[-1] == "STOP"


def test_a_resumed_trial_is_ranked_when_it_reported_and_not_where_it_went_on(run: RunFolder) -> None:
    early, late, *others = (run.add_trial({"train.learning_rate": rate}) for rate in (1.0, 0.1, 0.2, 0.3, 0.4))
    for trial, recall in zip((early, *others, late), (0.1, 0.6, 0.7, 0.8, 0.1), strict=True):
        trial.add_epoch({"epoch": 1, RECALL.metric: recall})
    late.add_epoch({"epoch": 2, RECALL.metric: 0.1})
    scheduler = make_scheduler(PLAN, 9, run, [*others, late, early])
    for trial in (early, late):
        assert decision(scheduler, run, trial.describe()["overrides"], **trial.epochs()[0]) == "CONTINUE"


def test_a_result_is_never_stopped(run: RunFolder) -> None:
    recorded = record(run, RECALL.metric, 9, 0.9, 0.9, 0.9)
    bad = {"epoch": 9, RECALL.metric: 0.1}
    assert decision(make_scheduler(PLAN, 12, run, recorded), run, **bad) == "STOP"
    assert decision(make_scheduler(PLAN, 12, run, recorded), run, **bad, is_final=True) == "CONTINUE"
    # Nothing would be spared by stopping a trial after its last epoch.
    assert decision(make_scheduler(PLAN, 9, run, recorded), run, **bad) == "CONTINUE"


def test_a_race_stops_what_was_dropped_but_no_result(run: RunFolder) -> None:
    plan = SweepPlan(FixedPoints([], (RECALL,)), (0, 1), scheduler="race")
    results = {"epoch": 4}, {"epoch": 9}, {"epoch": 4, "is_final": True}
    dropped: set[str] = set()
    scheduler = make_scheduler(plan, 9, run, [], dropped)
    for said in (["CONTINUE"] * 3, ["STOP", "CONTINUE", "CONTINUE"]):
        assert [decision(scheduler, run, **result) for result in results] == said
        dropped.add(run.add_trial(NEW).trial_id)


@pytest.mark.parametrize("name", ["asha", "race"])
def test_the_end_of_a_trial_is_its_own(run: RunFolder, name: str) -> None:
    """A sweep may vary the number of epochs."""
    plan = SweepPlan(FixedPoints([], (RECALL,)), (0, 1), scheduler=name)
    bad = {RECALL.metric: 0.1}
    for own, epoch, said in (
        (3, 2, "STOP"),
        (3, 3, "CONTINUE"),
        (20, 9, "STOP"),
        (20, 19, "STOP"),
        (20, 20, "CONTINUE"),
    ):
        recorded = record(run, RECALL.metric, epoch, 0.9, 0.9, 0.9, **{"train.epochs": own})
        overrides = {**NEW, "train.epochs": own}
        scheduler = make_scheduler(plan, 9, run, recorded, {run.add_trial(overrides).trial_id})
        assert decision(scheduler, run, overrides, epoch=epoch, **bad) == said


def test_a_goal_to_lower_keeps_the_low(run: RunFolder) -> None:
    recorded = record(run, "train/loss", 1, 1.0, 1.0, 1.0)
    plan = SweepPlan(FixedPoints([], (Goal("train/loss", is_maximised=False),)), scheduler="asha")
    assert decision(make_scheduler(plan, 9, run, recorded), run, **{"epoch": 1, "train/loss": 2.0}) == "STOP"
    assert decision(make_scheduler(plan, 9, run, recorded), run, **{"epoch": 1, "train/loss": 0.5}) == "CONTINUE"


@pytest.mark.parametrize(
    "harder", [{"seed": 1}, {"data.noise.ratio": 0.6}, {"objective": "m_ltm"}, {"evaluation.relevance": "label"}]
)
def test_a_harder_task_is_not_ranked_below_an_easier_one(run: RunFolder, harder: dict[str, Any]) -> None:
    entries = [
        "data.noise.ratio=grid(0,0.6)",
        "objective=grid(contrastive,m_ltm)",
        "train.learning_rate=uniform(0.1,1)",
    ]
    plan = SweepPlan(RandomSearch(Space.parse(entries, run.experiment), (RECALL,)), (0, 1), 9, scheduler="asha")
    easier = {"seed": 0, "data.noise.ratio": 0.0, "objective": "contrastive"}
    scheduler = make_scheduler(plan, 9, run, record(run, RECALL.metric, 1, 0.7, 0.8, 0.9, **easier))
    bad = {"epoch": 1, RECALL.metric: 0.1}
    assert decision(scheduler, run, {**easier, **NEW}, **bad) == "STOP"
    assert decision(scheduler, run, {**easier, **harder, **NEW}, **bad) == "CONTINUE"


def test_a_grid_alone_is_compared_but_for_its_data(run: RunFolder) -> None:
    space = Space.parse(["data.noise.ratio=grid(0,0.6)", "train.learning_rate=grid(0.1,0.01)"], run.experiment)
    assert compared(space) == ["train.learning_rate"]
    assert not compared(Space.parse(["data.noise.ratio=grid(0,0.6)"], run.experiment))
    with_choice = Space.parse(
        ["objective=grid(contrastive,m_ltm)", "train.warmup_fraction=choice(0,0.1)"], run.experiment
    )
    assert compared(with_choice) == ["train.warmup_fraction"]


def test_a_sweep_with_nothing_to_stop_says_so(run: RunFolder) -> None:
    def said(*entries: str, scheduler: str = "asha") -> list[str]:
        search = GridSearch(Space.parse(entries, run.experiment), (RECALL,))
        return conditions_of(SweepPlan(search, (0,), scheduler=scheduler), run.experiment)

    assert "--scheduler asha ends no trial" in said("data.noise.ratio=grid(0,0.6)")[0]
    assert not said("data.noise.ratio=grid(0,0.6)", scheduler="none")
    assert not said("data.noise.ratio=grid(0,0.6)", "train.learning_rate=grid(0.1,0.01)")


def test_trials_of_other_seeds_leave_each_others_ranking_alone(run: RunFolder) -> None:
    """A trial is stopped by its own rivals alone, however many trials of another seed were better."""
    plan = SweepPlan(FixedPoints([], (RECALL,)), (0, 1), scheduler="asha")
    recorded = record(run, RECALL.metric, 1, 0.7, 0.8, 0.9, seed=1)
    recorded += record(run, RECALL.metric, 1, 0.1, 0.1, 0.1, seed=0)
    scheduler = make_scheduler(plan, 9, run, recorded)
    middling = {"epoch": 1, RECALL.metric: 0.5}
    assert decision(scheduler, run, {**NEW, "seed": 0}, **middling) == "CONTINUE"
    assert decision(scheduler, run, {**NEW, "seed": 1}, **middling) == "STOP"


def test_a_list_of_points_without_a_goal_cannot_be_ranked() -> None:
    with pytest.raises(ValueError, match="--scheduler: got 'asha'; allowed none with no goal"):
        check_scheduler(SweepPlan(FixedPoints([NEW]), scheduler="asha"), Experiment())
