"""Regression onto the other side's vectors (Pasi 2026, "Multilingual-to-multimodal (M2M)", arXiv 2601.10096, as released).

    loss = c/D mean over i of |u_i - v_i|^2 + mean over i, j of (u_i . u_j - v_i . v_j)^2

The first term is the released mean squared error over all numbers of unit vectors, c = 44; the second, which the code calls a
KL divergence, makes the similarities within one side equal to those within the other. The paper trains a text projection to
the English text vectors of an existing space. Nothing is pushed apart, so positives change nothing.

|u_i - v_j|^2 is 2 - 2 s_ij; with soft targets t, the first term of i is the mean over them, and (i, j) counts by t_ii t_jj in
the second. With sample weights y, the terms of i are multiplied by y_i, and j counts by y_j in the second; both are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ray_atr.common.settings import setting
from ray_atr.objectives.pairs.learned import Learned
from ray_atr.objectives.pairs.pair_loss import Comparison, Direction, PairLoss, Terms


@dataclass(frozen=True, kw_only=True)
class M2M(PairLoss):
    """Squared distance between a pair's vectors, and between the similarities on each side.

    When: one side's vectors are given and are to be matched, as in a language pack.
    Related: `Contrastive` asks for the order of similarities alone.

    >>> import torch
    >>> from ray_atr.objectives.pairs import Comparison, M2M
    >>> u, v = torch.eye(4), torch.eye(4)  # four true pairs [N, D], each unlike the others
    >>> loss = M2M()
    >>> bool(loss(Comparison(u, v)).loss < loss(Comparison(u, v.roll(1, dims=0))).loss)
    True
    """

    name: ClassVar[str] = "m2m"
    distance_weight: float = setting(44.0, "multiplies the mean squared error of the vectors (c)", above=0)

    def score(self, comparison: Comparison, learned: Learned) -> Terms:
        scale = self.distance_weight / comparison.u.shape[1]
        of_rows, of_columns = (scale * _squared_distances(direction) for direction in comparison.directions())
        structure = _structure_losses(comparison)
        loss = comparison.both_directions(of_rows + structure, of_columns + structure)
        scalars = {"loss_distance": of_rows.detach().mean(), "loss_structure": structure.detach().mean()}
        return Terms(loss, scalars)


def _squared_distances(direction: Direction) -> Tensor:
    """|u_i - v_i|^2 of each anchor and its partner, [N]; the mean under the targets if there are any."""
    distances = 2 - 2 * direction.similarity
    return distances.diagonal() if direction.targets is None else (direction.targets * distances).sum(dim=1)


def _structure_losses(comparison: Comparison) -> Tensor:
    """Mean over j of (u_i . u_j - v_i . v_j)^2, [N], weighted by sample weights y_j and by t_ii t_jj."""
    u, v, sample_weight, targets = comparison.u, comparison.v, comparison.sample_weight, comparison.targets
    squares = (u @ u.T - v @ v.T).square()
    if targets is not None:
        squares = targets.diagonal()[:, None] * squares * targets.diagonal()
    if sample_weight is None:
        return squares.mean(dim=1)
    weights = sample_weight.to(u)
    return squares @ weights / weights.sum().clamp(min=torch.finfo(u.dtype).tiny)
