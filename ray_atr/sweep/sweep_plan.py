"""What a sweep runs, besides its experiment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ray_atr.experiment import Experiment
from ray_atr.space import Point, Space
from ray_atr.sweep.fixed import overrides_of
from ray_atr.sweep.goal import Goal
from ray_atr.sweep.search import Search, SpaceSearch


@dataclass(frozen=True)
class SweepPlan:
    """The points to run, how often each, for how long, and what is looked for."""

    search: Search
    seeds: tuple[int, ...] = ()
    """Each point is run once a seed; without any, once, with the seed that it names or the experiment's."""
    num_points: int | None = None
    """How many points to run in all, those in the run folder included; None: as many as the search has."""
    hours: float | None = None
    """After that time nothing starts any more, and what runs is stopped where a resumed sweep takes it up."""
    goals: tuple[Goal, ...] = ()
    """What a search maximises or minimises, and a scheduler (by the first) compares."""
    scheduler: str = "none"
    """One of schedulers.SCHEDULERS; population-based training changes the settings of the search's space."""

    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Settings that hold in every point that has them: what was set below what the sweep varies."""

    def overrides(self, base: Experiment, point: Mapping[str, Any]) -> Point:
        """What a point changes in the experiment, the fixed settings included."""
        return overrides_of(base, point, self.fixed) if self.fixed else dict(point)

    @property
    def space(self) -> Space | None:
        """The space that the search draws from; None for a list of points."""
        return self.search.space if isinstance(self.search, SpaceSearch) else None
