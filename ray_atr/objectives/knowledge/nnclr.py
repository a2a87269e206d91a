"""NNCLR (Dwibedi et al. 2021): an anchor is replaced by its nearest neighbour in a support set of earlier embeddings.

    l_i = -log( exp(<nn(u_i), v_i>/tau) / sum over j of exp(<nn(u_i), v_j>/tau) ),  nn(u) = argmax over the support of <u, q>

The neighbour has no gradient, so each direction trains the side that is not replaced. Both directions, half of each.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ray_atr.objectives.knowledge.ask import Sides
from ray_atr.objectives.knowledge.base import Knowledge
from ray_atr.objectives.knowledge.injection import inject
from ray_atr.objectives.knowledge.retrieved import Retrieved
from ray_atr.objectives.pairs.base import Comparison, PairLoss
from ray_atr.objectives.terms import Terms
from ray_atr.settings import setting


@dataclass(frozen=True, kw_only=True)
class Nnclr(Knowledge):
    """A support set of recent embeddings, the baseline of ASK's Appendix E; over any pair loss with sample weights."""

    name: ClassVar[str] = "nnclr"
    needs_retrieval: ClassVar[bool] = True
    memory: ClassVar[str] = "support"

    support_size: int = setting(4096, "embeddings that the support set holds", at_least=1)
    neighbours: ClassVar[int] = 1
    fine: ClassVar[bool] = True
    coarse: ClassVar[bool] = False
    # The support set is filled after the search, so what carries a clip's id there is an earlier view of it: allowed.
    exclude_own: ClassVar[bool] = False

    def score(
        self,
        comparison: Comparison,
        pair: PairLoss,
        retrieved: Retrieved,
        *,
        metric: Tensor | None = None,
        temperature: Tensor | None = None,
    ) -> Terms:
        """Each direction's loss with its anchors replaced; the pair loss itself while the support set is empty."""
        if retrieved.fine is None:
            return pair(comparison, metric=metric, temperature=temperature)
        sides = Sides.of(comparison, retrieved.fine)
        near_u = inject(comparison.u, sides.u.component(sides.u_is_audio), sides.u.valid, 1.0)
        near_v = inject(comparison.v, sides.v.component(sides.v_is_audio), sides.v.valid, 1.0)
        ones = torch.ones_like(comparison.u[:, 0])
        rows = dataclasses.replace(comparison, u=near_u, row_weight=ones, column_weight=0 * ones)
        columns = dataclasses.replace(comparison, v=near_v, row_weight=0 * ones, column_weight=ones)
        terms = [pair(one, metric=metric, temperature=temperature) for one in (rows, columns)]
        moved = ((near_u * comparison.u).sum(dim=1).mean() + (near_v * comparison.v).sum(dim=1).mean()) / 2
        return Terms(terms[0].loss + terms[1].loss, {"neighbour_similarity": moved.detach()})
