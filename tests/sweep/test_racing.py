"""A race over a run folder: who is dropped, what is run, and that a resumed sweep decides alike. Nothing is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ray_atr.evaluation.report import write_report
from ray_atr.metrics.metric import Metric
from ray_atr.metrics.unit_scores import packed_scores
from ray_atr.sweep import FixedPoints, Goal, GridSearch, OptunaSearch, SweepListener, SweepPlan, sweep
from ray_atr.sweep.racing import Racing
from ray_atr.sweep.schedulers import check_scheduler, make_scheduler
from ray_atr.sweep.space import Space
from ray_atr.sweep.trial_queue import TrialQueue
from ray_atr.training.experiment import Experiment
from ray_atr.training.run_folder import FINISHED, PENDING, STOPPED, RunFolder, TrialFolder
from tests.support.commands import replace_work

EXPERIMENT = Experiment()
SELECT_BY = EXPERIMENT.evaluation.select_by
CLIPS, EPOCHS = 200, 3
RATE = "train.learning_rate"
STRENGTH = {0.1: 0.8, 0.01: 0.75, 0.001: 0.2}
"""Of a rate, the share of the clips that are found: the last one is far behind."""


class InterruptError(Exception):
    """What Ctrl-C is to a sweep."""


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", EXPERIMENT, {"name": "sweep"})


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the trials that a sweep in this process trains, which report made-up epochs."""
    names: list[str] = []

    def run_trial(experiment: Experiment, folder: Path, home: Path, callbacks: Any, report: Any) -> None:
        trial = TrialFolder(folder)
        names.append(trial.describe()["name"])
        for row in rows_of(trial.describe()["overrides"]):
            report(row)
        report({"is_final": True, "epoch": EPOCHS, "best_epoch": 2})

    work = {"sweep.run_trials.run_trial": run_trial, "sweep.run_trials.prepare_all": lambda *_, **options: []}
    replace_work(monkeypatch, work)
    return names


