"""How many of a batch's pairs are true, judged from the similarities alone, and how much mass to transport by it.

A wrong caption is, to its clip, like any other caption: the rank of the own similarity among the negatives is then uniform.
A true caption ranks high. So the share of wrong pairs is read off the low half of the ranks, which true pairs hardly reach,
as the share of true null hypotheses is read off large p-values (Storey 2002, "A direct approach to false discovery
rates", with lambda = 1/2). Nothing but the batch is looked at.

A model that has learnt little ranks true pairs low too, and the estimate is then too small: near 0 for an untrained one,
which with so little mass would hardly learn. How far to trust it shows in where the true pairs rank: in the first
twentieth, if the model tells pairs apart, or all over the upper half. With e the estimate and f the share of the true pairs
(as estimated) that rank in the first twentieth, the transported mass is 1 - f (1 - e): all of it where nothing can be told.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ray_atr.settings import refuse
from ray_atr.transport.scalings import is_small

FIRST = 0.05
LEAST_SHARE = 0.1


class Judged(NamedTuple):
    """The estimated share of true pairs, and the share of these that the model ranks in the first twentieth; in [0, 1]."""

    clean_share: float
    found_share: float

    @property
    def mass(self) -> float:
        """1 - f (1 - e): the mass to transport."""
        return 1 - self.found_share * (1 - self.clean_share)


def require_mass(transport_mass: float | str) -> None:
    """ValueError unless a setting `transport_mass` is a share or `auto`; shares outside (0, 1] its own bounds refuse."""
    if isinstance(transport_mass, str) and transport_mass != "auto":
        raise refuse("transport_mass", transport_mass, "(0, 1] or auto")


@torch.no_grad()
def judge_pairs(similarity: Tensor, positives: Tensor | None) -> Judged:
    """What a similarity [N, N] says of its diagonal's pairs; positives [N, N] bool (None: the diagonal) are no negatives.

    Ranks of rows and columns are taken together.
    """
    values: Any = similarity.detach()
    negatives: Any = None if positives is None else ~positives
    if is_small(similarity):
        values, negatives = values.numpy(), None if negatives is None else negatives.numpy()
    both = _p_values(values, negatives), _p_values(values.T, None if negatives is None else negatives.T)
    in_low_half = sum(float((p_values > 0.5).sum()) for p_values in both) / (2 * len(similarity))
    in_first = sum(float((p_values <= FIRST).sum()) for p_values in both) / (2 * len(similarity))
    wrong = 2 * min(in_low_half, 0.5)
    clean = 1 - wrong
    found = (in_first - FIRST * wrong) / max(clean, LEAST_SHARE)
    return Judged(clean, min(max(found, 0.0), 1.0))


def _p_values(similarity: Any, negatives: Any) -> Any:
    """[N]: the place of each row's own similarity among its negatives, 0 the highest, 1 the lowest; ties count half.

    Tensors, or arrays of NumPy.
    """
    gap = similarity - similarity.diagonal()[:, None]
    # 1 for what is above the own similarity, 0 for what is level with it, -1 for what is below.
    order = np.sign(gap, out=gap) if isinstance(gap, np.ndarray) else gap.sign_()
    count: Any = len(similarity) - 1
    if negatives is not None:
        count = negatives.sum(1)
        order *= negatives
    # Those above, and half of those that are level.
    above = 0.5 * (count + order.sum(1))
    return (above + 0.5) / ((max(count, 1) if negatives is None else count.clip(min=1)) + 1)
