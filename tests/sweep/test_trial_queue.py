"""What runs next, from a run folder in every state a kill can leave it in."""

from __future__ import annotations

import itertools
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import DEFAULT, Mock

import pytest

from ray_atr.common.override import override
from ray_atr.common.storage import file_exists, write_text
from ray_atr.sweep import FixedPoints, Goal, GridSearch, OptunaSearch, RandomSearch, SweepPlan
from ray_atr.sweep.search import History, Observation
from ray_atr.sweep.space import Space
from ray_atr.sweep.trial_queue import TrialQueue, read_earlier, status_of
from ray_atr.sweep.tune_bridge import _error_of
from ray_atr.training.experiment import Experiment
from ray_atr.training.ray_train import ERROR_FILE, TRACEBACK_FILE
from ray_atr.training.run_folder import FAILED, FINISHED, RUNNING, STOPPED, RunFolder, TrialFolder

RECALL = Goal("text_to_audio/eng/recall_at_1")
SECONDS = Goal("seconds/train", is_maximised=False)
EXPERIMENT = override(Experiment(), {"objective": "m_ltm_pot"})
SPACE = Space.parse(["objective.pair.transport_mass=uniform(0.3,1)"], EXPERIMENT)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", EXPERIMENT, {"name": "sweep"})


def finish(trial: TrialFolder, recall: float = 0.5, seconds: float = 1.0, epochs: int = 3) -> None:
    for epoch in range(1, epochs + 1):
        trial.add_epoch(
            {"epoch": epoch, RECALL.metric: recall * epoch / epochs, "seconds/train": seconds * epoch / epochs}
        )
    trial.finish({"best_epoch": epochs, "epoch": epochs})


def stop(trial: TrialFolder, recall: float) -> None:
    trial.add_epoch({"epoch": 1, RECALL.metric: recall, "seconds/train": 0.1})
    trial.update(status=STOPPED)


def optuna(num_points: int) -> SweepPlan:
    """A search by TPE for the best recall, with one seed."""
    return SweepPlan(OptunaSearch(SPACE, (RECALL,)), (0,), num_points)


def handed_out(queue: TrialQueue) -> list[dict[str, Any]]:
    return [trial.describe()["overrides"] for trial in iter(queue.next, None)]


def accept(point: Any) -> None:
    """A check that refuses nothing."""


def test_a_lost_trial_is_the_next_one_as_often_as_it_may_be(tmp_path: Path) -> None:
    base = override(EXPERIMENT, {"scaling.max_failures": 2})
    run = RunFolder.create(tmp_path / "run", base, {"name": "sweep"})
    queue = TrialQueue(run, SweepPlan(FixedPoints([{"seed": 0}, {"seed": 1}])), accept)
    first = queue.next()
    assert first is not None
    for _ in range(2):
        assert queue.again(first)
        following = queue.next()
        assert following is not None
        assert following.trial_id == first.trial_id
    assert not queue.again(first)
    assert [trial["seed"] for trial in handed_out(queue)] == [1]


def test_tune_runs_again_only_if_lost_trials_alone_are_left(run: RunFolder) -> None:
    """An interrupt ends Tune as if it was done, with trials that were running: it must not start again."""
    queue = TrialQueue(run, SweepPlan(FixedPoints([{"data.noise.ratio": ratio} for ratio in (0.2, 0.4)])), accept)
    other, lost = queue.next(), queue.next()
    assert other is not None
    assert lost is not None
    other.update(status=RUNNING)
    assert not queue.has_lost
    assert queue.again(lost)
    assert not queue.has_lost
    finish(other)
    assert queue.has_lost


def test_a_trial_scores_what_its_last_epoch_reached_and_once_finished_its_best(run: RunFolder) -> None:
    (trial,) = TrialQueue(run, SweepPlan(FixedPoints([{"data.noise.ratio": 0.2}])), accept).trials
    for epoch, recall in enumerate((0.4, 0.6, 0.5), 1):
        trial.add_epoch({"epoch": epoch, RECALL.metric: recall})
    assert RECALL.score(trial) == 0.5
    trial.finish({"best_epoch": 2, "epoch": 3})
    assert RECALL.score(trial) == 0.6


