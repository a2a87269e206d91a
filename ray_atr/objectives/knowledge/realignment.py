"""Transport realignment: similarities that the batch's transport plan agrees with grow (Fu et al. 2025, Eq. 15, Appendix C).

    Q  = argmax <Q, S> + epsilon H(Q) with uniform marginals, detached
    S' = ((1 - beta) + beta B Q) * S, elementwise

The factor B is ours: with Q of total mass 1 the form is nearly (1 - beta) S and realigns nothing.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from ray_atr.objectives.pairs.pair_loss import Comparison
from ray_atr.transport import TransportPlan, solve

FORMS = ("weighted", "additive", "product")


@torch.no_grad()
def agreement(similarity: Tensor, epsilon: float, iterations: int) -> tuple[Tensor, TransportPlan]:
    """(B Q [B, B], whose mean is 1, and the plan Q) of a similarity [B, B]; no gradient."""
    similarity = similarity.detach().float()
    plan = solve(similarity.max() - similarity, epsilon, max_iterations=iterations)
    return plan.matrix * len(similarity), plan


def realign(comparison: Comparison, agreed: Tensor, beta: float, form: str = "weighted") -> Comparison:
    """The comparison with S' in the place of S; the same comparison at beta 0.

    weighted  S' = ((1 - beta) + beta B Q) * S        additive  S' = (1 - beta) S + beta B Q
    product   S' = (B Q)^beta * S
    """
    if beta == 0:
        return comparison
    if form == "additive":
        similarity = (1 - beta) * comparison.cross_similarity() + beta * agreed
        return dataclasses.replace(comparison, similarity=similarity, gain=None)
    gain = agreed.pow(beta) if form == "product" else (1 - beta) + beta * agreed
    return dataclasses.replace(comparison, gain=gain if comparison.gain is None else comparison.gain * gain)
