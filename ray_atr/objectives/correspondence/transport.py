"""Sample weight as the mass that a partial transport plan leaves a pair's row and column (after Luong et al. 2024, Eq. 13).

    y_i = N (row mass_i + column mass_i) / 2,   pi = argmin <pi, c> - epsilon H(pi), row and column sums <= 1/N, total mass s

The total mass s, which the paper assumes known, is the estimated share of true pairs unless it is given. The paper uses
the plan as a loss; that its mass weighs the pairs of any loss is ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ray_atr.common.settings import inherited
from ray_atr.objectives.correspondence.correspondence import (
    Correspondence,
    Estimator,
    PairEstimate,
    PairIndex,
    TrainingPairs,
)
from ray_atr.objectives.pairs import Comparison
from ray_atr.objectives.pairs.learning_to_match import detached_cost
from ray_atr.objectives.pairs.partial_learning_to_match import PartialLearningToMatch
from ray_atr.objectives.transport import solve


@dataclass(frozen=True, kw_only=True)
class Transport(Correspondence):
    """Row and column mass of the batch's partial plan under the Euclidean cost.

    When: the weights of partial transport are wanted under another pair loss.
    Related: the pair loss `partial_learning_to_match`.

    >>> from ray_atr.objectives import Objective
    >>> from ray_atr.objectives.correspondence import CORRESPONDENCES
    >>> Objective(correspondence=CORRESPONDENCES["transport"]()).correspondence.name
    'transport'
    """

    name: ClassVar[str] = "transport"
    epsilon: float = inherited(PartialLearningToMatch, "epsilon")
    transport_mass: float | Literal["auto"] = inherited(PartialLearningToMatch, "transport_mass", "auto")
    smallest_mass: float = inherited(PartialLearningToMatch, "smallest_mass")

    @property
    def needs_clean_share(self) -> bool:
        return isinstance(self.transport_mass, str)

    def estimator(self, pairs: TrainingPairs) -> Estimator:
        return _TransportEstimator(pairs, self)


class _TransportEstimator(Estimator):
    settings: Transport

    def estimate(self, comparison: Comparison, index: PairIndex) -> PairEstimate:
        cost, mass = detached_cost(comparison), self.settings.transport_mass
        if isinstance(mass, str):
            estimate = comparison.clean_share
            mass = 1.0 if estimate is None else max(self.settings.smallest_mass, estimate.mass)
        plan = solve(cost, self.settings.epsilon, mass=float(mass)).matrix
        return PairEstimate((plan.sum(dim=0) + plan.sum(dim=1)).mul_(comparison.size / 2).clamp(max=1))
