"""The plan of a sweep, and the searches that propose its points: a list, a grid, random draws, or TPE (optuna_search.py).

A search's proposals depend only on the earlier points and their results, so that a sweep that is resumed from its run folder is
the same as one that was never stopped.
"""

from __future__ import annotations

import itertools
import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from ray_atr.common.override import override
from ray_atr.common.settings import refuse
from ray_atr.metrics.epoch_report import is_measured
from ray_atr.metrics.metric import MEAN, UNSEEN
from ray_atr.sweep.fixed import overrides_of
from ray_atr.sweep.space import Point, Space, point_key
from ray_atr.training.experiment import Experiment
from ray_atr.training.run_folder import RUNNING, TrialFolder

ATTEMPTS = 100  # draws of earlier points after which a space counts as exhausted


@dataclass(frozen=True)
class Goal:
    """A metric, and which way is better: `text_to_audio/eng/recall_at_1` up, `seconds/train` down."""

    metric: str
    is_maximised: bool = True

    def score(self, trial: TrialFolder) -> float:
        """A trial's score. A metric of the validation counts at the best epoch of a finished trial; all others, and those of a
        trial that has not finished, count at the last epoch that has them. The test split never counts. ValueError if the trial
        did not measure the metric.
        """
        rows = trial.epochs()
        for row in [*([trial.result()["val"]] if trial.is_finished else []), *reversed(rows)]:
            if self.metric in row:
                return float(row[self.metric])
        validated = {metric for row in rows for metric in row.validation if metric.language not in (MEAN, UNSEEN)}
        others = {name for row in rows for name in row if not is_measured(name)}
        measured = [*sorted(validated), *sorted(others)]
        raise refuse("--maximize/--minimize", self.metric, "what a validation measures: " + ", ".join(measured[:40]))


@dataclass(frozen=True)
class Observation:
    """A proposed point and its results."""

    point: Point
    status: str  # `running`, `finished`, `stopped` (early, by a scheduler) or `failed`
    scores: tuple[float, ...] = ()
    """The mean over the point's seeds for each goal; of the last epoch for a stopped one, empty while it is running."""
    epochs: int = 0  # number of epochs of a stopped point


class History:
    """The proposed points in their order, with their results; a point is added once and never removed."""

    def __init__(self, observations: Iterable[Observation] = ()) -> None:
        self.observations = list(observations)
        self._keys = {point_key(observation.point) for observation in self.observations}

    def __len__(self) -> int:
        return len(self.observations)

    def __contains__(self, point: Mapping[str, Any]) -> bool:
        return point_key(point) in self._keys

    def add(self, observation: Observation) -> None:
        """Add a point."""
        self.observations.append(observation)
        self._keys.add(point_key(observation.point))


@dataclass(frozen=True)
class FixedPoints:
    """The points of a list, in its order."""

    points: Sequence[Mapping[str, Any]]
    goals: tuple[Goal, ...] = ()  # the metric that a scheduler compares by
    name: ClassVar[str] = "points"
    is_adaptive: ClassVar[bool] = False
    is_finite: ClassVar[bool] = True

    def proposals(self, history: History) -> Iterator[Point]:
        return _new(self.points, history)


@dataclass(frozen=True)
class SpaceSearch(ABC):
    """A search of a space; one more is a class with `proposals` and a line in `ray_atr.sweep.SEARCHES`."""

    space: Space
    goals: tuple[Goal, ...] = ()  # what an adaptive search looks for; a scheduler compares by the first
    seed: int = 0  # of its draws; a search that draws nothing has no use for it
    earlier: tuple[Observation, ...] = ()
    """Points of an earlier sweep, from which an adaptive search learns."""
    name: ClassVar[str]
    is_adaptive: ClassVar[bool] = False
    is_finite: ClassVar[bool] = False
    """Whether it ends by itself, without a number of points or a time limit."""

    @abstractmethod
    def proposals(self, history: History) -> Iterator[Point]:
        """Points that are not in the history, until there are none. The next one is requested when the last one is in the
        history, which by then may have newer results of earlier points.
        """


