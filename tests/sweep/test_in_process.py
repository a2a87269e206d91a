"""A sweep in this process, without Ray."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from ray_atr.common.override import override
from ray_atr.common.storage import write_text
from ray_atr.sweep import SEARCHES, SweepListener, SweepPlan, sweep
from ray_atr.sweep.search import FixedPoints, Goal, RandomSearch
from ray_atr.sweep.space import Space
from ray_atr.training.experiment import Experiment
from ray_atr.training.ray_train import ERROR_FILE
from ray_atr.training.run_folder import RunFolder, TrialFolder
from tests.support.commands import replace_work
from tests.support.tiny import tiny


def test_a_setting_of_the_data_may_be_searched_in_a_range(home: Path) -> None:
    experiment = tiny(home / "tones", train__epochs=1, scaling__workers=0, scaling__ray_data=False)
    space = Space.parse(["data.noise.ratio=uniform(0.1,0.5)", "data.noise.kind=choice(pair,shift)"], experiment)
    run = RunFolder.create(home / "run", experiment, {"name": "test", "varied": list(space.dimensions), "seeds": [0]})
    result = sweep(run, SweepPlan(RandomSearch(space), (0,), 2), home, use_ray=False, echo=lambda message: None)
    assert (len(result.finished), result.failed) == (2, [])
    ratios = [trial.describe()["overrides"]["data.noise.ratio"] for trial in run.trials()]
    assert all(0.1 <= ratio <= 0.5 for ratio in ratios)


def test_what_a_search_has_still_to_propose_is_left_to_do(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = tiny(home / "tones", train__epochs=1, scaling__workers=0, scaling__ray_data=False)
    space = Space.parse(["train.learning_rate=loguniform(1e-4,1e-2)"], experiment)
    goals = (Goal(experiment.evaluation.select_by),)
    run = RunFolder.create(home / "interrupted", experiment, {"name": "test", "varied": list(space.dimensions)})
    plan = SweepPlan(SEARCHES["optuna"](space, goals), (0, 1), 3)
    # As Tune ends after Ctrl-C between two trials.
    monkeypatch.setattr("ray_atr.sweep.run_trials._run_in_process", lambda queue, *_: finish(queue.next()))
    result = sweep(run, plan, home, use_ray=False, echo=lambda message: None)
    assert (len(result.finished), len(result.unfinished), result.num_unproposed, result.num_left) == (1, 1, 4, 5)
    said: list[str] = []
    sweep(run, plan, home, use_ray=False, echo=said.append)
    assert f"1 of 6 trials are in {run.path} already" in said


def test_a_search_prepares_each_choice_of_a_tower_with_the_settings_that_are_fixed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data would be prepared for the tower's published checkpoint, which may be on no disk."""
    experiment, fixed = tiny(home / "tones"), {"model.text.checkpoint": "/my/bert"}
    space = Space.parse(["model.text=choice(small_transformer,bert)"], experiment)
    run = RunFolder.create(home / "towers", experiment, {"name": "test"})
    search = SEARCHES["optuna"](space, (Goal(experiment.evaluation.select_by),))
    prepare_all = Mock(return_value=[])
    replace_work(monkeypatch, {"sweep.run_trials.prepare_all": prepare_all})
    plan = SweepPlan(search, (0, 1), num_points=2, hours=1e-9, fixed=fixed)
    sweep(run, plan, home, use_ray=False, echo=lambda message: None)
    bert = override(experiment, {"model.text": "bert", **fixed}).model
    assert [(bert, 0), (bert, 1)] == [
        (planned.model, planned.seed) for planned in prepare_all.call_args.args[0] if planned.model.text.name == "bert"
    ]


def finish(trial: TrialFolder | None) -> None:
    assert trial is not None
    trial.finish({"best_epoch": 1, "epoch": 1})


def test_the_points_of_a_list_are_all_to_do_when_time_is_over(home: Path) -> None:
    experiment = tiny(home / "tones", train__epochs=1, scaling__workers=0, scaling__ray_data=False)
    run = RunFolder.create(home / "late", experiment, {"name": "test", "varied": ["data.noise.ratio"]})
    points = [{"data.noise.ratio": ratio, "seed": 0} for ratio in (0.0, 0.2, 0.4)]
    result = sweep(run, SweepPlan(FixedPoints(points), hours=1e-9), home, use_ray=False, echo=lambda message: None)
    assert (result.finished, result.num_left, result.is_out_of_time) == ([], 3, True)


