"""Which trial runs next: the points of the run folder first, then what the search proposes, each once a seed."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ray_atr.run_folder import FAILED, FINISHED, PENDING, RUNNING, STOPPED, RunFolder, TrialFolder
from ray_atr.space import Point, point_key
from ray_atr.sweep.plan import Goal, Plan
from ray_atr.sweep.search import Known

ENDED = (FINISHED, STOPPED, FAILED)


@dataclass
class Entry:
    """A point and its trials, one a seed. What has ended is read from the run folder once."""

    point: Point
    trials: list[TrialFolder] = field(default_factory=list)
    _known: Known | None = None

    def known(self, goals: Sequence[Goal]) -> Known:
        if self._known is None:
            statuses = [status_of(trial) for trial in self.trials]
            if not all(status in ENDED for status in statuses):
                return Known(self.point, RUNNING)
            self._known = self._ended(statuses, goals)
        return self._known

    def _ended(self, statuses: list[str], goals: Sequence[Goal]) -> Known:
        if FAILED in statuses:
            return Known(self.point, FAILED)
        scores = [[goal.score(trial) for trial in self.trials] for goal in goals]
        means = tuple(sum(of_seeds) / len(of_seeds) for of_seeds in scores)
        if STOPPED in statuses:
            epochs = min(len(trial.epochs()) for trial in self.trials)
            return Known(self.point, STOPPED, means, epochs)
        return Known(self.point, FINISHED, means)


class Agenda:
    """Hands out trials that are to be run. The run folder is where it reads what became of them.

    Raises ValueError for a point of a fixed or random plan that `check` refuses; what an adaptive search proposes and `check`
    refuses is recorded as failed.
    """

    def __init__(
        self,
        run: RunFolder,
        plan: Plan,
        check: Callable[[Point], object],
        *,
        retry_failed: bool = False,
    ) -> None:
        self.run, self.plan, self.check = run, plan, check
        self.entries: list[Entry] = []
        self.waiting: deque[TrialFolder] = deque()
        for point in recorded_points(run, without_seed=bool(plan.seeds)):
            self._add(point, retry_failed)
        if not plan.search.is_adaptive and (plan.num_points is not None or not plan.hours):
            while self._propose():
                pass

    @property
    def trials(self) -> list[TrialFolder]:
        return [trial for entry in self.entries for trial in entry.trials]

    @property
    def num_trials(self) -> int | None:
        """How many trials the plan has in all; None for a search that goes on until its time is over."""
        is_open = self.plan.search.is_adaptive or self.plan.hours
        num_points = self.plan.num_points if is_open else len(self.entries)
        return None if num_points is None else max(num_points, len(self.entries)) * max(len(self.plan.seeds), 1)

    @property
    def is_done(self) -> bool:
        """Whether everything that the plan asks for has ended already."""
        return not self.waiting and (self.plan.num_points or 0) <= len(self.entries) and not self.plan.hours

    def next(self) -> TrialFolder | None:
        """A trial to run that was not handed out before; None where the plan has no more."""
        while not self.waiting:
            if not self._propose():
                return None
        return self.waiting.popleft()

    def _propose(self) -> bool:
        number = len(self.entries)
        if self.plan.num_points is not None and number >= self.plan.num_points:
            return False
        known = [entry.known(self.plan.goals) for entry in self.entries]
        point = self.plan.search.propose(number, known)
        if point is None:
            return False
        self._add(point, retry_failed=False)
        return True

    def _add(self, point: Point, retry_failed: bool) -> None:
        entry, number = Entry(point), len(self.entries)
        overrides = [{**point, "seed": seed} for seed in self.plan.seeds] or [point]
        error = self._error_of(point)
        for one in overrides:
            trial = self.run.add_trial(one)
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

    def _error_of(self, point: Point) -> str | None:
        try:
            self.check(point)
        except ValueError as error:
            if self.plan.search.is_adaptive:
                return str(error)
            raise
        return None


def status_of(trial: TrialFolder) -> str:
    """A trial's status; a result, not what its description says, is what makes it finished."""
    if trial.is_finished:
        return FINISHED
    status = str(trial.describe()["status"])
    return PENDING if status == FINISHED else status


def recorded_points(run: RunFolder, *, without_seed: bool) -> list[Point]:
    """The points of a run folder's trials in the order they were proposed; `without_seed` where the sweep gives the seeds."""
    numbered: dict[str, tuple[float, Point]] = {}
    for trial in run.trials():
        described = trial.describe()
        number = described.get("point")
        overrides = described["overrides"]
        point = {path: value for path, value in overrides.items() if path != "seed" or not without_seed}
        numbered.setdefault(point_key(point), (math.inf if number is None else number, point))
    return [point for _, point in sorted(numbered.values(), key=lambda one: one[0])]