def test_each_point_runs_once_a_seed_and_nothing_ended_runs_again(run: RunFolder) -> None:
    points = [{"data.noise.ratio": ratio} for ratio in (0.0, 0.2, 0.4, 0.6)]
    plan = SweepPlan(FixedPoints(points), seeds=(0, 1))
    queue = TrialQueue(run, plan, accept)
    everything = [{**point, "seed": seed} for point in points for seed in (0, 1)]
    first, second, third, fourth = (queue.next() for _ in range(4))
    assert [trial.describe()["overrides"] for trial in (first, second, third, fourth) if trial] == everything[:4]
    finish(first)
    second.update(status=FAILED, error="not finite")
    stop(third, 0.1)
    fourth.update(status=RUNNING)
    # As after a kill: what was running is handed out again, then the rest in its order.
    assert handed_out(TrialQueue(run, plan, accept)) == everything[3:]
    assert handed_out(TrialQueue(run, plan, accept, retry_failed=True)) == [everything[1], *everything[3:]]


def test_a_trial_is_handed_out_without_the_errors_of_its_last_attempt(run: RunFolder) -> None:
    """Its process may die before it can remove them, and would be given their reason."""
    plan = SweepPlan(FixedPoints([{"data.noise.ratio": 0.2}]))
    trial = TrialQueue(run, plan, accept).next()
    assert trial is not None
    for name in (ERROR_FILE, TRACEBACK_FILE):
        (trial.folder / name).write_text("train.batch_size: got 5\n", encoding="utf-8")
    trial.update(status=FAILED, error="train.batch_size: got 5")
    again = TrialQueue(run, plan, accept, retry_failed=True).next()
    assert again is not None
    assert _error_of(again, SimpleNamespace(error_file=None)) == "the trial's process died"
    assert not (trial.folder / TRACEBACK_FILE).exists()


def test_a_store_that_restarts_as_a_trial_is_handed_out_does_not_end_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunFolder.create(f"memory://{uuid.uuid4().hex}/run", EXPERIMENT, {"name": "sweep"})
    queue = TrialQueue(run, SweepPlan(FixedPoints([{}])), accept)
    file = queue.waiting[0].folder / ERROR_FILE
    write_text(file, "train.batch_size: got 5\n")
    removals = Mock(wraps=file.fs.rm, side_effect=[OSError("restarts"), DEFAULT, DEFAULT])
    monkeypatch.setattr(file.fs, "rm", removals)
    assert queue.next() is not None
    assert not file_exists(file)


def test_seeds_and_points_are_added_to_a_finished_sweep(run: RunFolder) -> None:
    plan = SweepPlan(RandomSearch(SPACE), seeds=(0,), num_points=3)
    for trial in list(iter(TrialQueue(run, plan, accept).next, None)):
        finish(trial)
    assert TrialQueue(run, plan, accept).is_done
    before = {trial.trial_id for trial in run.trials()}
    more = handed_out(TrialQueue(run, SweepPlan(RandomSearch(SPACE), seeds=(0, 1), num_points=5), accept))
    assert sorted(overrides["seed"] for overrides in more) == [0, 0, 1, 1, 1, 1, 1]
    masses = {overrides["objective.pair.transport_mass"] for overrides in more}
    assert len(masses) == 5
    assert len({trial.trial_id for trial in run.trials()} - before) == 7


def test_the_random_points_of_a_sweep_are_the_same_however_often_it_is_stopped(run: RunFolder, tmp_path: Path) -> None:
    other = RunFolder.create(tmp_path / "other", EXPERIMENT, {"name": "sweep"})

    def drawn(folder: RunFolder, seed: int, num_points: int) -> list[dict[str, Any]]:
        plan = SweepPlan(RandomSearch(SPACE, seed=seed), seeds=(0,), num_points=num_points)
        return handed_out(TrialQueue(folder, plan, accept))

    whole = drawn(run, 3, 6)
    assert drawn(other, 3, 2) == whole[:2]
    assert drawn(other, 3, 6) == whole
    assert drawn(other, 4, 12)[6:] != whole


def mass_of(trial: TrialFolder) -> float:
    return float(trial.describe()["overrides"]["objective.pair.transport_mass"])


