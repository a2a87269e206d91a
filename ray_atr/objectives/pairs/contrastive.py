"""NT-Xent: half of each direction's cross-entropy over similarities (Luong et al. 2024, Eq. 1; ATRI Eq. 13; ASK Eq. 1).

    l_i = -log( exp(s_ii / tau) / (exp(s_ii / tau) + sum over negatives j of exp(s_ij / tau)) )

With several positives, l_i is the mean over them, and none of them is in another's denominator. With soft targets t, l_i is
sum_j t_ij l_ij, the cross-entropy of t_i and the row's softmax; the own partner's share is spread over the positives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from ray_atr.objectives.learned import Learned, LearnedSettings
from ray_atr.objectives.pairs.pair_loss import Comparison, PairLoss
from ray_atr.objectives.terms import Terms
from ray_atr.settings import setting


@dataclass(frozen=True, kw_only=True)
class Contrastive(PairLoss):
    """Cross-entropy of each sample's true partner among the batch, both directions."""

    name: ClassVar[str] = "contrastive"
    takes_extra_negatives: ClassVar[bool] = True

    temperature: float = setting(0.07, "divides the similarities (tau); a learned one takes its place", above=0)

    def learns(self) -> LearnedSettings:
        """Nothing by itself; a temperature that the model is told to learn starts from this one."""
        return LearnedSettings(temperature=self.temperature)

    def score(self, comparison: Comparison, learned: Learned) -> Terms:
        """Half of each direction, mean over samples."""
        tau = self.temperature if learned.temperature is None else learned.temperature
        logits = comparison.cross_similarity() / tau
        positives = comparison.positives
        for_rows = extra_logits(comparison.u, comparison.extra_v, tau)
        for_columns = extra_logits(comparison.v, comparison.extra_u, tau)
        row_losses = sample_losses(logits, positives, for_rows, comparison.targets)
        column_losses = sample_losses(
            logits.T, None if positives is None else positives.T, for_columns, comparison.column_targets()
        )
        loss = comparison.both_directions(row_losses, column_losses)
        return Terms(
            loss,
            {"loss_rows": row_losses.detach().mean(), "loss_columns": column_losses.detach().mean()},
        )


def extra_logits(anchors: Tensor, extra: Tensor | None, tau: float | Tensor) -> Tensor | None:
    """Logits [N, Q] of anchors [N, D] against further negatives, shared [Q, D] or each row's own [N, Q, D]."""
    if extra is None:
        return None
    similarity = anchors @ extra.T if extra.ndim == 2 else torch.einsum("nd,nqd->nq", anchors, extra)
    return similarity / tau


def sample_losses(
    logits: Tensor, positives: Tensor | None, extra: Tensor | None, targets: Tensor | None = None
) -> Tensor:
    """-log-probability [N] of each row's positives among it and the row's negatives; the mean if there are several.

    With targets [N, N], their mean under them: a target that is no positive competes with the whole row.
    """
    if targets is not None:
        return soft_losses(logits, positives, extra, targets)
    if positives is None:
        every = logits if extra is None else torch.cat([logits, extra], dim=1)
        return functional.cross_entropy(every, torch.arange(len(logits), device=logits.device), reduction="none")
    return (against_negatives(logits, positives, extra) * positives).sum(dim=1) / positives.sum(dim=1)


def against_negatives(logits: Tensor, positives: Tensor, extra: Tensor | None = None, dim: int = 1) -> Tensor:
    """-log-probability [N, N] of each entry among itself and the negatives of its row (dim 1) or column (dim 0)."""
    # A finite "minus infinity": a row without negatives has loss 0 and gradient 0, not NaN.
    negatives = logits.masked_fill(positives, torch.finfo(logits.dtype).min / 4)
    if extra is not None:
        negatives = torch.cat([negatives, extra], dim=dim)
    return functional.softplus(negatives.logsumexp(dim, keepdim=True) - logits)


def soft_losses(logits: Tensor, positives: Tensor | None, extra: Tensor | None, targets: Tensor) -> Tensor:
    """sum_j t_ij l_ij of each row, [N]."""
    every = logits if extra is None else torch.cat([logits, extra], dim=1)
    losses = -every.log_softmax(dim=1)[:, : len(logits)]
    if positives is None:
        return (targets * losses).sum(dim=1)
    losses = torch.where(positives, against_negatives(logits, positives, extra), losses)
    own = targets.diagonal()
    shares = targets + positives * (own / positives.sum(dim=1))[:, None]
    shares.diagonal().sub_(own)
    return (shares * losses).sum(dim=1)