def rows_of(overrides: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Epochs of which the second is the best; a clip's difficulty is the same for all, its luck is not."""
    seed, rate = int(overrides["seed"]), float(overrides[RATE])
    difficulty = np.random.default_rng(0).random(CLIPS)
    luck = 0.1 * np.random.default_rng([seed, round(rate * 1000)]).random(CLIPS)
    hits = (difficulty + luck < STRENGTH[rate]).astype(np.float64)
    worse = np.zeros(CLIPS)
    return [
        {"epoch": epoch, "best_epoch": min(epoch, 2), SELECT_BY: float(one.mean()), "unit_scores": packed_scores(one)}
        for epoch, one in enumerate((worse, hits, worse), 1)
    ]


def plan_of(
    *seeds: int, rates: tuple[float, ...] = tuple(STRENGTH), goals: tuple[Goal, ...] = (), **choices: Any
) -> SweepPlan:
    points = [{RATE: rate, "seed": seed} for rate in rates for seed in seeds]
    return SweepPlan(FixedPoints(points, goals), scheduler="race", **choices)


def quietly(run: RunFolder, plan: SweepPlan, **options: Any) -> Any:
    return sweep(run, plan, run.path, use_ray=False, **{"echo": lambda message: None, **options})


def evidence_of(run: RunFolder) -> dict[str, Any]:
    return {trial.trial_id: trial.describe().get("dropped") for trial in run.trials()}


def test_a_point_that_is_far_behind_gets_no_second_seed(run: RunFolder, trained: list[str]) -> None:
    lines: list[str] = []
    result = quietly(run, plan_of(0, 1, 2), echo=lines.append)
    assert trained == [
        *("lr=0.1 seed=0", "lr=0.01 seed=0", "lr=0.001 seed=0"),
        *("lr=0.1 seed=1", "lr=0.01 seed=1", "lr=0.1 seed=2", "lr=0.01 seed=2"),
    ]
    assert (len(result.finished), len(result.stopped), result.num_left) == (7, 2, 0)
    said, spared = (line for line in lines if line.startswith("race: "))
    assert spared == (
        "race: 2 trials were spared, enough for 1 further seed of the 2 points left: "
        f"--resume {run.path} --seeds 0 1 2 3, or --spend-spared"
    )
    assert "lr=0.001 is dropped: lr=0.1 is ahead by" in said
    assert "after 1 seed, by" in said
    for trial in run.trials():
        described = trial.describe()
        is_last = described["overrides"][RATE] == 0.001
        assert described["status"] == (STOPPED if is_last and described["overrides"]["seed"] else FINISHED)
        assert (described.get("dropped") or {}).get("rival") == ("lr=0.1" if is_last else None)


def test_listeners_are_told_of_what_is_not_started(run: RunFolder, trained: list[str]) -> None:
    stopped: list[str] = []

    class Told(SweepListener):
        def trial_stopped(self, trial: TrialFolder) -> None:
            stopped.append(trial.describe()["name"])

    quietly(run, plan_of(0, 1), listeners=[Told()])
    assert stopped == ["lr=0.001 seed=1"]


class Interrupting(SweepListener):
    """Stops a sweep once so many trials have been trained."""

    def __init__(self, trained: list[str], after: int) -> None:
        self.trained, self.after = trained, after

    def trial_finished(self, trial: TrialFolder) -> None:
        if len(self.trained) == self.after:
            raise InterruptError


@pytest.mark.parametrize("after", [1, 4])
def test_a_sweep_that_was_interrupted_decides_as_if_it_had_not_been(
    run: RunFolder, trained: list[str], tmp_path: Path, after: int
) -> None:
    whole = RunFolder.create(tmp_path / "whole", EXPERIMENT, {"name": "sweep"})
    quietly(whole, plan_of(0, 1, 2))
    expected = list(trained)
    trained.clear()
    with pytest.raises(InterruptError):
        quietly(run, plan_of(0, 1, 2), listeners=[Interrupting(trained, after)])
    result = quietly(run, plan_of(0, 1, 2))
    assert (trained, result.num_left) == (expected, 0)
    assert evidence_of(run) == evidence_of(whole)


def test_the_seeds_of_a_race_keep_their_order_in_whichever_they_are_named_again(
    run: RunFolder, trained: list[str], tmp_path: Path
) -> None:
    def grid(*seeds: int) -> SweepPlan:
        search = GridSearch(Space.parse([f"{RATE}=grid(0.1,0.01,0.001)"], EXPERIMENT), (Goal(SELECT_BY),))
        return SweepPlan(search, seeds, scheduler="race")

    whole = RunFolder.create(tmp_path / "whole", EXPERIMENT, {"name": "sweep"})
    quietly(whole, grid(0, 1, 2))
    expected = list(trained)
    trained.clear()
    with pytest.raises(InterruptError):
        quietly(run, grid(0, 1, 2), listeners=[Interrupting(trained, 1)])
    quietly(run, grid(2, 1, 0))
    assert trained == expected
    assert list(evidence_of(run).values()) == list(evidence_of(whole).values())


def test_seeds_that_are_added_go_to_what_is_left(run: RunFolder, trained: list[str]) -> None:
    quietly(run, plan_of(1, 2))
    before = evidence_of(run)
    trained.clear()
    result = quietly(run, plan_of(0, 1, 2))
    assert trained == ["lr=0.1 seed=0", "lr=0.01 seed=0"]
    assert (len(result.stopped), result.num_left) == (2, 0)
    assert {name: evidence_of(run)[name] for name in before} == before


@pytest.mark.slow
@pytest.mark.parametrize("after", [None, 5, 8])
def test_spared_trials_go_to_the_points_that_are_left(run: RunFolder, trained: list[str], after: int | None) -> None:
    lines: list[str] = []
    plan = plan_of(0, 1, 2, spends_spared=True)
    if after is not None:
        with pytest.raises(InterruptError):
            quietly(run, plan, listeners=[Interrupting(trained, after)])
    result = quietly(run, plan, echo=lines.append)
    # As many as were planned, and none of the point that was dropped.
    assert len(trained) == len(result.finished) == 9
    assert trained[-4:] == ["lr=0.1 seed=2", "lr=0.01 seed=2", "lr=0.1 seed=3", "lr=0.01 seed=3"]
    assert (len(result.stopped), result.num_left) == (3, 0)
    told = "race: 2 trials were spared, enough for 1 further seed of the 2 points left"
    assert (told in lines) == (after != 8)
    # A second run of it has nothing to do, and seeds that the user adds are not taken for granted ones.
    assert quietly(run, plan).finished == result.finished
    quietly(run, plan_of(0, 1, 2, 7, spends_spared=True))
    assert trained[9:] == ["lr=0.1 seed=7", "lr=0.01 seed=7"]


def test_a_further_seed_is_one_that_no_point_has_had(run: RunFolder, trained: list[str]) -> None:
    quietly(run, plan_of(7, 3, 5, spends_spared=True))
    assert trained[-2:] == ["lr=0.1 seed=8", "lr=0.01 seed=8"]


def test_nothing_is_spent_on_a_point_that_has_won(run: RunFolder, trained: list[str]) -> None:
    quietly(run, plan_of(0, 1, 2, rates=(0.1, 0.001), spends_spared=True))
    assert trained == ["lr=0.1 seed=0", "lr=0.001 seed=0", "lr=0.1 seed=1", "lr=0.1 seed=2"]


def test_points_on_other_data_and_references_are_not_raced(run: RunFolder, trained: list[str]) -> None:
    points = [
        {RATE: rate, "data.noise.ratio": ratio, "seed": seed}
        for rate, ratio in ((0.1, 0.0), (0.001, 0.4))
        for seed in (0, 1)
    ]
    assert not quietly(run, SweepPlan(FixedPoints(points), scheduler="race")).stopped


def test_a_dropped_trial_that_was_begun_says_how_far_it_came(run: RunFolder) -> None:
    queue = TrialQueue(run, plan_of(0, 1), lambda point: None)
    racing = Racing(run, plan_of(0, 1), queue, lambda message: None)
    *first_seeds, _, _, begun = queue.waiting
    assert begun.describe()["name"] == "lr=0.001 seed=1"
    begun.add_epoch({"epoch": 1, "seconds/train": 2.5})
    for trial in first_seeds:
        for row in rows_of(trial.describe()["overrides"]):
            trial.add_epoch(row)
        trial.finish({"epoch": EPOCHS, "best_epoch": 2})
        racing.trial_finished(trial)
    described = begun.describe()
    assert (described["status"], described["epochs"], described["train_seconds"]) == (STOPPED, 1, 2.5)


def test_what_others_are_read_against_is_run_whole(run: RunFolder, trained: list[str]) -> None:
    assert not quietly(run, plan_of(0, 1, references=({RATE: 0.001},))).stopped
    assert len(trained) == 6


def test_a_running_trial_of_a_dropped_point_ends_with_its_epoch(run: RunFolder) -> None:
    """As on Ray, where the second seed of some points begins before the first seed of all has ended."""
    plan = plan_of(0, 1)
    queue = TrialQueue(run, plan, lambda point: None)
    racing = Racing(run, plan, queue, lambda message: None)
    handed_out = [queue.next() for _ in range(6)]
    trials = [trial for trial in handed_out if trial is not None]
    scheduler = make_scheduler(plan, EPOCHS, run, [], racing.dropped)
    running = trials[5]
    assert running.describe()["name"] == "lr=0.001 seed=1"

    def said(**result: Any) -> str:
        trial = SimpleNamespace(trial_id="of Tune", config={"trial_id": running.trial_id})
        return str(scheduler.on_trial_result(None, trial, result))

    for trial in trials[:3]:
        assert said(epoch=1) == "CONTINUE"
        for row in rows_of(trial.describe()["overrides"]):
            trial.add_epoch(row)
        trial.finish({"epoch": EPOCHS, "best_epoch": 2})
        racing.trial_finished(trial)
    assert said(epoch=1) == "STOP"
    # Nothing is spared by ending what has its result.
    assert said(epoch=EPOCHS) == said(epoch=EPOCHS, is_final=True) == "CONTINUE"
    assert running.describe()["status"] == PENDING
    assert running.describe()["dropped"]["rival"] == "lr=0.1"


@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_failed_trial_is_not_waited_for(run: RunFolder, is_resumed: bool) -> None:
    plan = plan_of(0, 1)
    queue = TrialQueue(run, plan, lambda point: None)
    racing = Racing(run, plan, queue, lambda message: None)
    first, second, third = (trial for trial in (queue.next(), queue.next(), queue.next()) if trial is not None)
    for trial in (first, third):
        for row in rows_of(trial.describe()["overrides"]):
            trial.add_epoch(row)
        trial.finish({"epoch": EPOCHS, "best_epoch": 2})
        racing.trial_finished(trial)
    assert "dropped" not in third.describe()
    second.update(status="failed", error="out of memory")
    if is_resumed:
        Racing(run, plan, TrialQueue(run, plan, lambda point: None), lambda message: None).look()
    else:
        racing.trial_failed(second, "out of memory")
    assert "dropped" in third.describe()
    assert "dropped" not in second.describe()


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (plan_of(0), "--seeds: got '0'; allowed two seeds or more"),
        (plan_of(0, 1, goals=(Goal("seconds/train"),)), "--maximize/--minimize: got 'seconds/train'"),
    ],
)
def test_a_race_that_cannot_be_run_is_refused(plan: SweepPlan, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_scheduler(plan, EXPERIMENT)


def test_a_race_by_a_median_or_of_an_adaptive_search_is_refused() -> None:
    median = str(Metric.parse(SELECT_BY)).replace("recall_at_1", "median_rank")
    evaluation = replace(EXPERIMENT.evaluation, select_by=median)
    with pytest.raises(ValueError, match=r"evaluation.select_by: .*a mean over queries"):
        check_scheduler(plan_of(0, 1), replace(EXPERIMENT, evaluation=evaluation))
    space, goals = Space.parse([f"{RATE}=uniform(0.1,1)"], EXPERIMENT), (Goal(SELECT_BY),)
    adaptive = SweepPlan(OptunaSearch(space, goals), (0, 1), 4, scheduler="race")
    with pytest.raises(ValueError, match="known from the start"):
        check_scheduler(adaptive, EXPERIMENT)
    grid = GridSearch(Space.parse([f"{RATE}=grid(0.1,0.2)"], EXPERIMENT), goals)
    check_scheduler(SweepPlan(grid, (0, 1), scheduler="race"), EXPERIMENT)


def test_the_report_says_who_was_dropped_and_by_what(run: RunFolder, trained: list[str]) -> None:
    quietly(run, plan_of(0, 1))
    written = write_report(run.path, figures=False)
    assert "dropped by the race, without numbers of all seeds: lr=0.001\nif several points remain," in written.summary
    (row,) = (line for line in str(written.table_markdown.read_text()).splitlines() if line.startswith("| lr=0.001 "))
    kept = next(iter(filter(None, evidence_of(run).values())))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:3] == ["lr=0.001", "lr=0.1", "1"]
    assert cells[3:5] == [f"{100 * kept['ahead']:.1f}", f"{100 * kept['at_least']:.1f}"]
    assert "Dropped by the race" in str(written.page.read_text())


@pytest.mark.parametrize(
    "damaged", ["behind", {"rival": "lr=0.1"}, {"rival": 3, "seeds": 1, "ahead": 0.1, "at_least": 0.1}]
)
def test_damaged_evidence_is_refused(run: RunFolder, damaged: Any) -> None:
    plan = plan_of(0, 1)
    queue = TrialQueue(run, plan, lambda point: None)
    queue.trials[0].update(dropped=damaged)
    with pytest.raises(ValueError, match=r"trial.json: dropped: .*the evidence by which a race dropped"):
        Racing(run, plan, queue, lambda message: None)
