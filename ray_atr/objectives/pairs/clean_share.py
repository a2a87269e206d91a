"""How many of a batch's pairs are true, judged from the similarities alone: the `auto` transport mass.

A wrong caption is, to its clip, like any other caption: the rank of the own similarity among the negatives is then uniform.
A true caption ranks high. So the share of wrong pairs is read off the low half of the ranks, which true pairs hardly reach,
as the share of true null hypotheses is read off large p-values (Storey 2002, "A direct approach to false discovery
rates", with lambda = 1/2). No threshold is tuned and nothing but the batch is looked at.
"""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def clean_share(similarity: Tensor, positives: Tensor) -> float:
    """Estimated share of true pairs in [0, 1] from a similarity [N, N] and the mask of what are no negatives [N, N].

    The mean of the estimates over rows and over columns. An untrained model's ranks are uniform: its estimate is near 0.
    """
    wrong = (_wrong_share(similarity, positives) + _wrong_share(similarity.T, positives.T)) / 2
    return float((1 - wrong).clamp(0, 1))


def _wrong_share(similarity: Tensor, positives: Tensor) -> Tensor:
    own = similarity.diagonal()[:, None]
    above = ((similarity > own) & ~positives).sum(dim=1)
    level = ((similarity == own) & ~positives).sum(dim=1)
    negatives = (~positives).sum(dim=1).clamp(min=1)
    p_values = (above + 0.5 * level + 0.5) / (negatives + 1)
    return 2 * (p_values > 0.5).to(similarity.dtype).mean()
