"""Every pair on its own: sigmoid loss (Zhai et al. 2023, "Sigmoid loss for language image pre-training", Eq. 1).

loss = -1/N sum_ij log sigmoid(z_ij (s_ij / tau + b)),   z_ij = 1 for positives, -1 for negatives

The paper learns tau and b, from log(1/tau) = log 10 and b = -10, so that the many negatives do not dominate the first steps.
With soft targets t, a pair counts as a positive by t_ij and as a negative by 1 - t_ij; every positive has the own partner's t_ii.
With sample weights y, the entry (i, j) counts by y_i y_j, that of a pair itself by y_i; this is ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from ray_atr.common.settings import setting
from ray_atr.objectives.pairs.around_ring import SigmoidTiles, losses_around_ring
from ray_atr.objectives.pairs.learned import Learned, LearnedSettings
from ray_atr.objectives.pairs.pair_loss import Comparison, Direction, OwnPairs, PairLoss, Terms


@dataclass(frozen=True, kw_only=True)
class Sigmoid(PairLoss):
    """Binary cross-entropy of every pair of the batch.

    When: batches are large or shared by many workers, and scores should be comparable between queries.
    Related: `Contrastive` compares each pair with its batch.

    >>> import torch
    >>> from ray_atr.objectives.pairs import Comparison, Sigmoid
    >>> u, v = torch.eye(4), torch.eye(4)  # four true pairs [N, D], each unlike the others
    >>> loss = Sigmoid(temperature=0.1, bias=-5.0)
    >>> bool(loss(Comparison(u, v)).loss < loss(Comparison(u, v.roll(1, dims=0))).loss)
    True
    """

    name: ClassVar[str] = "sigmoid"
    takes_extra_negatives: ClassVar[bool] = True
    shared_from: ClassVar[int] = 1024
    goes_around: ClassVar[bool] = True
    temperature: float = setting(0.1, "divides the similarities (tau): its first value if it is learned", above=0)
    bias: float = setting(-10.0, "added to every logit (b): its first value if it is learned")
    learn_scale: bool = setting(True, "learn temperature and bias, as the paper does; false: both stay as they are")

    def learns(self) -> LearnedSettings:
        bias = self.bias if self.learn_scale else None
        return LearnedSettings(temperature=self.temperature, learn_temperature=self.learn_scale, bias=bias)

    def score(self, comparison: Comparison, learned: Learned) -> Terms:
        """A sample's loss is the sum over its row's, or its column's, pairs. With unit weights both directions are equal."""
        tau = learned.tau(self.temperature)
        bias = self.bias if learned.bias is None else learned.bias
        of_rows, of_columns = (pair_losses(side, side.similarity / tau + bias) for side in comparison.directions())
        row_losses, column_losses = of_rows.sum(dim=1), of_columns.sum(dim=1)
        for_rows, for_columns = comparison.extra_logits(tau)
        if for_rows is not None:
            row_losses = row_losses + functional.softplus(for_rows + bias).sum(dim=1)
        if for_columns is not None:
            column_losses = column_losses + functional.softplus(for_columns + bias).sum(dim=1)
        loss_of_pairs = of_rows.detach().diagonal().mean()
        return Terms(comparison.both_directions(row_losses, column_losses), {"loss_of_true_pairs": loss_of_pairs})

    def score_own(self, pairs: OwnPairs, learned: Learned) -> Terms:
        bias = self.bias if learned.bias is None else learned.bias
        rows, columns, tiles = losses_around_ring(pairs, SigmoidTiles, learned.tau(self.temperature), bias)
        return Terms(pairs.both_directions(rows, columns), {"loss_of_true_pairs": pairs.mean(tiles.own_losses)})


def pair_losses(direction: Direction, logits: Tensor) -> Tensor:
    """-log sigmoid(z_ij logit_ij) of every pair, [N, N]; with targets, the mean over z_ij = 1 by t_ij and -1 by 1 - t_ij."""
    positives, targets, weights = direction.mask, direction.targets, direction.other_weights()
    if targets is None:
        losses = functional.softplus(logits.where(~positives, -logits))
    else:
        share = torch.where(positives, targets.diagonal()[:, None], targets)
        # softplus(-x) = softplus(x) - x
        losses = functional.softplus(logits) - share * logits
    return losses if weights is None else losses * weights
