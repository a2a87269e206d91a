"""NT-Xent: half of each direction's cross-entropy over similarities (Luong et al. 2024, Eq. 1; ATRI Eq. 13; ASK Eq. 1).

    l_i = -log( exp(s_ii / tau) / (exp(s_ii / tau) + sum over negatives j of exp(s_ij / tau)) )

With several positives, l_i is the mean over them, and none of them is in another's denominator. With soft targets t, l_i is
sum_j t_ij l_ij, the cross-entropy of t_i and the row's softmax; the own partner's share is spread over the positives.

With beliefs y, l_i is multiplied by y_i; positive j counts by y_j in the mean, and negative j by y_j in the sum: a pair that is
not believed is neither, as in learning to match. This is ours; released methods multiply l_i alone, where with several clips
of one caption a wrong pair is pulled by the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from ray_atr.common.settings import setting
from ray_atr.objectives.learned import Learned, LearnedSettings
from ray_atr.objectives.pairs.pair_loss import Comparison, Direction, PairLoss, Terms, log_weight
from ray_atr.objectives.transport import Ranks

ROWS_AT_A_TIME = 256


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
        row_losses, column_losses = self.both_losses(comparison, learned.tau(self.temperature))
        scalars = {"loss_rows": row_losses.detach().mean(), "loss_columns": column_losses.detach().mean()}
        return Terms(comparison.both_directions(row_losses, column_losses), scalars)

    def is_shared(self, comparison: Comparison) -> bool:
        """Whether the workers share the similarities."""
        needs_all = comparison.targets is not None or comparison.has_extra_negatives
        return comparison.is_shared(self.shared_from) and not needs_all

    def both_losses(self, comparison: Comparison, tau: float | Tensor) -> tuple[Tensor, Tensor]:
        """The losses [N] of every u_i and of every v_j."""
        if self.is_shared(comparison):
            return shared_losses(RowLogits.of(comparison, tau))
        rows, columns = comparison.directions()
        for_rows, for_columns = comparison.extra_logits(tau)
        return sample_losses(rows, tau, for_rows), sample_losses(columns, tau, for_columns)


def sample_losses(direction: Direction, tau: float | Tensor, extra: Tensor | None = None) -> Tensor:
    """-log-probability [N] of each row's positives among it and the row's negatives; the mean if there are several.

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
    own = targets.diagonal()
    shares = targets + own[:, None] * direction.positive_shares()
    shares.diagonal().sub_(own)
    return (shares * losses).sum(dim=1)


def against_negatives(logits: Tensor, competing: Tensor, positives: Tensor, extra: Tensor | None) -> Tensor:
    """-log-probability [N, N] of each entry of logits among itself and the negatives of its row, whose logits compete."""
    negatives = without(competing, positives)
    if extra is not None:
        negatives = torch.cat([negatives, extra], dim=1)
    return functional.softplus(negatives.logsumexp(dim=1, keepdim=True) - logits)


def without(logits: Tensor, positives: Tensor) -> Tensor:
    """The logits of the negatives; positives are a finite "minus infinity", so that a row without negatives has no NaN."""
    return logits.masked_fill(positives, torch.finfo(logits.dtype).min / 4)


