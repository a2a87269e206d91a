"""Points by Optuna's tree-structured Parzen estimator, for one goal or several. Optuna takes a third of a second to
import, and every trial's process imports this module: its functions import it.
"""

from __future__ import annotations

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
    """Optuna's study for one point of the grid dimensions. It gets each point when it is proposed and its result when it ends."""

    def __init__(self, search: OptunaSearch, cell: Point, history: History) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.space, self.cell, self.history = search.space, cell, history
        self.storage = optuna.storages.InMemoryStorage()
        ways = optuna.study.StudyDirection
        directions = [ways.MAXIMIZE if goal.is_maximised else ways.MINIMIZE for goal in search.goals]
        self.study_id = self.storage.create_new_study(directions)
        self.num_read = 0
        self.open: dict[int, int] = {}
        """The study's trial by index in the history, for points that had not ended at the last update."""
        for observation in search.earlier:
            if self._is_here(observation):
                self._tell(observation)

    def keep_up(self) -> None:
        """Update the study with the history's changes."""
        observations = self.history.observations
        for index in [index for index in self.open if observations[index].status in STATES]:
            self._end(self.open.pop(index), observations[index])
        for index in range(self.num_read, len(observations)):
            if self._is_here(observations[index]):
                trial = self._tell(observations[index])
                if observations[index].status not in STATES:
                    self.open[index] = trial
        self.num_read = len(observations)

    def propose(self, seed: int) -> Point:
        """The estimator's proposal by the random numbers of a seed."""
        import optuna

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
