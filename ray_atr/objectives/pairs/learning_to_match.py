"""Learning to match: the plan of the batch should be the true matching (Luong et al. 2024, Eq. 3, 6, 9).

loss = KL(pi_hat || pi),  pi = argmin <pi, c> - epsilon H(pi) with marginals 1/N,  pi_hat = I/N

With beliefs y, both marginals are y / sum y, pi_hat = diag(y) / sum y, and the loss is multiplied by the mean of y: a pair that
is not believed has no mass to place. With soft targets t, pi_hat_ij = a_i t_ij for the marginals a.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ray_atr.objectives.learned import Learned, LearnedSettings
from ray_atr.objectives.metric import METRICS
from ray_atr.objectives.pairs.cost import normalised_cost
from ray_atr.objectives.pairs.pair_loss import Comparison, PairLoss
from ray_atr.objectives.pairs.row_logits import is_shared
from ray_atr.objectives.terms import Terms
from ray_atr.settings import setting
from ray_atr.transport import Ranks, TransportPlan, log_plan, log_plan_across_ranks, matching_loss
from ray_atr.transport.solve import SolveOptions


@dataclass(frozen=True, kw_only=True)
class LearningToMatch(PairLoss):
    """KL from the true matching to the balanced entropic plan; use `partial_learning_to_match` where pairs may be wrong."""

    name: ClassVar[str] = "learning_to_match"

    epsilon: float = setting(0.05, "entropic regularisation, for costs in [0, 1]", above=0, changeable=True)
    metric: str = setting(
        "mahalanobis",
        "distance: mahalanobis (full M, as the paper says), diagonal (what the paper's released code computes) or factored "
        "(M = L L^T, no projection needed), which are learned; euclidean, which is not",
        choices=METRICS,
    )
    metric_rank: int | None = setting(None, "columns of the factor L; none: the embedding width", at_least=1)
    project_every: int = setting(1, "optimiser steps between projections of a full M to the PSD cone", at_least=1)
    detach_maximum: bool = setting(False, "treat the maximum that the cost is divided by as a constant in the gradient")
    max_iterations: int = setting(2000, "cap on the solver's iterations", at_least=1)
    shared_from: int = setting(
        4096,
        "pairs in a comparison from which a trial's workers share its plan, each with its own rows of it: the same loss in the "
        "memory of one share; 0: never",
        at_least=0,
    )

    def learns(self) -> LearnedSettings:
        """The metric, unless it is Euclidean."""
        return LearnedSettings(metric=self.metric, metric_rank=self.metric_rank, project_every=self.project_every)

    def score(self, comparison: Comparison, learned: Learned) -> Terms:
        """KL(pi_hat || pi) of the comparison's cost."""
        whole, comparison = comparison, comparison.believed()
        if comparison.size == 0:
            return Terms(0 * whole.cross_similarity().sum(), {})
        match = self.match_own_rows if self.is_shared(comparison) else self.match
        loss, scalars = match(comparison, learned)
        if comparison.belief is not None:
            loss = loss * (comparison.belief.sum() / whole.size)
        return Terms(loss, scalars)

    def is_shared(self, comparison: Comparison) -> bool:
        """Whether the workers share the plan."""
        return is_shared(comparison, self.shared_from)

    def match(self, comparison: Comparison, learned: Learned) -> tuple[Tensor, dict[str, Tensor]]:
        """(KL of the true matching and the plan, scalars); where the target follows the plan, it has the plan's own row mass.

        Sample weights multiply the pointwise terms: sum_ij (row_weight_i + column_weight_j)/2 pi_hat_ij log(pi_hat_ij / pi_ij).
        """
        cost = normalised_cost(comparison, self.metric, learned.metric, detach_maximum=self.detach_maximum)
        mass, about_mass = self.mass(cost.detach(), comparison)
        marginal = comparison.marginal()
        options = SolveOptions(rows=marginal, columns=marginal, max_iterations=self.max_iterations)
        if comparison.is_weighted or self.follows_plan:
            log_matrix, plan = log_plan(cost, self.epsilon, mass=mass, **options)
            target = comparison.true_matching(plan.matrix.sum(dim=1) if self.follows_plan else marginal)
            loss = (comparison.pair_weights() * divergences(target, log_matrix)).sum()
        else:
            is_plain = comparison.positives is None and comparison.targets is None
            aimed = None if is_plain else comparison.true_matching(marginal)
            loss, plan = matching_loss(cost, self.epsilon, mass=mass, target=aimed, **options)
        return loss, {**plan_scalars(plan, own_mass(plan.log_matrix), mass), **about_mass}

    def match_own_rows(self, comparison: Comparison, learned: Learned) -> tuple[Tensor, dict[str, Tensor]]:
        """As `match`, by workers that each hold some rows of the plan: none of them has an [N, N] of costs or of masses.

        Every worker has all embeddings, as after any gather, and ends with the loss and the gradients that it would have with
        the whole plan: the workers' parts are summed on the way, forward and backward.
        """
        N, ranks = comparison.size, Ranks.sharing()
        own, rows = own_rows(comparison, ranks), ranks.own(N)
        metric = None if learned.metric is None else ranks.replicated(learned.metric)
        cost = normalised_cost(own, self.metric, metric, detach_maximum=self.detach_maximum, ranks=ranks)
        mass, about_mass = self.mass(cost.detach(), comparison)
        marginal = comparison.marginal()
        log_rows, plan = log_plan_across_ranks(
            cost, self.epsilon, N, ranks, mass=mass, rows=marginal, columns=marginal, max_iterations=self.max_iterations
        )
        aimed = ranks.joined(plan.matrix.sum(dim=1), N) if self.follows_plan else marginal
        own_pairs = log_rows[:, rows]
        if comparison.positives is None and comparison.targets is None and not comparison.is_weighted:
            # Only the diagonal of the target is not 0: no [n, N] is made for it.
            a = (cost.new_full((N,), 1 / N) if aimed is None else aimed.to(cost))[rows]
            part = divergences(a, own_pairs.diagonal())
        else:
            part = own.pair_weights() * divergences(comparison.true_matching(aimed, rows), log_rows)
        scalars = plan_scalars(plan, ranks.sum(own_mass(own_pairs)), mass)
        return ranks.total(part.sum()), {**scalars, **about_mass}

    @property
    def follows_plan(self) -> bool:
        """Whether the target is the plan's own row mass."""
        return False

    def mass(self, cost: Tensor, comparison: Comparison) -> tuple[float, dict[str, Tensor]]:
        """(the share of the mass that is transported, what to log of how it was found): all of it."""
        return 1.0, {}


