"""The ceiling: injected noise is known, and a wrong pair counts for nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ray_atr.objectives.correspondence.correspondence import Correspondence
from ray_atr.objectives.correspondence.estimator import Estimator, Judgement, Places, TrainingPairs
from ray_atr.objectives.pairs import Comparison
from ray_atr.settings import refuse


@dataclass(frozen=True, kw_only=True)
class Oracle(Correspondence):
    """True pairs are believed, wrong ones are not: no method, but what every method is measured against."""

    name: ClassVar[str] = "oracle"
    needs_truth: ClassVar[bool] = True

    def estimator(self, pairs: TrainingPairs) -> Estimator:
        """One that reads the truth. ValueError if it is not known."""
        if pairs.truth is None:
            raise refuse(
                "objective.correspondence", self.name, "on data whose noise is known (data.noise.ratio above 0)"
            )
        return _Truth(pairs)


class _Truth(Estimator):
    def judge(self, comparison: Comparison, places: Places) -> Judgement:
        assert self.pairs.truth is not None
        return Judgement(self.pairs.truth.to(self.device)[places].to(comparison.u.dtype))
