"""Beliefs from a score: recorded as batches pass, split by a two-component mixture at the start of the next epoch."""

from __future__ import annotations

import torch
from torch import Tensor

from ray_atr.objectives.correspondence.estimator import Estimator, Judgement, Places, TrainingPairs
from ray_atr.objectives.correspondence.mixture import low_component
from ray_atr.objectives.pairs import Comparison


class Scored(Estimator):
    """A pair's belief is the posterior of the better component over the latest scores of all pairs.

    Every pair is believed in the first `warmup` epochs. A language is judged by itself: one that the text tower reads badly
    is no noise. A pair without a score is believed as the average one of its language.
    """

    def __init__(self, pairs: TrainingPairs, warmup: int, mixture: str) -> None:
        super().__init__(pairs)
        self.warmup, self.mixture = warmup, mixture
        self.scores = self.table("scores", torch.nan)
        """Higher is better."""
        self.beliefs = self.table("beliefs", 1.0)

    def begin_epoch(self, epoch: int) -> None:
        """Judge all pairs by their scores."""
        super().begin_epoch(epoch)
        self.standing.copy_(self.scores)
        if epoch >= self.warmup:
            self.beliefs.copy_(self.posterior(self.scores))

    def posterior(self, scores: Tensor) -> Tensor:
        """Beliefs [N, J, K] of scores [N, J, K] with NaN for pairs that have none."""
        beliefs = torch.ones_like(scores)
        for language in range(scores.shape[2]):
            known = ~scores[:, :, language].isnan()
            if bool(known.any()):
                found = low_component(-scores[:, :, language][known], self.mixture).to(scores)
                beliefs[:, :, language] = found.mean()
                beliefs[:, :, language][known] = found
        return beliefs

    def judge(self, comparison: Comparison, places: Places) -> Judgement:
        """Record the pairs' scores, and believe them as they were judged before."""
        self.note(self.scores, places, self.score(comparison, places).float())
        return Judgement(self.beliefs[places].to(comparison.u.dtype))

    def score(self, comparison: Comparison, places: Places) -> Tensor:
        """The score of each pair, [n]."""
        raise NotImplementedError
