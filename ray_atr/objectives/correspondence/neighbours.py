"""A pair is true if its clip and its text have the same neighbours (BiCro, Yang et al. 2023; REPAIR, Zheng et al. 2024).

A clip is described by its similarities to the clips of M anchor pairs, a text by those to their texts; the score is the
overlap of the two descriptions (Bhattacharyya's coefficient):

    score_i = sum_m sqrt(q_im r_im),   q_i = softmax_m <a_i, A_m> / tau,   r_i = softmax_m <t_i, T_m> / tau

Anchors are the entries of the knowledge base's snapshot if the objective has one, which costs no encoding, else the
latest embeddings of earlier batches; those of a clean probability below 0.5 are left out, and entries without a text.
BiCro takes the ratio of one nearest distance, REPAIR a rank correlation; the overlap needs no sort. Ours too: anchors of the
whole set, where BiCro's are a tenth of each batch, and a mixture of the scores as the weight, where BiCro's ratio is itself the
label (in a soft margin; below a threshold it is 0). Left out: BiCro's second network, its warm-up on the smallest losses of each
batch, and REPAIR's replacement of texts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ray_atr.common import sampling
from ray_atr.common.settings import inherited, setting
from ray_atr.objectives.correspondence.correspondence import Correspondence, Estimator, PairIndex, TrainingPairs
from ray_atr.objectives.correspondence.scored import MixtureEstimator
from ray_atr.objectives.correspondence.small_loss import SmallLoss
from ray_atr.objectives.pairs import Comparison


@dataclass(frozen=True, kw_only=True)
class NeighbourAgreement(Correspondence):
    """Agreement of audio-side and text-side neighbours among anchors.

    When: the objective has a knowledge base, whose entries serve as anchors.
    Related: `leave_one_out` was better on ESC-50 at 40 to 80% wrong pairs, and needs no base.

    >>> from ray_atr.objectives import Objective
    >>> from ray_atr.objectives.correspondence import CORRESPONDENCES
    >>> Objective(correspondence=CORRESPONDENCES["neighbours"]()).correspondence.name
    'neighbours'
    """

    name: ClassVar[str] = "neighbours"
    anchors: int = setting(256, "anchors that a pair is compared with", at_least=2)
    temperature: float = setting(
        0.1, "divides the similarities to anchors: the smaller, the fewer anchors count", above=0
    )
    mixture: str = inherited(SmallLoss, "mixture")
    warmup_epochs: int = inherited(SmallLoss, "warmup_epochs")

    def estimator(self, pairs: TrainingPairs) -> Estimator:
        return _NeighbourEstimator(pairs, self)


class Anchors(NamedTuple):
    """Clips and texts of M anchor pairs [M, D], and the training row of each [M], -1 for none."""

    audio: Tensor
    text: Tensor
    rows: Tensor


class _NeighbourEstimator(MixtureEstimator):
    settings: NeighbourAgreement

    def __init__(self, pairs: TrainingPairs, settings: NeighbourAgreement) -> None:
        super().__init__(pairs, settings)
        order = sampling.permutation(pairs.clip_ids, pairs.seed, "anchors")
        self.order = torch.from_numpy(order.copy()).to(pairs.device)
        self.row_of = {clip_id: row for row, clip_id in enumerate(pairs.clip_ids)}
        self._of_snapshot: tuple[Any, Anchors] | None = None
        self._rows: Tensor | None = None
        """Training rows of the anchors. They stay the same for an epoch if all clips have been in a batch."""

    def begin_epoch(self, epoch: int) -> None:
        super().begin_epoch(epoch)
        self._of_snapshot = None
        is_met = self.tables.get("is_met")
        self._rows = None if is_met is None or not bool(is_met.all()) else self._chosen(is_met)

    def score(self, comparison: Comparison, index: PairIndex) -> Tensor:
        snapshot = self.pairs.snapshot()
        anchors = self.remembered() if snapshot is None else self.stored(snapshot)
        if snapshot is None:
            self.remember(comparison, index)
        if anchors is None:
            return comparison.u.new_full((comparison.size,), torch.nan)
        is_own = index.rows[:, None] == anchors.rows
        sides = (comparison.u.float() @ anchors.audio.T, comparison.v.float() @ anchors.text.T)
        q, r = ((side / self.settings.temperature).masked_fill(is_own, -torch.inf).softmax(dim=1) for side in sides)
        return (q * r).sqrt().sum(dim=1)

    def stored(self, snapshot: Any) -> Anchors:
        """Anchors of a knowledge base's snapshot, chosen once a snapshot and epoch."""
        if self._of_snapshot is None or self._of_snapshot[0] is not snapshot:
            rows = torch.tensor([self.row_of.get(name.decode(), -1) for name in snapshot.ids])
            is_trusted = self.trusted()[rows.clamp(min=0)].cpu() | (rows < 0)
            # An entry without a text has a row of zeros there.
            has_text = torch.from_numpy(np.asarray(snapshot.text_mask[0]))
            chosen = (is_trusted & has_text).nonzero().squeeze(1).numpy()
            # Evenly spread over the base's own order, so that every part of it is among the anchors.
            chosen = chosen[np.linspace(0, len(chosen) - 1, min(self.settings.anchors, len(chosen))).astype(int)]
            arrays = (np.array(side[chosen], np.float32) for side in (snapshot.audio, snapshot.text[0]))
            audio, text = (torch.from_numpy(array).float().to(self.device) for array in arrays)
            self._of_snapshot = snapshot, Anchors(audio, text, rows[chosen].to(self.device))
        return self._of_snapshot[1]

    def remembered(self) -> Anchors | None:
        """Anchors among the pairs of earlier batches; None before two are trusted."""
        if "audio" not in self.tables:
            return None
        rows = self._chosen(self.tables["is_met"]) if self._rows is None else self._rows
        if len(rows) < 2:
            return None
        audio, text = (self.tables[side].flatten(0, 2).index_select(0, rows) for side in ("audio", "text"))
        return Anchors(audio, text, rows)

    def _chosen(self, is_met: Tensor) -> Tensor:
        """The rows of the anchors: the first of a fixed order that have been met and are trusted."""
        return self.order[((is_met[:, 0, 0] > 0) & self.trusted())[self.order]][: self.settings.anchors]

    def remember(self, comparison: Comparison, index: PairIndex) -> None:
        """Keep the latest embeddings of each clip and its text, in whichever language it came."""
        if "audio" not in self.tables:
            N, D = len(self.pairs.clip_ids), comparison.u.shape[1]
            for name, shape in (("audio", (N, 1, 1, D)), ("text", (N, 1, 1, D)), ("is_met", (N, 1, 1))):
                self.tables[name] = torch.zeros(shape, device=self.device)
        clips = PairIndex(index.rows, *(torch.zeros_like(index.rows),) * 2)
        self.put(self.tables["audio"], clips, comparison.u.float())
        self.put(self.tables["text"], clips, comparison.v.float())
        self.tables["is_met"][clips] = 1.0

    def trusted(self) -> Tensor:
        """Which clips have a mean clean probability of at least 0.5 over their pairs, bool [N]; True before any has a score."""
        # As at the epoch's start. In a language that is not trained, or a slot without a caption, a pair has no score.
        has_score = ~self.ranking_scores.isnan()
        return ~(self.clean_probabilities.where(has_score, torch.nan).nanmean(dim=(1, 2)) < 0.5)