@pytest.mark.slow
def test_a_trial_that_runs_when_time_is_over_ends_with_its_epoch(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed sweep goes on as if there had been no limit."""
    experiment = tiny(home / "tones", train__epochs=3, scaling__workers=0, scaling__ray_data=False)
    runs = [RunFolder.create(home / name, experiment, {"name": "test"}) for name in ("limited", "whole")]

    class Clock(SweepListener):
        now = 0.0

        def epoch_ended(self, trial: TrialFolder, metrics: Mapping[str, Any]) -> None:
            self.now = 7200.0

    clock = Clock()
    monkeypatch.setattr("ray_atr.sweep.run_trials.time", SimpleNamespace(monotonic=lambda: clock.now))
    plan = SweepPlan(FixedPoints([{"seed": 0}, {"seed": 1}]), hours=1.0)
    result = sweep(runs[0], plan, home, use_ray=False, listeners=[clock], echo=lambda message: None)
    assert (result.is_out_of_time, result.num_left) == (True, 2)
    first, second = runs[0].trials()
    assert [(trial.describe()["status"], len(trial.epochs())) for trial in (first, second)] == [
        ("pending", 1),
        ("pending", 0),
    ]
    for run in runs:
        assert len(sweep(run, [{"seed": 0}, {"seed": 1}], home, use_ray=False, echo=lambda message: None).finished) == 2
    for limited, whole in zip(*(run.trials() for run in runs), strict=True):
        assert [row.validation for row in limited.epochs()] == [row.validation for row in whole.epochs()]


@pytest.mark.slow
def test_asha_ends_the_trials_that_are_behind(home: Path) -> None:
    settings: dict[str, Any] = {"train__epochs": 2, "evaluation__every_epochs": 1}
    experiment = tiny(home / "tones", **settings, scaling__workers=0, scaling__ray_data=False)
    run = RunFolder.create(home / "asha", experiment, {"name": "test"})
    points = [{"train.learning_rate": rate} for rate in (1e-3, 1e-7, 2e-3, 2e-7)]
    # The second plan resumes: it knows the reports of the first.
    for number in (2, 4):
        search = FixedPoints(points[:number], (Goal("train/loss", is_maximised=False),))
        sweep(run, SweepPlan(search, scheduler="asha"), home, use_ray=False, echo=lambda message: None)
        told = [trial.describe() | {"epochs": len(trial.epochs())} for trial in run.trials()]
        ended = {one["overrides"]["train.learning_rate"]: (one["status"], one["epochs"]) for one in told}
        expected = {1e-3: ("finished", 2), 1e-7: ("stopped", 1), 2e-3: ("finished", 2), 2e-7: ("stopped", 1)}
        assert ended == {rate: expected[rate] for rate in ended}
        assert len(ended) == number


def test_a_sweep_with_a_result_is_not_ended_by_one_reason_of_the_others(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = tiny(home / "tones", train__epochs=1, scaling__workers=0, scaling__ray_data=False)
    run = RunFolder.create(home / "failing", experiment, {"name": "test"})
    points = [{"seed": seed} for seed in range(5)]
    assert len(sweep(run, points[:1], home, use_ray=False, echo=lambda message: None).finished) == 1

    def fail(experiment: Experiment, folder: Path, *_: object) -> None:
        write_text(folder / ERROR_FILE, "no data")

    replace_work(monkeypatch, {"sweep.run_trials.run_trial": fail})
    result = sweep(run, points, home, use_ray=False, echo=lambda message: None)
    assert (len(result.failed), result.common_failure) == (4, None)


def test_a_search_says_that_its_space_has_no_more_points(home: Path) -> None:
    experiment = tiny(home / "tones", train__epochs=1, scaling__workers=0, scaling__ray_data=False)
    space = Space.parse(["train.momentum=choice(0.5,0.9)"], experiment)
    run = RunFolder.create(home / "small", experiment, {"name": "test"})
    goals = (Goal(experiment.evaluation.select_by),)
    for number, words in ((2, []), (5, ["--trials 5: the space has 2 points; --search optuna found no more"])):
        lines: list[str] = []
        sweep(
            run,
            SweepPlan(SEARCHES["optuna"](space, goals), (0,), number),
            home,
            use_ray=False,
            echo=lines.append,
        )
        assert [line for line in lines if "--trials" in line] == words
