"""The matching that learning to match aims at, and what it looks like with positives and soft partners."""

from __future__ import annotations

import torch
from torch import Tensor

from ray_atr.objectives.pairs.pair_loss import Comparison


def true_matching(comparison: Comparison, marginal: Tensor | None, rows: slice = slice(None)) -> Tensor:
    """pi_hat [N, N], or some of its rows: each row's mass a_i (1/N unless a marginal [N] is given) spread over its partners.

    The own partner's share is spread over the row's positives in proportion to their a_j, which keeps both marginals.
    """
    N = comparison.size
    a = comparison.u.new_full((N,), 1 / N) if marginal is None else marginal
    positives = comparison.positive_mask()[rows] * a
    shares = positives / positives.sum(dim=1, keepdim=True).clamp(min=torch.finfo(a.dtype).tiny)
    if comparison.targets is not None:
        own = comparison.targets.diagonal()
        shares = comparison.targets[rows] - torch.diag(own)[rows] + own[rows, None] * shares
    return a[rows, None] * shares