@dataclass(frozen=True)
class GridSearch(SpaceSearch):
    """Every point of a space of grids and choices. ValueError for a range."""

    name: ClassVar[str] = "grid"
    is_finite: ClassVar[bool] = True

    def __post_init__(self) -> None:
        self.space.require_grid()

    def proposals(self, history: History) -> Iterator[Point]:
        return _new(self.space.grid(), history)


@dataclass(frozen=True)
class RandomSearch(SpaceSearch):
    """Independent draws, for each point of the grid dimensions in turn."""

    name: ClassVar[str] = "random"

    def proposals(self, history: History) -> Iterator[Point]:
        grid = self.space.grid_points()
        while (point := self.draw(history, grid)) is not None:
            yield point

    def draw(self, history: History, grid: Sequence[Point]) -> Point | None:
        """A point that is not in the history; None if `ATTEMPTS` draws are."""
        number = len(history)
        for attempt in range(ATTEMPTS):
            # A cell without further points is skipped.
            cell = grid[(number + attempt) % len(grid)]
            point = self.space.draw(random.Random(f"{self.seed}/{number}/{attempt}"), cell)
            if point not in history:
                return point
        return None


def first_points(search: FixedPoints | SpaceSearch, most: int | None) -> list[Point]:
    """The first points that a search proposes without any result; None: all of them."""
    history = History()
    for point in itertools.islice(search.proposals(history), most):
        history.add(Observation(point, RUNNING))
    return [dict(observation.point) for observation in history.observations]


def _new(points: Iterable[Mapping[str, Any]], history: History) -> Iterator[Point]:
    """The points that are not in the history when they are requested."""
    return (dict(point) for point in points if point not in history)


@dataclass(frozen=True)
class SweepPlan:
    """The points of a sweep, its seeds and limits."""

    search: FixedPoints | SpaceSearch
    seeds: tuple[int, ...] = ()
    """Each point is run once for each seed; without seeds once, with the point's or the experiment's."""
    num_points: int | None = None
    """Number of points, including those in the run folder; None: as many as the search has."""
    hours: float | None = None
    """Time limit: after it no trial starts, and running ones are stopped, to be resumed."""
    scheduler: str = "none"
    """One of schedulers.SCHEDULERS."""
    spends_spared: bool = False
    """Whether the trials that a race saves are used for further seeds of the remaining points."""
    references: tuple[Point, ...] = ()
    """Reference points of a comparison: points with all values of one of these are never stopped, and are in no race."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Fixed settings (`sweep.fixed`) of every point that has them."""

    def __post_init__(self) -> None:
        # NaN is not above 0 either.
        if self.hours is not None and not self.hours > 0:
            raise refuse("--hours", self.hours, "a number above 0")

    def with_seeds(self, seeds: Sequence[int]) -> SweepPlan:
        """The plan with further seeds of each of its points."""
        if not seeds:
            return self
        if not isinstance(self.search, FixedPoints) or self.seeds:
            return replace(self, seeds=(*self.seeds, *(seed for seed in seeds if seed not in self.seeds)))
        seeded = [{**point, "seed": seed} for seed in seeds for point in self.search.points]
        points = {point_key(point): point for point in (*self.search.points, *seeded)}
        return replace(self, search=replace(self.search, points=list(points.values())))

    def is_reference(self, point: Mapping[str, Any]) -> bool:
        """Whether a point is a reference, which is never stopped early."""
        return any(all(point.get(path) == value for path, value in reference.items()) for reference in self.references)

    def overrides(self, base: Experiment, point: Mapping[str, Any]) -> Point:
        """A point's overrides of the experiment, including fixed settings."""
        return overrides_of(base, point, self.fixed) if self.fixed else dict(point)

    def experiment(self, base: Experiment, point: Mapping[str, Any]) -> Experiment:
        """The experiment of a point. ValueError for a value that is not allowed."""
        return override(base, self.overrides(base, point))

    @property
    def goals(self) -> tuple[Goal, ...]:
        """The goals of the search."""
        return self.search.goals

    @property
    def space(self) -> Space | None:
        """The space that the search draws from; None for a list of points."""
        return self.search.space if isinstance(self.search, SpaceSearch) else None
