"""The contrastive losses where several workers share the rows of a comparison, and none of them has an [N, N].

The values and gradients are those of `contrastive.sample_losses` on the whole matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ray_atr.objectives.pairs.pair_loss import Comparison, log_weight, without
from ray_atr.objectives.ranks import Ranks

ROWS_AT_A_TIME = 256


@dataclass(frozen=True, eq=False)
class RowLogits:
    """This worker's rows of u v^T / tau, where several share the rows of a comparison and none has an [N, N].

    Every worker has all embeddings, as after any gather, and ends with the sample losses and the gradients that it
    would have with the whole matrix. A row's log-sum-exp needs no exchange; a column's is one over workers, of N
    numbers.

    values and positives (None: the own pairs) are [n, N]; of_pairs [n] are the values of the own true pairs; sample_weight [N] is
    of all pairs, None for ones.
    """

    values: Tensor
    of_pairs: Tensor
    positives: Tensor | None
    sample_weight: Tensor | None
    ranks: Ranks

    @classmethod
    def from_comparison(cls, comparison: Comparison, temperature: float | Tensor) -> RowLogits:
        """The share of the process that asks."""
        ranks = Ranks.sharing()
        own = ranks.own(comparison.size)
        tau = ranks.replicated(temperature) if isinstance(temperature, Tensor) else temperature
        u, v = ranks.replicated(comparison.u)[own] / tau, ranks.replicated(comparison.v)
        # The diagonal of the values would bring a gradient [n, N] of its own, all but a diagonal 0.
        of_pairs = (u * v[own]).sum(dim=1)
        positives = comparison.positive_rows(own)
        return cls(u @ v.T, of_pairs, positives, comparison.sample_weight, ranks)

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
        if self.sample_weight is None:
            none = values.new_zeros(values.shape[1])
            return values, none[self.own], none
        weight = log_weight(self.sample_weight.to(values))
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
    if logits.sample_weight is None:
        counts = total(positives.sum(dim=0))
        return logits.whole(of_rows.sum(dim=1) / positives.sum(dim=1)), total(of_columns.sum(dim=0)) / counts
    sample_weight = logits.sample_weight.to(values)
    own, least = sample_weight[logits.own], torch.finfo(values.dtype).tiny
    of_row = (positives * sample_weight).sum(dim=1).clamp(min=least)
    of_column = total((positives * own[:, None]).sum(dim=0)).clamp(min=least)
    return logits.whole(of_rows @ sample_weight / of_row), total(own @ of_columns) / of_column


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
