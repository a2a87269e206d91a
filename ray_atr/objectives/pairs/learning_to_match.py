"""Learning to match: the plan of the batch should be the true matching (Luong et al. 2024, Eq. 3, 6, 9).

loss = KL(pi_hat || pi),  pi = argmin <pi, c> - epsilon H(pi) with marginals 1/N,  pi_hat = I/N
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ray_atr.objectives.pairs.base import Comparison, PairLoss
from ray_atr.objectives.pairs.cost import METRICS, normalised_cost
from ray_atr.objectives.terms import Terms
from ray_atr.settings import setting
from ray_atr.transport import Plan, log_plan, matching_loss


@dataclass(frozen=True, kw_only=True)
class LearningToMatch(PairLoss):
    """KL from the true matching to the balanced entropic plan; use `partial_learning_to_match` where pairs may be wrong."""

    name: ClassVar[str] = "learning_to_match"

    epsilon: float = setting(0.05, "entropic regularisation, for costs in [0, 1]", above=0)
    metric: str = setting(
        "euclidean",
        "distance: euclidean; diagonal (what the paper's released code computes), mahalanobis (full M, as the paper says) or "
        "factored (M = L L^T, no projection needed), which are learnt",
        choices=METRICS,
    )
    metric_rank: int | None = setting(None, "columns of the factor L; none: the embedding width", at_least=1)
    project_every: int = setting(1, "optimiser steps between projections of a full M to the PSD cone", at_least=1)
    detach_maximum: bool = setting(False, "hold the maximum that the cost is divided by constant in the gradient")
    max_iterations: int = setting(2000, "cap on the solver's iterations", at_least=1)

    def score(self, comparison: Comparison, metric: Tensor | None, temperature: Tensor | None) -> Terms:
        """KL(pi_hat || pi) of the comparison's cost."""
        cost = normalised_cost(comparison, self.metric, metric, detach_maximum=self.detach_maximum)
        mass, about_mass = self.mass(cost.detach(), comparison)
        loss, plan = match(comparison, cost, self.epsilon, mass, self.max_iterations)
        return Terms(loss, {**plan_scalars(plan, cost, mass), **about_mass})

    def mass(self, cost: Tensor, comparison: Comparison) -> tuple[float, dict[str, Tensor]]:
        """(the share of the mass that is transported, what to log of how it was found): all of it."""
        return 1.0, {}


def match(
    comparison: Comparison, cost: Tensor, epsilon: float, mass: float, max_iterations: int
) -> tuple[Tensor, Plan]:
    """(KL of the true matching and the plan, the plan).

    Sample weights multiply the pointwise terms: sum_ij (row_weight_i + column_weight_j)/2 pi_hat_ij log(pi_hat_ij / pi_ij).
    """
    target = None if comparison.positives is None else true_matching(comparison.positives, cost.dtype)
    if not comparison.is_weighted:
        return matching_loss(cost, epsilon, mass=mass, target=target, max_iterations=max_iterations)
    log_matrix, plan = log_plan(cost, epsilon, mass=mass, max_iterations=max_iterations)
    if target is None:
        target = true_matching(comparison.positive_mask(), cost.dtype)
    ones = cost.new_ones(len(cost))
    row = ones if comparison.row_weight is None else comparison.row_weight
    column = ones if comparison.column_weight is None else comparison.column_weight
    pointwise = torch.xlogy(target, target) - target * log_matrix
    return (0.5 * (row[:, None] + column) * pointwise).sum(), plan


def true_matching(positives: Tensor, dtype: torch.dtype) -> Tensor:
    """pi_hat [N, N]: each row's mass 1/N spread evenly over its positives."""
    spread = positives.to(dtype)
    return spread / (spread.sum(dim=1, keepdim=True) * len(positives))


def plan_scalars(plan: Plan, cost: Tensor, mass: float) -> dict[str, Tensor]:
    """How the solver fared and how much of the mass lies on the true pairs."""
    with torch.no_grad():
        own = plan.log_matrix.diagonal().exp().sum()
    return {
        "transport_residual": cost.new_tensor(plan.residual),
        "transport_iterations": cost.new_tensor(float(plan.iterations)),
        "transport_is_capped": cost.new_tensor(float(not plan.is_converged)),
        "transport_mass": cost.new_tensor(mass),
        "mass_on_true_pairs": own,
    }
