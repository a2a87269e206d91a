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
from ray_atr.objectives.pairs.row_logits import RowLogits, is_shared
from ray_atr.objectives.terms import Terms
from ray_atr.settings import setting


@dataclass(frozen=True, kw_only=True)
class Contrastive(PairLoss):
    """Cross-entropy of each sample's true partner among the batch, both directions."""

    name: ClassVar[str] = "contrastive"
    takes_extra_negatives: ClassVar[bool] = True

    temperature: float = setting(0.07, "divides the similarities (tau); a learned one takes its place", above=0)
    shared_from: int = setting(
        1024,
        "pairs in a comparison from which a trial's workers share its similarities, each with its own rows of them: the same "
        "loss in the time and memory of one share; 0: never",
        at_least=0,
    )

    def learns(self) -> LearnedSettings:
        """Nothing by itself; a temperature that the model is told to learn starts from this one."""
        return LearnedSettings(temperature=self.temperature)

    def score(self, comparison: Comparison, learned: Learned) -> Terms:
        """Half of each direction, mean over samples."""
        row_losses, column_losses = self.both_losses(comparison, learned.tau(self.temperature))
        scalars = {"loss_rows": row_losses.detach().mean(), "loss_columns": column_losses.detach().mean()}
        return Terms(comparison.both_directions(row_losses, column_losses), scalars)

    def is_shared(self, comparison: Comparison) -> bool:
        """Whether the workers share the similarities."""
        needs_all = comparison.targets is not None or comparison.has_extra_negatives
        return is_shared(comparison, self.shared_from) and not needs_all

    def both_losses(self, comparison: Comparison, tau: float | Tensor) -> tuple[Tensor, Tensor]:
        """The losses [N] of every u_i and of every v_j."""
        if self.is_shared(comparison):
            return shared_losses(RowLogits.of(comparison, tau))
        logits, positives = comparison.cross_similarity() / tau, comparison.positives
        for_rows = extra_logits(comparison.u, comparison.extra_v, tau)
        for_columns = extra_logits(comparison.v, comparison.extra_u, tau)
        row_losses = sample_losses(logits, positives, for_rows, comparison.targets)
        column_losses = sample_losses(
            logits.T, None if positives is None else positives.T, for_columns, comparison.column_targets()
        )
        return row_losses, column_losses


def shared_losses(logits: RowLogits) -> tuple[Tensor, Tensor]:
    """The losses [N] of every u_i and of every v_j, from one worker's rows of the logits; the same on every worker."""
    values, positives = logits.values, logits.positives
    if positives is None:
        rows, columns = logits.log_sum_exps(values)
        return logits.whole(rows - logits.of_pairs), logits.whole(columns[logits.own] - logits.of_pairs)
    rows, columns = logits.log_sum_exps(without(values, positives))
    of_rows = functional.softplus(rows[:, None] - values) * positives
    of_columns = functional.softplus(columns - values) * positives
    total = logits.ranks.total
    counts = total(positives.sum(dim=0))
    return logits.whole(of_rows.sum(dim=1) / positives.sum(dim=1)), total(of_columns.sum(dim=0)) / counts


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
    negatives = without(logits, positives)
    if extra is not None:
        negatives = torch.cat([negatives, extra], dim=dim)
    return functional.softplus(negatives.logsumexp(dim, keepdim=True) - logits)


def without(logits: Tensor, positives: Tensor) -> Tensor:
    """The logits of the negatives; positives are a finite "minus infinity", so that a row without negatives has no NaN."""
    return logits.masked_fill(positives, torch.finfo(logits.dtype).min / 4)


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
