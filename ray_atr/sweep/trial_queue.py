"""The queue of trials: the points of the run folder first, then the search's proposals, each with every seed."""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from ray_atr.common.override import as_typed, flatten, override
from ray_atr.common.settings import counted
from ray_atr.common.storage import remove_all
from ray_atr.sweep.search import Goal, History, Observation, SweepPlan
from ray_atr.sweep.space import Grid, Point, Space, point_key
from ray_atr.training.experiment import Experiment
from ray_atr.training.ray_train import ERROR_FILE, TRACEBACK_FILE
from ray_atr.training.run_folder import FAILED, FINISHED, PENDING, RUNNING, STOPPED, RunFolder, TrialFolder

ENDED = (FINISHED, STOPPED, FAILED)


@dataclass
class PointTrials:
    """A point and its trials, one for each seed. Ended trials are read from the run folder once."""

    point: Point
    trials: list[TrialFolder] = field(default_factory=list)
    _observation: Observation | None = None

    def observation(self, goals: Sequence[Goal]) -> Observation:
        if self._observation is None:
            statuses = [status_of(trial) for trial in self.trials]
            if not all(status in ENDED for status in statuses):
                return Observation(self.point, RUNNING)
            self._observation = self._ended(statuses, goals)
        return self._observation

    def _ended(self, statuses: list[str], goals: Sequence[Goal]) -> Observation:
        if FAILED in statuses:
            return Observation(self.point, FAILED)
        # A trial that was stopped before its first validation has no scores.
        measured = [
            trial for trial in self.trials if STOPPED not in statuses or any(row.validation for row in trial.epochs())
        ]
        if not measured:
            return Observation(self.point, STOPPED)
        scores = [[goal.score(trial) for trial in measured] for goal in goals]
        means = tuple(sum(of_seeds) / len(of_seeds) for of_seeds in scores)
        if STOPPED in statuses:
            return Observation(self.point, STOPPED, means, min(len(trial.epochs()) for trial in self.trials))
        return Observation(self.point, FINISHED, means)


