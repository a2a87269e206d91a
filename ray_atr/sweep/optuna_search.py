"""Points by Optuna's tree-structured Parzen estimator, for one goal or several."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ray_atr.space import Point
from ray_atr.sweep.search import History, RandomSearch, SpaceSearch

if TYPE_CHECKING:
    from ray_atr.sweep.optuna_study import Study

ATTEMPTS = 10
"""Proposals that repeat a known point before one is drawn at random instead."""


@dataclass(frozen=True)
class OptunaSearch(SpaceSearch):
    """What TPE expects most of, given every point so far; a search of its own for each point of the grid dimensions.

    Points that are running count as unpromising for the time being (Optuna's constant liar), so that points at work together
    differ. Each proposal draws with numbers of its own from a study that is kept up with the history: it is the same whether
    the study was kept since the first point or made from a run folder.
    """

    name: ClassVar[str] = "optuna"
    is_adaptive: ClassVar[bool] = True

    def proposals(self, history: History) -> Iterator[Point]:
        # Optuna takes a third of a second to import, and every trial's process imports this module.
        from ray_atr.sweep.optuna_study import Study

        cells = self.space.cells()
        studies = [Study(self, cell, history) for cell in cells]
        at_random = RandomSearch(self.space, seed=self.seed)
        while True:
            study = studies[len(history) % len(cells)]
            study.keep_up()
            point = self._unknown(study, history) or at_random.draw(history, cells)
            if point is None:
                return
            yield point

    def _unknown(self, study: Study, history: History) -> Point | None:
        """The first proposal that is not in the history; None if `ATTEMPTS` of them are."""
        for attempt in range(ATTEMPTS):
            point = study.propose(zlib.crc32(f"{self.seed}/{len(history)}/{attempt}".encode()))
            if point not in history:
                return point
        return None
