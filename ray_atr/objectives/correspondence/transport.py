"""Belief as the mass that a partial transport plan leaves a pair's row and column (Luong et al. 2024, Eq. 13, as a judge).

    y_i = N (row mass_i + column mass_i) / 2,   pi = argmin <pi, c> - epsilon H(pi), row and column sums <= 1/N, total mass s

The total mass s is estimated from each batch's ranks unless it is given: the papers assume it known. The paper uses the
plan as a loss; that its row mass weighs the pairs of any loss is ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from ray_atr.objectives.correspondence.correspondence import Correspondence
from ray_atr.objectives.correspondence.estimator import Estimator, Judgement, Places, TrainingPairs
from ray_atr.objectives.pairs import Comparison
from ray_atr.objectives.pairs.clean_share import judge_pairs, require_mass
from ray_atr.objectives.pairs.cost import judged_cost
from ray_atr.settings import setting
from ray_atr.transport import solve


@dataclass(frozen=True, kw_only=True)
class Transport(Correspondence):
    """Row and column mass of the batch's partial plan under the Euclidean cost."""

    name: ClassVar[str] = "transport"

    epsilon: float = setting(0.05, "entropic regularisation, for costs in [0, 1]", above=0)
    transport_mass: float | Literal["auto"] = setting(
        "auto", "share of the mass that is transported; auto: as each batch's ranks show it", above=0, at_most=1
    )
    smallest_mass: float = setting(0.2, "the least that `transport_mass=auto` transports", above=0, at_most=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_mass(self.transport_mass)

    def estimator(self, pairs: TrainingPairs) -> Estimator:
        """One that keeps nothing: each batch is judged by itself."""
        return _Planned(pairs, self)


class _Planned(Estimator):
    def __init__(self, pairs: TrainingPairs, settings: Transport) -> None:
        super().__init__(pairs)
        self.settings = settings

    def judge(self, comparison: Comparison, places: Places) -> Judgement:
        cost = judged_cost(comparison)
        plan = solve(cost, self.settings.epsilon, mass=self.mass(-cost, comparison.positives)).matrix
        return Judgement((plan.sum(dim=0) + plan.sum(dim=1)).mul_(comparison.size / 2).clamp(max=1))

    def mass(self, similarity: Tensor, positives: Tensor | None) -> float:
        """The set share, or what the batch's ranks say, no less than `smallest_mass`."""
        given = self.settings.transport_mass
        if isinstance(given, str):
            return max(self.settings.smallest_mass, judge_pairs(similarity, positives).mass)
        return float(given)
