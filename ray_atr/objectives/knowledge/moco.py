"""MoCo (He et al. 2020): negatives are a queue of keys that slowly moving copies of the encoders made.

    l_i = -log( exp(<u_i, k_i>/tau) / (exp(<u_i, k_i>/tau) + sum over the queue's k of exp(<u_i, k>/tau)) )

u_i is an embedding with gradient, k_i the momentum encoder's key of its partner, and the queue holds earlier batches' keys
of the partner's modality, without those of u_i's own clip and of its positives. Both directions, half of each. Ours: the queue
is empty at first, where the released code's has random keys; and the released queue has an image's own earlier key. With soft
targets, l_i is the mean under them over the partners' keys k_j.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ray_atr.common.settings import setting
from ray_atr.objectives.knowledge.knowledge import (
    Knowledge,
    Queued,
    info_nce,
    require_contrastive,
)
from ray_atr.objectives.pairs.learned import Learned
from ray_atr.objectives.pairs.pair_loss import Comparison, PairLoss, Terms


@dataclass(frozen=True, kw_only=True)
class Moco(Knowledge):
    """Momentum encoders and a queue, the baseline of ASK's Appendix E.

    When: batches are small, so that negatives are few and easy.
    Related: `Ance` mines hard negatives in the whole training set, `Nnclr` finds positives.

    >>> from ray_atr.objectives import preset
    >>> preset("moco", queue_size=1024).knowledge.queue_size
    1024
    """

    name: ClassVar[str] = "moco"
    needs_retrieval: ClassVar[bool] = True
    queue_size: int = setting(4096, "keys that the queue holds", at_least=1)
    momentum: float = setting(
        0.999, "share of the old weights in the momentum encoders after a step", at_least=0, below=1
    )

    def check_pair(self, pair: PairLoss) -> None:
        require_contrastive(pair, self.name)

    def score(self, comparison: Comparison, pair: PairLoss, retrieved: Queued, learned: Learned) -> Terms:
        """InfoNCE of both directions; of the pair loss only the temperature is used."""
        tau, rows = learned.tau(pair.learns().temperature), comparison.row_numbers
        v_keys, v_queue, v_negative = _keys(retrieved, rows, comparison.v_language)
        u_keys, u_queue, u_negative = _keys(retrieved, rows, comparison.u_language)
        row_losses = info_nce(comparison.u, v_keys, v_queue, tau, v_negative, comparison.targets)
        column_losses = info_nce(comparison.v, u_keys, u_queue, tau, u_negative, comparison.column_targets())
        queued = comparison.u.new_tensor(float(len(v_queue)))
        return Terms(comparison.both_directions(row_losses, column_losses), {"queued_keys": queued})


def _keys(queued: Queued, rows: Tensor, language: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """(keys [N, D] of the rows, queue [Q', D], its negatives [N, Q']) of audio, or of text in the rows' languages."""
    if language is None:
        return queued.audio[rows], queued.queue_audio, queued.negative[rows]
    is_taken = torch.zeros(queued.text.shape[1], dtype=torch.bool, device=language.device)
    is_taken[language] = True
    in_queue = queued.queue_mask & is_taken
    clip = in_queue.nonzero(as_tuple=True)[0]
    return queued.text[rows, language], queued.queue_text[in_queue], queued.negative[rows][:, clip]
