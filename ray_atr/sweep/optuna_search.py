"""Points by Optuna's tree-structured Parzen estimator, for one goal or several."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ray_atr.run_folder import FAILED, FINISHED, STOPPED
from ray_atr.space import Dimension, Grid, LogUniform, Point, QUniform, RandInt, Space, point_key
from ray_atr.sweep.plan import Goal
from ray_atr.sweep.search import Known, RandomSearch

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial, Trial

STARTUP_POINTS = 5
"""Points drawn at random before the estimator has something to go by."""
ATTEMPTS = 10
"""Proposals that repeat a known point before one is drawn at random instead."""


@dataclass(frozen=True)
class OptunaSearch:
    """What TPE expects most of, given every point so far; a search of its own for each point of the grid dimensions.

    Points that are running count as unpromising for the time being (Optuna's constant liar), so that points at work together
    differ. The study is told everything anew for each proposal: it is no other after a resume.
    """

    space: Space
    goals: tuple[Goal, ...]
    seed: int = 0
    earlier: tuple[Known, ...] = ()
    """Points of another sweep, known from the start."""
    name: ClassVar[str] = "optuna"
    is_adaptive: ClassVar[bool] = True

    def propose(self, number: int, known: Sequence[Known]) -> Point | None:
        given = {point_key(one.point) for one in known}
        cells = self.space.cells()
        cell = cells[number % len(cells)]
        told = [one for one in (*self.earlier, *known) if _is_in(one.point, cell)]
        for attempt in range(ATTEMPTS):
            point = self._ask(cell, told, f"{self.seed}/{number}/{attempt}")
            if point_key(point) not in given:
                return point
        return RandomSearch(self.space, self.seed).propose(number, known)

    def _ask(self, cell: Point, told: Sequence[Known], seed: str) -> Point:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        study = optuna.create_study(
            directions=["maximize" if goal.is_maximised else "minimize" for goal in self.goals],
            sampler=optuna.samplers.TPESampler(
                seed=zlib.crc32(seed.encode()), n_startup_trials=STARTUP_POINTS, constant_liar=True
            ),
        )
        study.add_trials(list(self._frozen(told, cell)))
        trial = study.ask()

        def choose(path: str) -> Any:
            if path in cell:
                return cell[path]
            return _suggested(trial, path, self.space.dimensions[path])

        return self.space.build(choose)

    def _frozen(self, told: Sequence[Known], cell: Point) -> Iterator[FrozenTrial]:
        from optuna.trial import TrialState, create_trial

        states = {FINISHED: TrialState.COMPLETE, STOPPED: TrialState.PRUNED, FAILED: TrialState.FAIL}
        for one in told:
            searched = {path: value for path, value in one.point.items() if path not in cell}
            state = states.get(one.status, TrialState.RUNNING)
            is_pruned = state is TrialState.PRUNED
            yield create_trial(
                state=state,
                params={path: _encoded(self.space.dimensions[path], value) for path, value in searched.items()},
                distributions={path: _distribution(self.space.dimensions[path]) for path in searched},
                values=list(one.scores) if state is TrialState.COMPLETE else None,
                # Optuna ranks pruned trials by how far they came, then by what they had reached there.
                intermediate_values={one.epochs: one.scores[0]} if is_pruned and one.scores else None,
            )


def _is_in(point: Point, cell: Point) -> bool:
    return all(point.get(path, value) == value for path, value in cell.items())


def _distribution(dimension: Dimension) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

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
    if isinstance(dimension, Grid):
        return dimension.values.index(value)
    if isinstance(dimension, QUniform):
        return round((value - dimension.low) / dimension.step)
    return value
