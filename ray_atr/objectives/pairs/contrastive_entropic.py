"""Contrastive plus an entropic term: the control for the regularisation in learning to match (Luong et al. 2024, Eq. 14).

    loss = contrastive + epsilon L_ent(R),   L_ent(R) = half of each direction's mean over i of sum_j R_ij log R_ij

R is the ranking matrix: softmax over each row one way, over each column the other. L_ent is the negative entropy, as in
transport, which subtracts epsilon H(pi): ranking matrices are kept soft. The paper's released code has the opposite sign, in a
line that is commented out; `entropy="discourage"` is that sign.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ray_atr.common.settings import setting
from ray_atr.objectives.pairs.contrastive import Contrastive
from ray_atr.objectives.pairs.learned import Learned
from ray_atr.objectives.pairs.pair_loss import Comparison, Terms


@dataclass(frozen=True, kw_only=True)
class ContrastiveEntropic(Contrastive):
    """NT-Xent with the entropy of the in-batch ranking matrix encouraged.

    When: to measure how much of m-LTM's gain comes from its entropy alone. It is the paper's own control.
    Related: `Contrastive` is the same without the entropy; `LearningToMatch` is the loss that it is a control for.

    >>> import torch
    >>> from ray_atr.objectives.pairs import Comparison, ContrastiveEntropic
    >>> u, v = torch.eye(4), torch.eye(4)  # four true pairs [N, D], each unlike the others
    >>> loss = ContrastiveEntropic(epsilon=0.1)
    >>> bool(loss(Comparison(u, v)).loss < loss(Comparison(u, v.roll(1, dims=0))).loss)
    True
    """

    name: ClassVar[str] = "contrastive_entropic"
    goes_around: ClassVar[bool] = False
    epsilon: float = setting(0.05, "weight of the entropic term", above=0)
    entropy: str = setting(
        "encourage",
        "encourage: soft rankings, as transport does; discourage: the released code's sign",
        choices=("encourage", "discourage"),
    )

    def score(self, comparison: Comparison, learned: Learned) -> Terms:
        contrastive = super().score(comparison, learned)
        tau = learned.tau(self.temperature)
        # sum_j R_ij log R_ij of the ranking matrix over rows and of that over columns, [N] and [N].
        rankings = [side.competing(side.similarity / tau).log_softmax(dim=1) for side in comparison.directions()]
        rows, columns = ((side.exp() * side).sum(dim=1) for side in rankings)
        term = comparison.both_directions(rows, columns)
        sign = 1.0 if self.entropy == "encourage" else -1.0
        scalars = {**contrastive.scalars, "ranking_entropy": -term.detach()}
        return Terms(contrastive.loss + sign * self.epsilon * term, scalars)