@dataclass(frozen=True, eq=False)
class RowLogits:
    """This worker's rows of u v^T / tau, where several share the rows of a comparison and none has an [N, N].

    Every worker has all embeddings, as after any gather, and ends with the sample losses and the gradients that it
    would have with the whole matrix. A row's log-sum-exp needs no exchange; a column's is one over workers, of N
    numbers.

    values and positives (None: the own pairs) are [n, N]; of_pairs [n] are the values of the own true pairs; belief [N] is
    of all pairs, None for ones.
    """

    values: Tensor
    of_pairs: Tensor
    positives: Tensor | None
    belief: Tensor | None
    ranks: Ranks

    @classmethod
    def of(cls, comparison: Comparison, temperature: float | Tensor) -> RowLogits:
        """The share of the process that asks."""
        ranks = Ranks.sharing()
        own = ranks.own(comparison.size)
        tau = ranks.replicated(temperature) if isinstance(temperature, Tensor) else temperature
        u, v = ranks.replicated(comparison.u)[own] / tau, ranks.replicated(comparison.v)
        # The diagonal of the values would bring a gradient [n, N] of its own, all but a diagonal 0.
        of_pairs = (u * v[own]).sum(dim=1)
        positives = None if comparison.positives is None else comparison.positives[own]
        return cls(u @ v.T, of_pairs, positives, comparison.belief, ranks)

    @property
    def own(self) -> slice:
        """Which rows they are of all."""
        return self.ranks.own(self.values.shape[1])

    def whole(self, own: Tensor) -> Tensor:
        """What each worker has of its own rows, [n], put together: [N]."""
        N, rows = self.values.shape[1], self.own
        return self.ranks.total(torch.cat([own.new_zeros(rows.start), own, own.new_zeros(N - rows.stop)]))

    def competing(self, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(values with the logarithms of the weights of both their pairs, those of the own rows [n], those of all [N]).

        A row's sum is then too large by its own weight, and a column's by its own: one matrix serves both.
        """
        if self.belief is None:
            none = values.new_zeros(values.shape[1])
            return values, none[self.own], none
        weight = log_weight(self.belief.to(values))
        own = weight[self.own]
        both = own[:, None] + weight
        both[:, self.own].diagonal().sub_(own)
        return values + both, own, weight

    def log_sum_exps(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """log of the sum of exp(values [n, N]) over each own row, [n], and over each column of all workers' rows, [N].

        Another pair counts by its weight, the own pair fully.
        """
        values, own, weight = self.competing(values)
        rows, part = _LogSumExps.apply(values)
        columns = self.ranks.log_sum_exp(part)
        # The logarithm of a sum that is 1: it carries the gradient.
        columns = self.ranks.replicated(columns + self.ranks.total((part - columns).exp()).log())
        return rows - own, columns - weight


def shared_losses(logits: RowLogits) -> tuple[Tensor, Tensor]:
    """The losses [N] of every u_i and of every v_j, from one worker's rows of the logits; the same on every worker."""
    values, positives, total = logits.values, logits.positives, logits.ranks.total
    if positives is None:
        rows, columns = logits.log_sum_exps(values)
        return logits.whole(rows - logits.of_pairs), logits.whole(columns[logits.own] - logits.of_pairs)
    rows, columns = logits.log_sum_exps(without(values, positives))
    of_rows = functional.softplus(rows[:, None] - values) * positives
    of_columns = functional.softplus(columns - values) * positives
    if logits.belief is None:
        counts = total(positives.sum(dim=0))
        return logits.whole(of_rows.sum(dim=1) / positives.sum(dim=1)), total(of_columns.sum(dim=0)) / counts
    belief = logits.belief.to(values)
    own, least = belief[logits.own], torch.finfo(values.dtype).tiny
    of_row = (positives * belief).sum(dim=1).clamp(min=least)
    of_column = total((positives * own[:, None]).sum(dim=0)).clamp(min=least)
    return logits.whole(of_rows @ belief / of_row), total(own @ of_columns) / of_column


class _LogSumExps(torch.autograd.Function):
    """Over rows and over columns, with one gradient [n, N] for both where torch's own would need four at a time."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> tuple[Tensor, Tensor]:
        rows, columns = values.logsumexp(dim=1), values.logsumexp(dim=0)
        ctx.save_for_backward(values, rows, columns)
        return rows, columns

    @staticmethod
    def backward(ctx: Any, of_rows: Tensor, of_columns: Tensor) -> Tensor:
        values, rows, columns = ctx.saved_tensors
        gradient = torch.empty_like(values)
        for start in range(0, len(values), ROWS_AT_A_TIME):
            block = slice(start, start + ROWS_AT_A_TIME)
            part = torch.sub(values[block], rows[block, None], out=gradient[block]).exp_().mul_(of_rows[block, None])
            part.add_((values[block] - columns).exp_().mul_(of_columns))
        return gradient
