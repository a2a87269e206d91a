"""What decides which point a sweep runs next: a given list, random draws, or (optuna_search.py) what earlier points reached.

A search has no state. It is asked for the point of a number, given the points before and what is known of each, so that going
on with a sweep, from its run folder, is the same as never having stopped.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from ray_atr.space import Point, Space, point_key

ATTEMPTS = 100
"""Draws after which a space that only gives points that are there already counts as exhausted."""


@dataclass(frozen=True)
class Known:
    """A point that was given out, and what is known of it."""

    point: Point
    status: str
    """`running`, `finished`, `stopped` (early, by a scheduler) or `failed`."""
    scores: tuple[float, ...] = ()
    """Of each goal the mean over the point's seeds; so far for a stopped one, none while it is running."""
    epochs: int = 0
    """How many a stopped point reached."""


class Search(Protocol):
    """Proposes points."""

    name: ClassVar[str]
    is_adaptive: ClassVar[bool]
    """Whether what it proposes depends on what earlier points reached."""

    def propose(self, number: int, known: Sequence[Known]) -> Point | None:
        """The point of this number (from 0 on), unlike those known; None where there is none left."""


@dataclass(frozen=True)
class FixedPoints:
    """The points of a list, in its order."""

    points: Sequence[Mapping[str, Any]]
    name: ClassVar[str] = "points"
    is_adaptive: ClassVar[bool] = False

    def propose(self, number: int, known: Sequence[Known]) -> Point | None:
        return _first_new(self.points, known)


@dataclass(frozen=True)
class GridSearch:
    """Every point of a space of grids and choices. ValueError for a range."""

    space: Space
    name: ClassVar[str] = "grid"
    is_adaptive: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.space.require_grid()

    def propose(self, number: int, known: Sequence[Known]) -> Point | None:
        return _first_new(self.space.grid(), known)


@dataclass(frozen=True)
class RandomSearch:
    """Independent draws; the grid dimensions' points in turn, so that each gets its share of the draws."""

    space: Space
    seed: int = 0
    name: ClassVar[str] = "random"
    is_adaptive: ClassVar[bool] = False

    def propose(self, number: int, known: Sequence[Known]) -> Point | None:
        given = {point_key(one.point) for one in known}
        cells = self.space.cells()
        for attempt in range(ATTEMPTS):
            # A cell that has no further points is passed over for the next.
            cell = cells[(number + attempt) % len(cells)]
            point = self.space.draw(random.Random(f"{self.seed}/{number}/{attempt}"), cell)
            if point_key(point) not in given:
                return point
        return None


def _first_new(points: Iterable[Mapping[str, Any]], known: Sequence[Known]) -> Point | None:
    given = {point_key(one.point) for one in known}
    return next((dict(point) for point in points if point_key(point) not in given), None)