def search(run: RunFolder, num_points: int, stop_after: int = 1000) -> list[float]:
    """A search towards a transport mass of 0.8, one trial after the other."""
    queue = TrialQueue(run, optuna(num_points), accept)
    for _ in range(stop_after):
        trial = queue.next()
        if trial is None:
            break
        finish(trial, recall=1 - (mass_of(trial) - 0.8) ** 2)
    return [mass_of(trial) for entry in queue.entries for trial in entry.trials]


def test_a_killed_optuna_search_goes_on_with_the_trials_it_would_have_had(run: RunFolder, tmp_path: Path) -> None:
    whole = search(run, 14)
    other = RunFolder.create(tmp_path / "other", EXPERIMENT, {"name": "sweep"})
    search(other, 14, stop_after=8)
    # The kill came when the ninth point had its folder and no result.
    killed = TrialQueue(other, optuna(14), accept)
    assert killed.next() is not None
    assert search(other, 14) == whole


def test_optuna_learns_where_the_good_points_are(run: RunFolder) -> None:
    masses = search(run, 30)
    assert all(0.3 <= mass <= 1 for mass in masses)
    # The mean distance of a random draw of [0.3, 1] from 0.8 is (0.5^2 + 0.2^2) / 2 / 0.7 = 0.207.
    assert mean_distance(masses[15:]) < 0.15


def mean_distance(masses: list[float]) -> float:
    return sum(abs(mass - 0.8) for mass in masses) / len(masses)


def test_a_warm_start_tells_optuna_what_an_earlier_sweep_found() -> None:
    tried = [0.3 + 0.07 * number for number in range(11)]
    path = "objective.pair.transport_mass"
    earlier = tuple(Observation({path: mass}, FINISHED, (1 - (mass - 0.8) ** 2,)) for mass in tried)

    def first_proposals(*known: Observation) -> list[float]:
        points = [next(OptunaSearch(SPACE, (RECALL,), seed, known).proposals(History())) for seed in range(20)]
        return [point[path] for point in points]

    assert mean_distance(first_proposals(*earlier)) < 0.15 < mean_distance(first_proposals())


def test_a_point_counts_with_the_mean_of_its_seeds(run: RunFolder) -> None:
    plan = SweepPlan(RandomSearch(SPACE, (RECALL, SECONDS)), seeds=(0, 1), num_points=1)
    queue = TrialQueue(run, plan, accept)
    first, second = queue.next(), queue.next()
    finish(first, recall=0.2, seconds=1)
    assert queue.entries[0].observation(plan.goals).status == RUNNING
    finish(second, recall=0.6, seconds=2)
    known = queue.entries[0].observation(plan.goals)
    assert (known.status, known.scores) == (FINISHED, (pytest.approx(0.4), pytest.approx(1.5)))


def test_a_stopped_point_counts_as_pruned_where_it_stood(run: RunFolder) -> None:
    plan = SweepPlan(OptunaSearch(SPACE, (RECALL,)), seeds=(0,), num_points=8, scheduler="asha")
    queue = TrialQueue(run, plan, accept)
    trial = queue.next()
    stop(trial, 0.1)
    known = queue.entries[0].observation(plan.goals)
    assert (known.status, known.scores, known.epochs) == (STOPPED, (0.1,), 1)
    assert queue.next() is not None


def test_a_point_that_a_race_stopped_before_its_first_validation_has_no_scores(run: RunFolder) -> None:
    """With `evaluation.every_epochs` 2, a running trial of a dropped point can end after its first epoch."""
    plan = SweepPlan(RandomSearch(SPACE, (RECALL,)), seeds=(0, 1), num_points=1, scheduler="race")
    queue = TrialQueue(run, plan, accept)
    for trial in queue.trials:
        trial.add_epoch({"epoch": 1, "train/loss": 1.0})
        trial.stop()
    known = queue.entries[0].observation(plan.goals)
    assert (known.status, known.scores) == (STOPPED, ())


def test_a_search_that_learns_needs_a_goal() -> None:
    with pytest.raises(ValueError, match=r"goals: got \(\); allowed one or more"):
        OptunaSearch(SPACE)


def test_two_goals_are_searched_together(run: RunFolder) -> None:
    goals = (RECALL, SECONDS)
    queue = TrialQueue(run, SweepPlan(OptunaSearch(SPACE, goals), (0,), 12), accept)
    for trial in iter(queue.next, None):
        finish(trial, recall=mass_of(trial), seconds=mass_of(trial))
    assert len({mass_of(trial) for trial in run.trials()}) == 12


