"""What an earlier sweep found, as far as it is in a space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ray_atr.override import as_typed, flatten, override
from ray_atr.run_folder import FINISHED, RunFolder
from ray_atr.space import Point, Space, point_key
from ray_atr.sweep.goal import Goal
from ray_atr.sweep.search import Known
from ray_atr.sweep.trial_queue import status_of


@dataclass(frozen=True)
class Earlier:
    """The points of an earlier sweep that a search can be told."""

    known: tuple[Known, ...]
    num_points: int
    """How many had finished there."""


def read_earlier(run: RunFolder, space: Space, goals: Sequence[Goal]) -> Earlier:
    """The finished points of a run folder that are in the space, with the mean of their trials' scores.

    A setting that the earlier sweep did not vary has the value it had there. ValueError if a trial lacks a goal's metric.
    """
    scores: dict[str, list[list[float]]] = {}
    points: dict[str, Point] = {}
    finished = set()
    for trial in run.trials():
        if status_of(trial) != FINISHED:
            continue
        overrides = trial.describe()["overrides"]
        finished.add(point_key({path: value for path, value in overrides.items() if path != "seed"}))
        settings = {**flatten(override(run.experiment, overrides)), **overrides}
        point = _within(space, settings)
        if point is not None:
            points[point_key(point)] = point
            scores.setdefault(point_key(point), []).append([goal.score(trial) for goal in goals])
    known = []
    for key, of_trials in scores.items():
        means = tuple(sum(column) / len(column) for column in zip(*of_trials, strict=True))
        known.append(Known(points[key], FINISHED, means))
    return Earlier(tuple(known), len(finished))


def _within(space: Space, settings: dict[str, object]) -> Point | None:
    try:
        point = space.build(lambda path: as_typed(settings[path]))
    except KeyError:
        return None
    return point if space.holds(point) else None
