"""Wrong pairs are matched again among themselves (L2RM, Han et al. 2024, "Learning to rematch mismatched pairs").

Pairs of small loss keep their partner. The soft target of the others of the batch is the row-normalised partial plan
between their clips and their texts, the own pairs masked (Eq. 6-9). Ours: a text that is the same as the own one is masked
too, and a rematched pair's sample weight is the filled part of its row's share of the plan, where the paper gives every row the
same weight. Left out: the learned cost network (the cost is the Euclidean distance), the symmetric divergence (the pair
loss takes the targets), and the switch by the known noise ratio.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ray_atr.common.settings import setting
from ray_atr.objectives.correspondence.correspondence import PairEstimate, PairIndex, TrainingPairs
from ray_atr.objectives.correspondence.small_loss import SmallLoss, SmallLossEstimator
from ray_atr.objectives.pairs import Comparison
from ray_atr.objectives.pairs.learning_to_match import detached_cost
from ray_atr.objectives.transport import solve

MASKED = 2.0
"""Cost of an own pair beside costs of at most 1: e^-(1/epsilon) times as likely as the dearest other one."""


@dataclass(frozen=True, kw_only=True)
class Rematch(SmallLoss):
    """Soft targets for the pairs of large loss, from a partial plan among them.

    When: texts of a batch's wrong pairs fit other clips of it, as after a shuffle.
    Related: `small_loss` leaves them out instead.

    >>> from ray_atr.objectives import Objective
    >>> from ray_atr.objectives.correspondence import CORRESPONDENCES
    >>> Objective(correspondence=CORRESPONDENCES["rematch"]()).correspondence.name
    'rematch'
    """

    name: ClassVar[str] = "rematch"
    threshold: float = setting(0.5, "a pair of a lower clean probability is rematched", above=0, below=1)
    transport_mass: float = setting(
        0.1, "share of the rematched pairs' mass that the plan transports", above=0, at_most=1
    )
    epsilon: float = setting(0.07, "entropic regularisation of the plan, for costs in [0, 1]", above=0)

    def estimator(self, pairs: TrainingPairs) -> SmallLossEstimator:
        return _RematchEstimator(pairs, self)


class _RematchEstimator(SmallLossEstimator):
    settings: Rematch

    def estimate(self, comparison: Comparison, index: PairIndex) -> PairEstimate:
        estimate = super().estimate(comparison, index)
        assert estimate.sample_weight is not None
        wrong = (estimate.sample_weight < self.settings.threshold).nonzero().squeeze(1)
        if len(wrong) < 2:
            return estimate
        # A partial plan [w, w] among the wrong pairs.
        cost = detached_cost(comparison)[wrong][:, wrong]
        # Texts that are the same as the own one are as wrong.
        is_positive = comparison.positive_mask()[wrong][:, wrong]
        plan = solve(
            cost.masked_fill(is_positive, MASKED), self.settings.epsilon, mass=self.settings.transport_mass
        ).matrix
        plan = plan.masked_fill(is_positive, 0.0)
        row_mass = plan.sum(dim=1)
        targets = torch.eye(comparison.size, dtype=plan.dtype, device=plan.device)
        targets[wrong[:, None], wrong] = plan / row_mass.clamp(min=torch.finfo(plan.dtype).tiny)[:, None]
        return PairEstimate(estimate.sample_weight.index_copy(0, wrong, (len(wrong) * row_mass).clamp(max=1)), targets)
