"""ANCE (Xiong et al. 2021): hard negatives from an index of the whole source, encoded a while ago.

    l_i = -log( exp(<u_i, v_i>/tau) / (exp(<u_i, v_i>/tau) + sum over mined n of exp(<u_i, n>/tau)) )

The n are drawn from what u_i itself retrieves across modalities, without entries of its own clip and of its positives.
Both directions, half of each. The authors encode the drawn negatives again; here they are the index's vectors. Their loss is
that of one negative at a time, without a temperature: with `negatives` 1 and a temperature of 1 it is ours. With soft targets,
l_i is the mean under them over the partners v_j.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ray_atr.common.settings import refuse, setting
from ray_atr.objectives.knowledge.knowledge import (
    Excluded,
    KnowledgeBaseObjective,
    Retrieved,
    SearchSpec,
    Sides,
    info_nce,
    require_contrastive,
)
from ray_atr.objectives.pairs.learned import Learned
from ray_atr.objectives.pairs.pair_loss import Comparison, PairLoss, Terms


@dataclass(frozen=True, kw_only=True)
class Ance(KnowledgeBaseObjective):
    """Hard negatives from a stale index, the baseline of ASK's Appendix E.

    When: the batch's negatives are too easy. Near duplicates in the set become false negatives.
    Related: `Moco` has negatives of recent batches, without a search.

    >>> from ray_atr.objectives import preset
    >>> preset("ance", negatives=4).knowledge.negatives
    4
    """

    name: ClassVar[str] = "ance"
    negatives: int = setting(8, "hard negatives per query", at_least=1)
    pool: int = setting(200, "nearest entries that the negatives are drawn from", at_least=1)
    in_batch: bool = setting(False, "compare with the batch's other clips as well")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pool < self.negatives:
            raise refuse("pool", self.pool, f"at least negatives = {self.negatives}")
        if self.text_entries != "english":
            raise refuse("text_entries", self.text_entries, "english for ance")

    @property
    def search_spec(self) -> SearchSpec:
        """The nearest clips of the other modality, from which the negatives are drawn."""
        excluded: Excluded = "positives" if self.exclude_own else "nothing"
        return SearchSpec(self.pool, self.index, self.probes, coarse=False, excluded=excluded, across=True)

    def check_pair(self, pair: PairLoss) -> None:
        require_contrastive(pair, self.name)

    def score(self, comparison: Comparison, pair: PairLoss, retrieved: Retrieved, learned: Learned) -> Terms:
        """InfoNCE among the hard negatives of each direction; with `in_batch`, the pair loss with them added."""
        if retrieved.fine is None:
            return pair(comparison, learned)
        sides = Sides.from_comparison(comparison, retrieved.fine)
        of_u, of_v = sides.u.partner, sides.v.partner
        with torch.no_grad():
            hardness = torch.einsum("nd,nqd->nq", comparison.u, of_u)[sides.u.valid]
        scalars = {"negative_similarity": hardness.mean() if hardness.numel() else hardness.new_zeros(())}
        if self.in_batch:
            extra_v = _or_opposite(of_u, comparison.u, sides.u.valid)
            extra_u = _or_opposite(of_v, comparison.v, sides.v.valid)
            terms = pair(dataclasses.replace(comparison, extra_v=extra_v, extra_u=extra_u), learned)
            return Terms(terms.loss, {**terms.scalars, **scalars})
        tau = learned.tau(pair.learns().temperature)
        for_rows, for_columns = comparison.targets, comparison.column_targets()
        row_losses = info_nce(comparison.u, comparison.v, of_u, tau, sides.u.valid, for_rows)
        column_losses = info_nce(comparison.v, comparison.u, of_v, tau, sides.v.valid, for_columns)
        return Terms(comparison.both_directions(row_losses, column_losses), scalars)


def _or_opposite(negatives: Tensor, anchors: Tensor, valid: Tensor) -> Tensor:
    """Negatives [N, Q, D], with the anchor's opposite (similarity -1, hardly any weight) if there is none."""
    return torch.where(valid[:, :, None], negatives, -anchors.detach()[:, None])
