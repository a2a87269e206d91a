"""NT-Xent: half of each direction's cross-entropy over similarities (Luong et al. 2024, Eq. 1; ATRI Eq. 13; ASK Eq. 1).

    l_i = -log( exp(s_ii / tau) / (exp(s_ii / tau) + sum over negatives j of exp(s_ij / tau)) )

With several positives, l_i is the mean over them, and none of them is in another's denominator. With soft targets t, l_i is
sum_j t_ij l_ij, the cross-entropy of t_i and the row's softmax; the own partner's share is spread over the positives.

With sample weights y, l_i is multiplied by y_i; positive j counts by y_j in the mean, and negative j by y_j in the sum: a
pair of weight 0 is neither, as in learning to match. This is ours. Released methods multiply l_i alone: where several clips
have one caption, a wrong pair is then still pulled by the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from ray_atr.common.settings import setting
from ray_atr.objectives.pairs.around_ring import SoftmaxTiles, losses_around_ring
from ray_atr.objectives.pairs.learned import Learned, LearnedSettings
from ray_atr.objectives.pairs.pair_loss import Comparison, Direction, OwnPairs, PairLoss, Terms, without


@dataclass(frozen=True, kw_only=True)
class Contrastive(PairLoss):
    """Cross-entropy of each sample's true partner among the batch, both directions.

    When: most pairs are true; the baseline that other objectives are compared with.
    Related: `Sigmoid` has no softmax over the batch, `LearningToMatch` has a transport plan in its place.

    >>> import torch
    >>> from ray_atr.objectives.pairs import Comparison, Contrastive
    >>> u, v = torch.eye(4), torch.eye(4)  # four true pairs [N, D], each unlike the others
    >>> loss = Contrastive(temperature=0.1)
    >>> bool(loss(Comparison(u, v)).loss < loss(Comparison(u, v.roll(1, dims=0))).loss)
    True
    """

    name: ClassVar[str] = "contrastive"
    takes_extra_negatives: ClassVar[bool] = True
    shared_from: ClassVar[int] = 1024
    goes_around: ClassVar[bool] = True
    temperature: float = setting(0.07, "divides the similarities (tau); a learned temperature replaces it", above=0)

    def learns(self) -> LearnedSettings:
        """Nothing by itself. With `model.learn_temperature` the temperature is learned, from this first value."""
        return LearnedSettings(temperature=self.temperature)

    def score(self, comparison: Comparison, learned: Learned) -> Terms:
        tau = learned.tau(self.temperature)
        rows, columns = comparison.directions()
        for_rows, for_columns = comparison.extra_logits(tau)
        row_losses, column_losses = sample_losses(rows, tau, for_rows), sample_losses(columns, tau, for_columns)
        scalars = {"loss_rows": row_losses.detach().mean(), "loss_columns": column_losses.detach().mean()}
        return Terms(comparison.both_directions(row_losses, column_losses), scalars)

    def score_own(self, pairs: OwnPairs, learned: Learned) -> Terms:
        rows, columns, _ = losses_around_ring(pairs, SoftmaxTiles, learned.tau(self.temperature))
        scalars = {"loss_rows": pairs.mean(rows.detach()), "loss_columns": pairs.mean(columns.detach())}
        return Terms(pairs.both_directions(rows, columns), scalars)


def sample_losses(direction: Direction, tau: float | Tensor, extra: Tensor | None = None) -> Tensor:
    """-log-probability [N] of each row's positive, among this positive and the row's negatives; the mean over several positives.

    With targets [N, N], their mean under them: a target that is no positive competes with the whole row.
    """
    positives, targets = direction.positives, direction.targets
    logits = direction.similarity / tau
    competing = direction.competing(logits)
    if targets is None and positives is not None:
        return (against_negatives(logits, competing, positives, extra) * direction.positive_shares()).sum(dim=1)
    every = competing if extra is None else torch.cat([competing, extra], dim=1)
    if targets is None:
        return functional.cross_entropy(every, torch.arange(len(logits), device=logits.device), reduction="none")
    losses = -every.log_softmax(dim=1)[:, : len(logits)]
    if positives is None:
        return (targets * losses).sum(dim=1)
    losses = torch.where(positives, against_negatives(logits, competing, positives, extra), losses)
    on_diagonal = targets.diagonal()
    shares = targets + on_diagonal[:, None] * direction.positive_shares()
    shares.diagonal().sub_(on_diagonal)
    return (shares * losses).sum(dim=1)


def against_negatives(logits: Tensor, competing: Tensor, positives: Tensor, extra: Tensor | None) -> Tensor:
    """-log-probability [N, N] of each entry of logits among itself and the negatives of its row, whose logits compete."""
    negatives = without(competing, positives)
    if extra is not None:
        negatives = torch.cat([negatives, extra], dim=1)
    return functional.softplus(negatives.logsumexp(dim=1, keepdim=True) - logits)
