"""NNCLR (Dwibedi et al. 2021): an anchor is replaced by its nearest neighbour in a support set of earlier embeddings.

    l_i = -log( exp(<nn(u_i), v_i>/tau) / sum over j of exp(<nn(u_i), v_j>/tau) ),  nn(u) = argmax over the support of <u, q>

The neighbour has no gradient, so each direction trains the side that is not replaced. If the neighbour is of another
clip j of the batch, or of a positive of j, v_j is a positive too; this is ours. Both directions, half of each. Left out: the
head that predicts v_i, and the random vectors that a support set begins with.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import torch

from ray_atr.common.settings import setting
from ray_atr.objectives.knowledge.ask import inject
from ray_atr.objectives.knowledge.knowledge import Knowledge, Retrieved, Sides
from ray_atr.objectives.pairs.learned import Learned
from ray_atr.objectives.pairs.pair_loss import Comparison, PairLoss, Terms


@dataclass(frozen=True, kw_only=True)
class Nnclr(Knowledge):
    """A support set of recent embeddings, the baseline of ASK's Appendix E; over any pair loss with sample weights.

    When: related clips are rarely in one batch, and no base of the whole set is wanted.
    Related: `Ask` retrieves from a base of the whole training set.

    >>> from ray_atr.objectives import preset
    >>> preset("nnclr", support_size=1024).knowledge.support_size
    1024
    """

    name: ClassVar[str] = "nnclr"
    needs_retrieval: ClassVar[bool] = True
    support_size: int = setting(4096, "embeddings that the support set holds", at_least=1)

    def score(self, comparison: Comparison, pair: PairLoss, retrieved: Retrieved, learned: Learned) -> Terms:
        """Each direction's loss with its anchors replaced; the pair loss itself while the support set is empty."""
        if retrieved.fine is None:
            return pair(comparison, learned)
        sides = Sides.from_comparison(comparison, retrieved.fine)
        near_u = inject(comparison.u, sides.u.own, sides.u.valid, 1.0)
        near_v = inject(comparison.v, sides.v.own, sides.v.valid, 1.0)
        ones = torch.ones_like(comparison.u[:, 0])
        positives, rows = comparison.positive_mask(), comparison.rows
        of_u, of_v = (positives | side.like_batch(rows) for side in (sides.u, sides.v))
        by_rows = dataclasses.replace(comparison, u=near_u, positives=of_u, row_weight=ones, column_weight=0 * ones)
        by_columns = dataclasses.replace(
            comparison, v=near_v, positives=of_v.T, row_weight=0 * ones, column_weight=ones
        )
        terms = [pair(compared, learned) for compared in (by_rows, by_columns)]
        moved = ((near_u * comparison.u).sum(dim=1).mean() + (near_v * comparison.v).sum(dim=1).mean()) / 2
        return Terms(terms[0].loss + terms[1].loss, {"neighbour_similarity": moved.detach()})