class TrialQueue:
    """The trials to run, in order. Their results are read from the run folder.

    Raises ValueError for a point of a fixed or random plan that `check` refuses; what an adaptive search proposes and `check`
    refuses is recorded as failed.
    """

    def __init__(
        self, run: RunFolder, plan: SweepPlan, check: Callable[[Experiment], object], *, retry_failed: bool = False
    ) -> None:
        self.run, self.plan, self.check = run, plan, check
        self.base = run.experiment
        self.entries: list[PointTrials] = []
        self.history = History()
        self._is_exhausted = False  # whether the search has no more points
        self._proposals = plan.search.proposals(self.history)
        self.waiting: deque[TrialFolder] = deque()
        self._losses: dict[str, int] = {}  # by trial, how often it was lost with its node
        for recorded in recorded_trials(run, without_seed=bool(plan.seeds)):
            self._add(recorded.point, retry_failed)
        if not plan.search.is_adaptive and (plan.num_points is not None or plan.search.is_finite):
            while self._propose():
                pass

    def __getstate__(self) -> dict[str, Any]:
        # Tune pickles its searcher, which holds the queue, to a file that is never read. Generators cannot be pickled.
        return {**self.__dict__, "_proposals": iter(())}

    @property
    def trials(self) -> list[TrialFolder]:
        return [trial for entry in self.entries for trial in entry.trials]

    def known_points(self, is_read: Callable[[str], bool]) -> list[Point]:
        """The points that were proposed, and every combination of a space's listed values of the settings that are read."""
        points = [entry.point for entry in self.entries]
        if (space := self.plan.space) is not None:
            listed = (path for path, dimension in space.dimensions.items() if isinstance(dimension, Grid))
            points += space.points_of(path for path in listed if is_read(path))
        return points

    @property
    def num_trials(self) -> int | None:
        """Number of trials of the plan; None for a search that runs until its time is over."""
        num_points = len(self.entries) if self._is_exhausted else self.plan.num_points
        return None if num_points is None else max(num_points, len(self.entries)) * max(len(self.plan.seeds), 1)

    @property
    def lacking(self) -> str:
        """A line for a search that has no more points, though more were asked for; else empty."""
        if not self._is_exhausted or self.plan.num_points is None or len(self.entries) >= self.plan.num_points:
            return ""
        points = counted(len(self.entries), "point")
        return (
            f"--trials {self.plan.num_points}: the space has {points}; --search {self.plan.search.name} found no more"
        )

    @property
    def num_unproposed(self) -> int:
        """Number of trials that the search has not proposed yet; 0 for one that runs until its time is over."""
        return 0 if self.num_trials is None else self.num_trials - len(self.trials)

    @property
    def is_done(self) -> bool:
        """Whether all trials of the plan have ended."""
        return not self.waiting and self.num_trials is not None and not self.num_unproposed

    def next(self) -> TrialFolder | None:
        """The next trial to run, without the errors of an earlier attempt; None if the plan has no more."""
        while not self.waiting and self._propose():
            pass
        if not self.waiting:
            return None
        trial = self.waiting.popleft()
        # Not by the trial's process: one that dies as it starts would be given the earlier attempt's reason.
        for name in (ERROR_FILE, TRACEBACK_FILE):
            remove_all(trial.folder / name)
        return trial

    def again(self, trial: TrialFolder) -> bool:
        """Put a trial that was lost with its node at the front; False if that has happened more often than its
        `scaling.max_failures`.
        """
        losses = self._losses[trial.trial_id] = self._losses.get(trial.trial_id, 0) + 1
        if losses > self.run.experiment_of(trial).scaling.max_failures:
            return False
        self.waiting.appendleft(trial)
        return True

    @property
    def has_lost(self) -> bool:
        """Whether all trials have ended but some that were lost with their nodes and wait. Tune also ends as if it was done after
        an interrupt, when others have not.
        """
        waiting = {trial.trial_id for trial in self.waiting}
        if not waiting or not waiting <= self._losses.keys():
            return False
        return all(status_of(trial) in ENDED for trial in self.trials if trial.trial_id not in waiting)

    def order_by(self, place: Callable[[TrialFolder], int]) -> None:
        """Sort the waiting trials by `place`; the order of equal ones is kept."""
        self.waiting = deque(sorted(self.waiting, key=place))

    def take_waiting(self, trial_ids: Collection[str]) -> list[TrialFolder]:
        """Remove trials from the queue; returns those of them that were waiting."""
        removed = [trial for trial in self.waiting if trial.trial_id in trial_ids]
        self.waiting = deque(trial for trial in self.waiting if trial.trial_id not in trial_ids)
        return removed

    def _propose(self) -> bool:
        if self.plan.num_points is not None and len(self.entries) >= self.plan.num_points:
            return False
        if self.plan.search.is_adaptive:
            # In place: the search holds the history.
            self.history.observations[:] = [entry.observation(self.plan.goals) for entry in self.entries]
        point = next(self._proposals, None)
        if point is None:
            self._is_exhausted = True
            return False
        self._add(point, retry_failed=False)
        return True

    def _add(self, point: Point, retry_failed: bool) -> None:
        entry, number = PointTrials(point), len(self.entries)
        error = self._error_of(point)
        for of_trial in self.overrides(point):
            trial = self.run.add_trial(of_trial)
            described = trial.describe()
            if described.get("point") != number:
                trial.update(point=number)
            if retry_failed and described["status"] == FAILED:
                trial.update(status=PENDING, error=None)
            if error and status_of(trial) not in ENDED:
                trial.update(status=FAILED, error=error)
            entry.trials.append(trial)
            if status_of(trial) not in ENDED:
                self.waiting.append(trial)
        self.entries.append(entry)
        self.history.add(Observation(point, RUNNING))

    def overrides(self, point: Point) -> list[Point]:
        """The overrides of each trial of a point: the point, the plan's fixed settings and a seed."""
        overrides = self.plan.overrides(self.base, point)
        return [{**overrides, "seed": seed} for seed in self.plan.seeds] or [overrides]

    def _error_of(self, point: Point) -> str | None:
        try:
            self.check(self.plan.experiment(self.base, point))
        except ValueError as error:
            if self.plan.search.is_adaptive:
                return str(error)
            raise
        return None


def status_of(trial: TrialFolder) -> str:
    """A trial's status; the description of a finished trial is not read."""
    return FINISHED if trial.is_finished else str(trial.describe()["status"])


def recorded_trials(run: RunFolder, *, without_seed: bool) -> list[PointTrials]:
    """The points of a run folder with their trials, in the order of proposal; `without_seed` if the seeds are the sweep's."""
    left_out = {*run.info.get("fixed", ()), *(["seed"] if without_seed else [])}
    numbered: dict[str, tuple[float, PointTrials]] = {}
    for trial in run.trials():
        described = trial.describe()
        number = described.get("point")
        point = {path: value for path, value in described["overrides"].items() if path not in left_out}
        place = math.inf if number is None else number
        numbered.setdefault(point_key(point), (place, PointTrials(point)))[1].trials.append(trial)
    return [recorded for _, recorded in sorted(numbered.values(), key=lambda entry: entry[0])]


def read_earlier(run: RunFolder, space: Space, goals: Sequence[Goal]) -> tuple[list[Observation], int]:
    """(the finished points of a run folder that are in the space, how many had finished there), for a search to learn
    from. A setting that the earlier sweep did not vary has the value it had there. A point has the mean of its trials'
    scores. ValueError if a trial lacks a goal's metric.
    """
    experiment, finished = run.experiment, set[str]()
    by_point: dict[str, PointTrials] = {}
    for trial in run.trials():
        if status_of(trial) == FINISHED:
            overrides = trial.describe()["overrides"]
            finished.add(point_key({path: value for path, value in overrides.items() if path != "seed"}))
            settings = {**flatten(override(experiment, overrides)), **overrides}
            with contextlib.suppress(KeyError):
                point = space.build(lambda path, settings=settings: as_typed(settings[path]))  # type: ignore[misc]
                if space.holds(point):
                    by_point.setdefault(point_key(point), PointTrials(point)).trials.append(trial)
    return [point_trials.observation(goals) for point_trials in by_point.values()], len(finished)