def test_a_metric_that_was_not_measured_is_named(run: RunFolder) -> None:
    plan = SweepPlan(OptunaSearch(SPACE, (Goal("recall"),)), (0,), 3)
    queue = TrialQueue(run, plan, accept)
    trial = queue.next()
    finish(trial)
    with pytest.raises(
        ValueError, match=r"--maximize/--minimize: got 'recall'; allowed .*text_to_audio/eng/recall_at_1"
    ):
        queue.next()


def test_a_small_space_ends_when_it_is_exhausted(run: RunFolder) -> None:
    space = Space.parse(["objective.pair.transport_mass=choice(0.4,0.6,0.8)"], EXPERIMENT)
    assert len(handed_out(TrialQueue(run, SweepPlan(RandomSearch(space), (0,), 10), accept))) == 3
    assert len(list(TrialQueue(run, SweepPlan(GridSearch(space), (0,)), accept).trials)) == 3


def test_each_point_of_a_grid_gets_its_share_of_a_search(run: RunFolder) -> None:
    space = Space.parse(
        [*(f"{path}={text}" for path, text in SPACE.describe().items()), "data.noise.ratio=grid(0,0.4)"], EXPERIMENT
    )
    for search_ in (RandomSearch(space), OptunaSearch(space, (RECALL,))):
        points, history = [], History()
        for point in itertools.islice(search_.proposals(history), 4):
            points.append(point)
            history.add(Observation(point, RUNNING))
        assert [point["data.noise.ratio"] for point in points] == [0.0, 0.4, 0.0, 0.4]


def test_a_proposal_that_cannot_run_is_recorded_as_failed(run: RunFolder) -> None:
    def refuse_large(experiment: Any) -> None:
        if experiment.objective.pair.transport_mass > 0.6:
            raise ValueError("objective.pair.transport_mass: too large here")

    queue = TrialQueue(run, optuna(8), refuse_large)
    for trial in iter(queue.next, None):
        assert mass_of(trial) <= 0.6
        finish(trial)
    failed = [trial for trial in run.trials() if status_of(trial) == FAILED]
    assert failed
    assert {trial.describe()["error"] for trial in failed} == {"objective.pair.transport_mass: too large here"}


def test_an_earlier_sweep_is_read_as_far_as_it_lies_in_the_space(run: RunFolder) -> None:
    # The mass is varied by some and has its default, 0.95, in the others; 0.2 lies outside.
    for number, overrides in enumerate(
        ({"objective.pair.transport_mass": 0.5}, {"objective.pair.transport_mass": 0.2}, {"train.epochs": 3})
    ):
        for seed in (0, 1):
            finish(run.add_trial({**overrides, "seed": seed}), recall=0.1 * number + 0.2 * seed)
    run.add_trial({"objective.pair.transport_mass": 0.7, "seed": 0})
    known, num_points = read_earlier(run, SPACE, (RECALL,))
    assert num_points == 3
    found = {one.point["objective.pair.transport_mass"]: one.scores[0] for one in known}
    assert found == {0.5: pytest.approx(0.1), 0.95: pytest.approx(0.3)}


def test_a_point_of_which_one_seed_failed_has_failed(run: RunFolder) -> None:
    """Half a point's mean says nothing of the point: a search would learn from it."""
    plan = SweepPlan(FixedPoints([{"data.noise.ratio": 0.2}, {"data.noise.ratio": 0.4}], (RECALL,)), seeds=(0, 1))
    queue = TrialQueue(run, plan, accept)
    for trial in list(queue.trials):
        described = trial.describe()["overrides"]
        if described == {"data.noise.ratio": 0.4, "seed": 1}:
            trial.update(status=FAILED, error="out of memory")
        else:
            finish(trial, recall=0.9)
    found = {
        entry.point["data.noise.ratio"]: entry.observation((RECALL,)) for entry in TrialQueue(run, plan, accept).entries
    }
    assert (found[0.2].status, found[0.2].scores) == (FINISHED, (0.9,))
    assert (found[0.4].status, found[0.4].scores) == (FAILED, ())
