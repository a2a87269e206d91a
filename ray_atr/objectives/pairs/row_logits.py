"""The logits of a comparison whose rows several workers share: each holds some of them, and none has an [N, N].

Every worker has all embeddings, as after any gather, and ends with the sample losses and the gradients that it would have with
the whole matrix. A row's log-sum-exp needs no exchange; a column's is one over workers, of N numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ray_atr.objectives.pairs.pair_loss import Comparison
from ray_atr.transport import Ranks

ROWS_AT_A_TIME = 256


def is_shared(comparison: Comparison, shared_from: int) -> bool:
    """Whether workers share the rows of a comparison; not if it holds a matrix [N, N] of its own anyway.

    One worker alone takes the same way: the result does not depend on how many there are.
    """
    has_matrix = comparison.similarity is not None or comparison.gain is not None
    return 0 < shared_from <= comparison.size and Ranks.sharing().size <= comparison.size and not has_matrix


@dataclass(frozen=True, eq=False)
class RowLogits:
    """This worker's rows of u v^T / tau.

    values     [n, N].
    of_pairs   [n]: those of the own true pairs.
    positives  [n, N]: the comparison's, or None.
    """

    values: Tensor
    of_pairs: Tensor
    positives: Tensor | None
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
        return cls(u @ v.T, of_pairs, None if comparison.positives is None else comparison.positives[own], ranks)

    @property
    def own(self) -> slice:
        """Which rows they are of all."""
        return self.ranks.own(self.values.shape[1])

    def whole(self, own: Tensor) -> Tensor:
        """What each worker has of its own rows, [n], put together: [N]."""
        N, rows = self.values.shape[1], self.own
        return self.ranks.total(torch.cat([own.new_zeros(rows.start), own, own.new_zeros(N - rows.stop)]))

    def log_sum_exps(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """log of the sum of exp(values [n, N]) over each own row, [n], and over each column of all workers' rows, [N]."""
        rows, part = _LogSumExps.apply(values)
        columns = self.ranks.log_sum_exp(part)
        # The logarithm of a sum that is 1: it carries the gradient.
        return rows, self.ranks.replicated(columns + self.ranks.total((part - columns).exp()).log())


class _LogSumExps(torch.autograd.Function):
    """Over rows and over columns, with one gradient [n, N] for both where torch's own would need four at a time."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> tuple[Tensor, Tensor]:
        rows, columns = values.logsumexp(dim=1), values.logsumexp(dim=0)
        ctx.save_for_backward(values, rows, columns)
        return rows, columns

    @staticmethod
    def backward(ctx: Any, of_rows: Tensor, of_columns: Tensor) -> Tensor:  # type: ignore[override]
        values, rows, columns = ctx.saved_tensors
        gradient = torch.empty_like(values)
        for start in range(0, len(values), ROWS_AT_A_TIME):
            block = slice(start, start + ROWS_AT_A_TIME)
            part = torch.sub(values[block], rows[block, None], out=gradient[block]).exp_().mul_(of_rows[block, None])
            part.add_((values[block] - columns).exp_().mul_(of_columns))
        return gradient
