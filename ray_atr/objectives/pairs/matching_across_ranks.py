"""Learning to match by workers that each hold some rows of the plan; none of them has an [N, N] of costs or of masses.

Every worker has all embeddings, as after any gather, and ends with the loss and the gradients that it would have with the whole
plan: the workers' parts are summed on the way, forward and backward.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from ray_atr.objectives.pairs.pair_loss import Comparison
from ray_atr.transport import Ranks, TransportPlan, log_plan_across_ranks


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


def match_across_ranks(
    comparison: Comparison,
    own: Comparison,
    cost: Tensor,
    epsilon: float,
    ranks: Ranks,
    *,
    mass: float,
    max_iterations: int,
    follows: bool,
) -> tuple[Tensor, Tensor, TransportPlan]:
    """(KL of the true matching and the plan, log of the plan's own rows [n, N], the plan); `own` and cost [n, N] are the share.

    As `learning_to_match.match`, which it equals with one worker.
    """
    N, rows = comparison.size, ranks.own(comparison.size)
    marginal = None if comparison.belief is None else comparison.belief / comparison.belief.sum()
    log_rows, plan = log_plan_across_ranks(
        cost, epsilon, N, ranks, mass=mass, rows=marginal, columns=marginal, max_iterations=max_iterations
    )
    aimed = ranks.joined(plan.matrix.sum(dim=1), N) if follows else marginal
    if comparison.positives is None and comparison.targets is None and not comparison.is_weighted:
        # Only the diagonal of the target is not 0: no [n, N] is made for it.
        a = (cost.new_full((N,), 1 / N) if aimed is None else aimed.to(cost))[rows]
        pointwise = torch.xlogy(a, a) - a * log_rows[:, rows].diagonal()
        return ranks.total(pointwise.sum()), log_rows, plan
    target = comparison.true_matching(aimed, rows)
    pointwise = torch.xlogy(target, target) - target * log_rows
    return ranks.total((own.pair_weights() * pointwise).sum()), log_rows, plan
