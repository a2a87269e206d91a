"""Schedulers over a run folder, without a cluster: what they know of earlier sessions, and what they may change."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ray_atr.experiment import Experiment
from ray_atr.run_folder import RunFolder, TrialFolder
from ray_atr.space import Space
from ray_atr.sweep import FixedPoints, Goal, GridSearch, RandomSearch, SweepPlan
from ray_atr.sweep.describe import conditions_of
from ray_atr.sweep.schedulers import check_perturbed, compared, make_scheduler

RECALL = Goal("text_to_audio/eng/recall_at_1")
PLAN = SweepPlan(FixedPoints([]), goals=(RECALL,), scheduler="asha")
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


def test_a_result_is_never_stopped(run: RunFolder) -> None:
    recorded = record(run, RECALL.metric, 9, 0.9, 0.9, 0.9)
    bad = {"epoch": 9, RECALL.metric: 0.1}
    assert decision(make_scheduler(PLAN, 12, run, recorded), run, **bad) == "STOP"
    assert decision(make_scheduler(PLAN, 12, run, recorded), run, **bad, is_final=True) == "CONTINUE"
    # Nothing would be spared by stopping a trial after its last epoch.
    assert decision(make_scheduler(PLAN, 9, run, recorded), run, **bad) == "CONTINUE"


def test_a_goal_to_lower_keeps_the_low(run: RunFolder) -> None:
    recorded = record(run, "train/loss", 1, 1.0, 1.0, 1.0)
    plan = SweepPlan(FixedPoints([]), goals=(Goal("train/loss", is_maximised=False),), scheduler="asha")
    assert decision(make_scheduler(plan, 9, run, recorded), run, **{"epoch": 1, "train/loss": 2.0}) == "STOP"
    assert decision(make_scheduler(plan, 9, run, recorded), run, **{"epoch": 1, "train/loss": 0.5}) == "CONTINUE"


@pytest.mark.parametrize("harder", [{"seed": 1}, {"data.noise.ratio": 0.6}, {"objective": "m_ltm"}])
def test_a_harder_task_is_not_ranked_below_an_easier_one(run: RunFolder, harder: dict[str, Any]) -> None:
    entries = [
        "data.noise.ratio=grid(0,0.6)",
        "objective=grid(contrastive,m_ltm)",
        "train.learning_rate=uniform(0.1,1)",
    ]
    plan = SweepPlan(RandomSearch(Space.parse(entries, run.experiment)), (0, 1), 9, goals=(RECALL,), scheduler="asha")
    easier = {"seed": 0, "data.noise.ratio": 0.0, "objective": "contrastive"}
    scheduler = make_scheduler(plan, 9, run, record(run, RECALL.metric, 1, 0.7, 0.8, 0.9, **easier))
    bad = {"epoch": 1, RECALL.metric: 0.1}
    assert decision(scheduler, run, {**easier, **NEW}, **bad) == "STOP"
    assert decision(scheduler, run, {**easier, **harder, **NEW}, **bad) == "CONTINUE"


def test_hyperband_has_brackets_of_their_own_for_each_seed(run: RunFolder) -> None:
    plan = SweepPlan(FixedPoints([]), goals=(RECALL,), scheduler="hyperband")
    scheduler = make_scheduler(plan, 9, run, [])
    trials = [FakeTrial(run, seed, rate) for seed in (0, 1) for rate in (1e-3, 5e-3)]
    for trial in trials:
        scheduler.on_trial_add(None, trial)
    assert [list(one._trial_info) for one in scheduler.by_group.values()] == [trials[:2], trials[2:]]
    assert scheduler.choose_trial_to_run(None) is trials[0]
    trials[0].status = trials[1].status = "RUNNING"
    assert scheduler.choose_trial_to_run(None) is trials[2]


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
        search = GridSearch(Space.parse(entries, run.experiment))
        return conditions_of(SweepPlan(search, (0,), goals=(RECALL,), scheduler=scheduler), run.experiment)

    assert "--scheduler asha ends no trial" in said("data.noise.ratio=grid(0,0.6)")[0]
    assert not said("data.noise.ratio=grid(0,0.6)", scheduler="none")
    assert not said("data.noise.ratio=grid(0,0.6)", "train.learning_rate=grid(0.1,0.01)")


def test_a_population_continues_only_from_trials_of_its_own_seed(run: RunFolder) -> None:
    space = Space.parse(["train.learning_rate=loguniform(1e-4,1e-2)", "train.clip_norm=grid(0.5,1)"], run.experiment)
    plan = SweepPlan(RandomSearch(space), (0, 1), 2, goals=(RECALL,), scheduler="pbt")
    scheduler = make_scheduler(plan, 10, run, [])
    trials = [FakeTrial(run, seed, rate) for seed in (0, 1) for rate in (1e-3, 5e-3)]
    controller = FakeController(trials)
    for trial in trials:
        scheduler.on_trial_add(controller, trial)
        # The grid's value stays the trial's.
        assert trial.config.keys() == {"trial_id", "train.learning_rate"}
    for trial, recall in zip(trials, (0.8, 0.9, 0.1, 0.2), strict=True):
        scheduler.on_trial_result(controller, trial, {"epoch": 2, RECALL.metric: recall})
    upper = [[trial.name for trial in one._quantiles()[1]] for one in scheduler.by_group.values()]
    assert upper == [["0 0.005"], ["1 0.005"]]
    assert scheduler.choose_trial_to_run(controller) in trials


class FakeTrial:
    """What population-based training asks of a trial of Tune."""

    def __init__(self, run: RunFolder, seed: int, rate: float) -> None:
        folder = run.add_trial({"train.learning_rate": rate, "train.clip_norm": 1.0, "seed": seed})
        self.config: dict[str, Any] = {"trial_id": folder.trial_id}
        self.name, self.status, self.evaluated_params = f"{seed} {rate}", "PENDING", dict[str, Any]()
        self.experiment_tag = self.name
        manager = SimpleNamespace(checkpoint_config=SimpleNamespace(num_to_keep=None))
        self.run_metadata = SimpleNamespace(checkpoint_manager=manager)

    def set_config(self, config: dict[str, Any]) -> None:
        self.config = config

    def is_finished(self) -> bool:
        return False


class FakeController:
    """What population-based training asks of Tune."""

    search_alg = None

    def __init__(self, trials: list[FakeTrial]) -> None:
        self.trials = trials

    def get_trials(self) -> list[FakeTrial]:
        return self.trials

    def _schedule_trial_save(self, trial: FakeTrial, result: Any) -> None:
        """Saves nothing, so that nothing is taken over."""


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
