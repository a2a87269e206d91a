"""Hinge losses on cosine similarity: a true partner must beat the negatives by a margin.

l_i = max over negatives j of [margin + s_ij - s_ii]_+        (hardest; Faghri et al. 2018, Luong et al. 2024)
l_i = sum over negatives j of [margin + s_ij - s_ii]_+        (all)
l_i = [0.2 s_ii^2 - 0.7 s_ii + 0.5]_+ + [0.9 n^2 - 0.4 n + 0.03]_+,  n = max over negatives with s_ij > s_ii - margin
                                                              (weighted; Wei et al. 2020, as ML-ACT uses it)

With soft targets t, s_ii becomes the partners' mean sum_j t_ij s_ij, and a negative's margin (1 - t_ij) times the margin.
With sample weights y, l_i is multiplied by y_i, and s_ij of a negative is lowered by (1 - y_j)(2 + margin): a pair of weight 0
violates nothing. This is ours: a wrong pair's clip is often a negative of its true caption, and then among the hardest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ray_atr.common.settings import setting
from ray_atr.objectives.pairs.learned import Learned
from ray_atr.objectives.pairs.pair_loss import Comparison, Direction, PairLoss, Terms


@dataclass(frozen=True, kw_only=True)
class Triplet(PairLoss):
    """Bidirectional hinge; half of each direction, mean over samples.

    When: towers are pretrained, and a margin in cosine similarity is wanted. From random weights `hardest` collapses.
    Related: `Contrastive` weighs all negatives, where `hardest` sees one.

    >>> import torch
    >>> from ray_atr.objectives.pairs import Comparison, Triplet
    >>> u, v = torch.eye(4), torch.eye(4)  # four true pairs [N, D], each unlike the others
    >>> loss = Triplet(margin=0.2)
    >>> bool(loss(Comparison(u, v)).loss < loss(Comparison(u, v.roll(1, dims=0))).loss)
    True
    """

    name: ClassVar[str] = "triplet"
    margin: float = setting(0.2, "by how much a positive must beat a negative, in cosine similarity", above=0)
    mining: str = setting(
        "hardest",
        "which negatives count: the hardest of the batch, all (their sum), or weighted (ML-ACT's polynomial weights)",
        choices=("hardest", "all", "weighted"),
    )

    def score(self, comparison: Comparison, learned: Learned) -> Terms:
        row_losses, column_losses = (self.sample_losses(direction) for direction in comparison.directions())
        active = (row_losses.detach() > 0).float().mean() + (column_losses.detach() > 0).float().mean()
        return Terms(comparison.both_directions(row_losses, column_losses), {"active_share": active / 2})

    def sample_losses(self, direction: Direction) -> Tensor:
        """Loss [N] of each row; with several positives, the own partner is the one that must win."""
        similarity, positives, targets = direction.similarity, direction.mask, direction.targets
        of_pairs, weights = similarity.diagonal(), direction.other_weights()
        if targets is not None:
            # A negative's margin is (1 - t_ij) times the margin: the same as a similarity that is lower by t_ij times it.
            of_pairs, similarity = (targets * similarity).sum(dim=1), similarity - self.margin * targets
        if weights is not None:
            similarity = similarity - (1 - weights) * (2 + self.margin)
        if self.mining == "all":
            violations = (self.margin + similarity - of_pairs[:, None]).clamp(min=0)
            return violations.masked_fill(positives, 0.0).sum(dim=1)
        has_negative = ~positives.all(dim=1)
        hardest = torch.where(has_negative, similarity.masked_fill(positives, -torch.inf).amax(dim=1), -2.0)
        if self.mining == "hardest":
            return torch.where(has_negative, (self.margin + hardest - of_pairs).clamp(min=0), 0.0)
        is_informative = has_negative & (hardest + self.margin > of_pairs)
        pull = (0.2 * of_pairs**2 - 0.7 * of_pairs + 0.5).clamp(min=0)
        push = (0.9 * hardest**2 - 0.4 * hardest + 0.03).clamp(min=0)
        return torch.where(is_informative, pull + push, 0.0)
