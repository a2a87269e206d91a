"""Sample weight as a running mean of the pair's own probability (CRCL, Qin et al. 2023).

    p = (p_ii + p_ii^T) / 2,   p_ii the pair's probability among its batch
    in the warm-up's last epoch   y <- p, while the loss still has 1
    afterwards                    y <- 0.8 y + 0.2 p, and below 0.1 it is 0; the loss has the new y

As the released code (model/CRCL.py, `train_self`). Left out: the restarts with new weights and the old y after 6, 6 and 6
epochs, and the paper's loss, which gates its complementary part by y; here y weighs whichever pair loss is chosen. Ours:
the batch's further positives are no negatives in p, and a pair that the warm-up's last epoch did not meet (captions and
languages are drawn) has its p as y when it is first met. A pair that has no negative in its batch keeps its y.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ray_atr.common.settings import setting
from ray_atr.objectives.correspondence.correspondence import (
    Correspondence,
    Estimator,
    PairEstimate,
    PairIndex,
    TrainingPairs,
)
from ray_atr.objectives.correspondence.small_loss import contrastive_losses
from ray_atr.objectives.pairs import Comparison


@dataclass(frozen=True, kw_only=True)
class SelfRefining(Correspondence):
    """A running mean of the pair's probability among its batch.

    When: labels should change smoothly over epochs.
    Related: `small_loss` fits a mixture instead of a running mean.

    >>> from ray_atr.objectives import Objective
    >>> from ray_atr.objectives.correspondence import CORRESPONDENCES
    >>> Objective(correspondence=CORRESPONDENCES["self_refining"]()).correspondence.name
    'self_refining'
    """

    name: ClassVar[str] = "self_refining"
    momentum: float = setting(0.8, "share of the old sample weight in the new one", at_least=0, below=1)
    least: float = setting(0.1, "a sample weight below this counts as 0", at_least=0, below=1)
    warmup_epochs: int = setting(2, "epochs in which every pair has a sample weight of 1", at_least=0)
    temperature: float = setting(0.05, "divides the similarities in the pair's probability", above=0)

    def estimator(self, pairs: TrainingPairs) -> Estimator:
        return _SelfRefiningEstimator(pairs, self)


class _SelfRefiningEstimator(Estimator):
    def __init__(self, pairs: TrainingPairs, settings: SelfRefining) -> None:
        super().__init__(pairs, settings)
        self.clean_probabilities = self.table("clean_probabilities", torch.nan if settings.warmup_epochs > 0 else 1.0)
        """NaN before the pair is first given its own probability."""

    def estimate(self, comparison: Comparison, index: PairIndex) -> PairEstimate:
        settings, before = self.settings, self.clean_probabilities[index]
        if self.epoch < settings.warmup_epochs - 1:
            return PairEstimate(comparison.u.new_ones(comparison.size))
        rows, columns = contrastive_losses(comparison, settings.temperature)
        # NaN where the batch has no negative of the pair: then its sample weight stays, 1 if it has none.
        probability = 0.5 * (torch.exp(-rows) + torch.exp(-columns)).to(before)
        if self.epoch == settings.warmup_epochs - 1:
            self.write(self.clean_probabilities, index, probability)
            return PairEstimate(comparison.u.new_ones(comparison.size))
        mean = settings.momentum * before + (1 - settings.momentum) * probability
        after = torch.where(before.isnan(), probability, mean)
        after = torch.where(after < settings.least, 0.0, after)
        self.write(self.clean_probabilities, index, after)
        weight = torch.where(probability.isnan(), before.nan_to_num(nan=1.0), after)
        return PairEstimate(weight.to(comparison.u.dtype))
