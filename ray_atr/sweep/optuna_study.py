"""Optuna's study of a sweep's points. The only module that imports Optuna, for which a trial's process does not wait."""

from __future__ import annotations

from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import InMemoryStorage
from optuna.study import StudyDirection
from optuna.trial import Trial, TrialState, create_trial

from ray_atr.run_folder import FAILED, FINISHED, STOPPED
from ray_atr.space import Dimension, Grid, LogUniform, Point, QUniform, RandInt
from ray_atr.sweep.search import History, Known, SpaceSearch

STARTUP_POINTS = 5
"""Points drawn at random before the estimator has something to go by."""
STUDY = "points"


class Study:
    """Optuna's study of the points of one cell: told once of each point, and again when it has ended."""

    def __init__(self, search: SpaceSearch, cell: Point, history: History) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.space, self.cell, self.history = search.space, cell, history
        self.storage = InMemoryStorage()
        directions = [
            StudyDirection.MAXIMIZE if goal.is_maximised else StudyDirection.MINIMIZE for goal in search.goals
        ]
        self.study_id = self.storage.create_new_study(directions, STUDY)
        self.num_read = 0
        self.open: dict[int, int] = {}
        """Place in the history -> trial of the study, of what had not ended when last looked at."""
        for one in search.earlier:
            if _is_in(one.point, cell):
                self._tell(one)

    def keep_up(self) -> None:
        """Tell the study what the history has learnt since the last time."""
        known = self.history.known
        for place, trial in list(self.open.items()):
            if _state(known[place]).is_finished():
                self._end(trial, known[place])
                del self.open[place]
        for place in range(self.num_read, len(known)):
            if _is_in(known[place].point, self.cell):
                trial = self._tell(known[place])
                if not _state(known[place]).is_finished():
                    self.open[place] = trial
        self.num_read = len(known)

    def propose(self, seed: int) -> Point:
        """The estimator's proposal by the random numbers of a seed."""
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP_POINTS, constant_liar=True)
        # Optuna keeps a list of trials with the object of a study: a new object sees those that were told since.
        study = optuna.load_study(study_name=STUDY, storage=self.storage, sampler=sampler)
        trial = study.ask()

        def choose(path: str) -> Any:
            if path in self.cell:
                return self.cell[path]
            return _suggested(trial, path, self.space.dimensions[path])

        point = self.space.build(choose)
        # The history tells of the point if it is given out. The estimator passes over what failed.
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
        return point

    def _tell(self, one: Known) -> int:
        """A further trial of the study."""
        state = _state(one)
        searched = {path: value for path, value in one.point.items() if path not in self.cell}
        dimensions = self.space.dimensions
        frozen = create_trial(
            state=state,
            params={path: _encoded(dimensions[path], value) for path, value in searched.items()},
            distributions={path: _distribution(dimensions[path]) for path in searched},
            values=list(one.scores) if state is TrialState.COMPLETE else None,
            intermediate_values=_reached(one),
        )
        return self.storage.create_new_trial(self.study_id, frozen)

    def _end(self, trial: int, one: Known) -> None:
        """What became of a trial that the study was told of as running."""
        for epoch, value in (_reached(one) or {}).items():
            self.storage.set_trial_intermediate_value(trial, epoch, value)
        state = _state(one)
        self.storage.set_trial_state_values(trial, state, one.scores if state is TrialState.COMPLETE else None)


def _state(one: Known) -> TrialState:
    states = {FINISHED: TrialState.COMPLETE, STOPPED: TrialState.PRUNED, FAILED: TrialState.FAIL}
    return states.get(one.status, TrialState.RUNNING)


def _reached(one: Known) -> dict[int, float] | None:
    """Epoch and score of a stopped point: Optuna ranks pruned trials by how far they came, then by what they had there.

    Nothing for several goals, by which Optuna does not rank them.
    """
    return {one.epochs: one.scores[0]} if one.status == STOPPED and len(one.scores) == 1 else None


def _is_in(point: Point, cell: Point) -> bool:
    return all(point.get(path, value) == value for path, value in cell.items())


def _distribution(dimension: Dimension) -> BaseDistribution:
    if isinstance(dimension, Grid):
        # By number: Optuna's categories hold fewer types than settings do.
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
    return dimension.fit(
        trial.suggest_float(path, dimension.low, dimension.high, log=isinstance(dimension, LogUniform))
    )


def _encoded(dimension: Dimension, value: Any) -> Any:
    """Optuna's value for a dimension's own."""
    if isinstance(dimension, Grid):
        return dimension.values.index(value)
    if isinstance(dimension, QUniform):
        return round((value - dimension.low) / dimension.step)
    return value
