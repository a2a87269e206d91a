"""Points by Optuna's tree-structured Parzen estimator, for one goal or several. Optuna takes a third of a second to
import, and every trial's process imports this module: its functions import it.
"""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ray_atr.common.settings import refuse
from ray_atr.sweep.search import History, Observation, RandomSearch, SpaceSearch
from ray_atr.sweep.space import Dimension, Grid, LogUniform, Point, QUniform, RandInt
from ray_atr.training.run_folder import FAILED, FINISHED, STOPPED

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial

ATTEMPTS = 10  # proposals that repeat an earlier point before one is drawn at random instead
STARTUP_POINTS = 5  # points drawn at random before the estimator is used
GONE = -1
NEWEST, BEST = 1_000, 25
"""Points in a study when there are many: the newest (up to twice as many), and the best of the older ones. The estimator's group
of good points has at most 25, and it weighs the newest of the others most; its time grows with the number of points."""
STATES = {FINISHED: "COMPLETE", STOPPED: "PRUNED", FAILED: "FAIL"}
"""Optuna's name for a point's status; all others are RUNNING."""


@dataclass(frozen=True)
class OptunaSearch(SpaceSearch):
    """Points that TPE expects to be best, given all points so far; a separate search for each point of the grid dimensions.

    Running points count as unpromising until they end (Optuna's constant liar), so that concurrent points differ. Each proposal
    has its own random numbers and a study that is updated with the history: it is the same for a study that was updated since
    the first point and for one made from a run folder.
    """

    name: ClassVar[str] = "optuna"
    is_adaptive: ClassVar[bool] = True
    newest: int = NEWEST
    best: int = BEST

    def __post_init__(self) -> None:
        if not self.goals:
            raise refuse("goals", self.goals, f"one or more with {self.name}")

    def proposals(self, history: History) -> Iterator[Point]:
        grid = self.space.grid_points()
        studies = [Study(self, cell, history) for cell in grid]
        at_random = RandomSearch(self.space, seed=self.seed)
        while True:
            study = studies[len(history) % len(grid)]
            study.keep_up()
            point = self._unknown(study, history) or at_random.draw(history, grid)
            if point is None:
                return
            yield point

    def _unknown(self, study: Study, history: History) -> Point | None:
        """The first proposal that is not in the history; None if `ATTEMPTS` of them are."""
        seeds = (zlib.crc32(f"{self.seed}/{len(history)}/{attempt}".encode()) for attempt in range(ATTEMPTS))
        return next((point for point in map(study.propose, seeds) if point not in history), None)


