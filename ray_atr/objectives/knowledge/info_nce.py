"""Cross-entropy of one positive among given negatives: the form that MoCo and ANCE share."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ray_atr.objectives.learned import Learned
from ray_atr.objectives.pairs.pair_loss import PairLoss
from ray_atr.settings import refuse


def info_nce(
    anchors: Tensor, positives: Tensor, negatives: Tensor, temperature: Tensor | float, valid: Tensor
) -> Tensor:
    """-log(exp(<a_i, p_i>/tau) / (exp(<a_i, p_i>/tau) + sum over negatives n of exp(<a_i, n>/tau))), [N].

    anchors and positives [N, D]; negatives [Q, D] shared by all or [N, Q, D] own ones; valid [N, Q] bool says which
    count. 0 if there is no negative.
    """
    own = (anchors * positives).sum(dim=1, keepdim=True)
    others = anchors @ negatives.T if negatives.ndim == 2 else torch.einsum("nd,nqd->nq", anchors, negatives)
    logits = torch.cat([own, others], dim=1) / temperature
    logits = torch.cat([logits[:, :1], logits[:, 1:].masked_fill(~valid, -torch.inf)], dim=1)
    return functional.cross_entropy(
        logits, torch.zeros(len(logits), dtype=torch.int64, device=logits.device), reduction="none"
    )


def contrastive_temperature(pair: PairLoss, learned: Learned, knowledge: str) -> Tensor | float:
    """The learned temperature, or the contrastive pair loss's; ValueError for pair losses that the method is not defined for."""
    if pair.name != "contrastive":
        raise refuse("objective.pair", pair.name, f"contrastive, the only pair loss that {knowledge} is defined for")
    return learned.tau(pair.temperature)  # type: ignore[attr-defined]
