"""A caption's clean probability from its clip's other captions and languages: separates mispairing from mistranslation. Ours.

    own_ik   = <t_ik, mean of the clip's other captions>   low if this one caption is wrong (a mistranslation)
    clip_i   = <a_i, mean of all the clip's captions>       low if all of them are (a mispaired clip)

Each score is split by a two-component mixture; a caption's clean probability is the product of the two posteriors. The embeddings
are the latest that training made of each caption, [N, J, K, D]: a scheme that draws languages fills them over epochs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from ray_atr.common.settings import inherited, refuse
from ray_atr.objectives.correspondence.correspondence import Correspondence, Estimator, PairIndex, TrainingPairs
from ray_atr.objectives.correspondence.scored import MixtureEstimator
from ray_atr.objectives.correspondence.small_loss import SmallLoss
from ray_atr.objectives.pairs import Comparison


@dataclass(frozen=True, kw_only=True)
class Consensus(Correspondence):
    """Agreement of a caption with its clip's other captions and languages, and of all of them with the clip.

    When: clips have several captions or languages, and single translations are wrong.
    Related: `small_loss` needs one caption.

    >>> from ray_atr.objectives import Objective
    >>> from ray_atr.objectives.correspondence import CORRESPONDENCES
    >>> Objective(correspondence=CORRESPONDENCES["consensus"]()).correspondence.name
    'consensus'
    """

    name: ClassVar[str] = "consensus"
    mixture: str = inherited(SmallLoss, "mixture")
    warmup_epochs: int = inherited(SmallLoss, "warmup_epochs")

    def estimator(self, pairs: TrainingPairs) -> Estimator:
        self.require_several(pairs.slots * pairs.languages)
        return _ConsensusEstimator(pairs, self)

    def require_several(self, most: int) -> None:
        """ValueError if no clip has several captions in the trained languages; `most` is the largest number that one has."""
        if most < 2:
            raise refuse(
                "objective.correspondence", self.name, "on clips with several captions in the trained languages"
            )


class _ConsensusEstimator(MixtureEstimator):
    def __init__(self, pairs: TrainingPairs, settings: Consensus) -> None:
        super().__init__(pairs, settings)
        self.own = self.table("own", torch.nan)

    def begin_epoch(self, epoch: int) -> None:
        super().begin_epoch(epoch)
        if epoch >= self.settings.warmup_epochs:
            self.clean_probabilities.mul_(self.posterior(self.own))

    def score(self, comparison: Comparison, index: PairIndex) -> Tensor:
        """Similarity of the clip and all its captions [n]. The caption's similarity to the others is recorded in `own`."""
        if "text" not in self.tables:
            self.table("text", 0.0, comparison.v.shape[1])
        text, text_of_batch = self.tables["text"], comparison.v.float()
        self.put(text, index, text_of_batch)
        total = text[index.rows].flatten(1, 2).sum(dim=1)
        others = total - text_of_batch
        agreement = (functional.normalize(others, dim=1) * text_of_batch).sum(dim=1)
        self.put(self.own, index, torch.where(others.norm(dim=1) > 1e-6, agreement, torch.nan))
        return (functional.normalize(total, dim=1) * comparison.u.float()).sum(dim=1)