def own_rows(comparison: Comparison, ranks: Ranks) -> Comparison:
    """The comparison of this worker's share of the u with all v: [n, N] where the whole is [N, N]."""
    own = ranks.own(comparison.size)
    row_weight, column_weight = comparison.row_weight, comparison.column_weight
    return dataclasses.replace(
        comparison,
        u=ranks.replicated(comparison.u)[own],
        v=ranks.replicated(comparison.v),
        row_weight=None if row_weight is None else ranks.replicated(row_weight)[own],
        column_weight=None if column_weight is None else ranks.replicated(column_weight),
    )


def divergences(target: Tensor, log_matrix: Tensor) -> Tensor:
    """The pointwise terms of KL(target || plan), whose sum it is."""
    return torch.xlogy(target, target) - target * log_matrix


def own_mass(log_matrix: Tensor) -> Tensor:
    """The mass on the true pairs: of a plan's matrix, or of the square of its rows that holds their own columns."""
    return log_matrix.detach().diagonal().exp().sum()


def plan_scalars(plan: TransportPlan, own: Tensor, mass: float) -> dict[str, Tensor]:
    """How the solver fared and how much of the mass is on the true pairs."""
    return {
        "transport_residual": own.new_tensor(plan.residual),
        "transport_iterations": own.new_tensor(float(plan.iterations)),
        "transport_is_capped": own.new_tensor(float(not plan.is_converged)),
        "transport_mass": own.new_tensor(mass),
        "mass_on_true_pairs": own,
    }
