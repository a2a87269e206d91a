"""Every pair judged on its own: sigmoid loss (Zhai et al. 2023, "Sigmoid loss for language image pre-training", Eq. 1).

loss = -1/N sum_ij log sigmoid(z_ij (s_ij / tau + b)),   z_ij = 1 for positives, -1 for negatives
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.nn import functional

from ray_atr.objectives.pairs.base import Comparison, PairLoss
from ray_atr.objectives.pairs.contrastive import extra_logits
from ray_atr.objectives.terms import Terms
from ray_atr.settings import setting


@dataclass(frozen=True, kw_only=True)
class Sigmoid(PairLoss):
    """Binary cross-entropy of every pair of the batch."""

    name: ClassVar[str] = "sigmoid"
    takes_extra_negatives: ClassVar[bool] = True

    temperature: float = setting(0.1, "divides the similarities (tau); a learned one takes its place", above=0)
    bias: float = setting(-10.0, "added to every logit (b): most pairs are negatives")

    def score(self, comparison: Comparison, metric: Tensor | None, temperature: Tensor | None) -> Terms:
        """Summed over a row's (a column's) pairs, mean over samples; with unit weights both directions are equal."""
        tau = self.temperature if temperature is None else temperature
        logits = comparison.cross_similarity() / tau + self.bias
        pairwise = functional.softplus(logits.where(~comparison.positive_mask(), -logits))
        row_losses, column_losses = pairwise.sum(dim=1), pairwise.sum(dim=0)
        for_rows = extra_logits(comparison.u, comparison.extra_v, tau)
        for_columns = extra_logits(comparison.v, comparison.extra_u, tau)
        if for_rows is not None:
            row_losses = row_losses + functional.softplus(for_rows + self.bias).sum(dim=1)
        if for_columns is not None:
            column_losses = column_losses + functional.softplus(for_columns + self.bias).sum(dim=1)
        own = pairwise.detach().diagonal().mean()
        return Terms(comparison.both_directions(row_losses, column_losses), {"loss_of_true_pairs": own})