class Study:
    """Optuna's study for one point of the grid dimensions. It gets each point when it is proposed and its result when it ends;
    after every `newest` points a new study is made, without most of the oldest points.
    """

    def __init__(self, search: OptunaSearch, cell: Point, history: History) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.space, self.cell, self.history = search.space, cell, history
        self.newest, self.best = search.newest, search.best
        self.storage = optuna.storages.InMemoryStorage()
        ways = optuna.study.StudyDirection
        self.directions = [ways.MAXIMIZE if goal.is_maximised else ways.MINIMIZE for goal in search.goals]
        self.signs = [1.0 if goal.is_maximised else -1.0 for goal in search.goals]
        self.earlier = [observation for observation in search.earlier if self._is_here(observation)]
        self.study_id: int | None = None
        self.num_read = 0
        self.indices: list[int] = []
        """Indices in the history of the cell's points."""
        self.old: set[int] = set()
        """Those that are old: in the study only if they are among the best."""
        self.open: dict[int, int] = {}
        """The study's trial by index in the history, for points that had not ended at the last update; GONE: not updated."""
        self._begin()

    def keep_up(self) -> None:
        """Update the study with the history's changes."""
        observations = self.history.observations
        ended = [index for index in self.open if observations[index].status in STATES]
        # An old point may be among the best.
        is_stale = any(self.open[index] == GONE for index in ended)
        for index in ended:
            trial = self.open.pop(index)
            if trial != GONE:
                self._end(trial, observations[index])
        for index in range(self.num_read, len(observations)):
            if self._is_here(observations[index]):
                self.indices.append(index)
                self._tell_of(index)
        self.num_read = len(observations)
        if is_stale or self._num_old() > len(self.old):
            self._begin()

    def _num_old(self) -> int:
        """Number of old points of the cell: a multiple of `newest`, so that a study is used for as many proposals."""
        return max(0, len(self.indices) - self.newest) // self.newest * self.newest

    def _begin(self) -> None:
        """A new study of the best old points and all others."""
        if self.study_id is not None:
            self.storage.delete_study(self.study_id)
        self.study_id = self.storage.create_new_study(self.directions)
        old = self.indices[: self._num_old()]
        self.old = set(old)
        observations = self.history.observations
        finished = [index for index in old if observations[index].status == FINISHED]
        best = {
            index
            for goal, sign in enumerate(self.signs)
            for index in heapq.nlargest(self.best, finished, key=lambda i: (sign * observations[i].scores[goal], -i))
        }
        self.open = {index: GONE for index in old if observations[index].status not in STATES}
        for observation in self.earlier:
            self._tell(observation)
        for index in self.indices:
            if index not in self.old or index in best:
                self._tell_of(index)

    def _tell_of(self, index: int) -> None:
        observation = self.history.observations[index]
        trial = self._tell(observation)
        if observation.status not in STATES:
            self.open[index] = trial

    def propose(self, seed: int) -> Point:
        """The estimator's proposal by the random numbers of a seed."""
        import optuna

        assert self.study_id is not None, "begun when it was made"
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP_POINTS, constant_liar=True)
        # A new object, because Optuna's study object caches its list of trials.
        name = self.storage.get_study_name_from_id(self.study_id)
        study = optuna.load_study(study_name=name, storage=self.storage, sampler=sampler)
        trial = study.ask()

        def choose(path: str) -> Any:
            return self.cell[path] if path in self.cell else _suggested(trial, path, self.space.dimensions[path])

        point = self.space.build(choose)
        # If the point is used, the history adds it. The estimator ignores failed trials.
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
        return point

    def _is_here(self, observation: Observation) -> bool:
        return all(observation.point.get(path, value) == value for path, value in self.cell.items())

    def _tell(self, observation: Observation) -> int:
        """Add a trial to the study; returns its number."""
        import optuna

        searched = {path: value for path, value in observation.point.items() if path not in self.cell}
        dimensions = self.space.dimensions
        assert self.study_id is not None, "begun when it was made"
        frozen = optuna.trial.create_trial(
            state=optuna.trial.TrialState[STATES.get(observation.status, "RUNNING")],
            params={path: _encoded(dimensions[path], value) for path, value in searched.items()},
            distributions={path: _distribution(dimensions[path]) for path in searched},
            values=list(observation.scores) if observation.status == FINISHED else None,
            intermediate_values=_reached(observation),
        )
        return self.storage.create_new_trial(self.study_id, frozen)

    def _end(self, trial: int, ended: Observation) -> None:
        """Update a trial that was running."""
        import optuna

        for epoch, value in _reached(ended).items():
            self.storage.set_trial_intermediate_value(trial, epoch, value)
        state = optuna.trial.TrialState[STATES[ended.status]]
        self.storage.set_trial_state_values(trial, state, ended.scores if ended.status == FINISHED else None)


def _reached(ended: Observation) -> dict[int, float]:
    """Epoch and score of a stopped point: Optuna ranks pruned trials by how far they came, then by what they had there.
    Nothing for several goals, by which Optuna does not rank them.
    """
    return {ended.epochs: ended.scores[0]} if ended.status == STOPPED and len(ended.scores) == 1 else {}


def _distribution(dimension: Dimension) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(dimension, Grid):
        # By index: Optuna's categories support fewer types than settings have.
        return CategoricalDistribution(tuple(range(len(dimension.values))))
    if isinstance(dimension, QUniform):
        return IntDistribution(0, dimension.num_steps)
    if isinstance(dimension, RandInt):
        return IntDistribution(int(dimension.low), int(dimension.high))
    return FloatDistribution(dimension.low, dimension.high, log=isinstance(dimension, LogUniform))


def _suggested(trial: Trial, path: str, dimension: Dimension) -> Any:
    if isinstance(dimension, Grid):
        return dimension.values[trial.suggest_categorical(path, range(len(dimension.values)))]
    if isinstance(dimension, QUniform):
        return dimension.fit(dimension.low + trial.suggest_int(path, 0, dimension.num_steps) * dimension.step)
    if isinstance(dimension, RandInt):
        return trial.suggest_int(path, int(dimension.low), int(dimension.high))
    is_log = isinstance(dimension, LogUniform)
    return dimension.fit(trial.suggest_float(path, dimension.low, dimension.high, log=is_log))


def _encoded(dimension: Dimension, value: Any) -> Any:
    """Optuna's value for a dimension's own."""
    if isinstance(dimension, Grid):
        return dimension.values.index(value)
    if isinstance(dimension, QUniform):
        return round((value - dimension.low) / dimension.step)
    return value
