"""Soft targets from finished trials (Primus et al. 2024, "Estimated audio-caption correspondences", DCASE 2024's first place).

    t_ij = softmax_j (mean over teachers of <a_i, c_j>) / tau,   target = (1 - share) I + share t

The teachers' retrievers embed the training set once, before the first epoch. The paper trains on t alone (share 1), from the
first stage's weights (`train.start_from`); every pair loss takes the targets here, where the paper has the contrastive one. From
captions to clips the targets are the softmax over the clips, as the released code has it. Ours: tau is a setting, where the
released code divides by the student's own tau. A share below 1 is that code's second loss, of the pairs, beside the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ray_atr.common.settings import refuse, setting
from ray_atr.objectives.correspondence.correspondence import (
    Correspondence,
    Estimator,
    PairEstimate,
    PairIndex,
    TrainingPairs,
)
from ray_atr.objectives.pairs import Comparison

TEACHERS = "objective.correspondence.teachers"


class TeacherEmbeddings(NamedTuple):
    """One teacher's unit-norm embeddings of the training clips [N, D] and of the captions that they have [N, J, K, D]."""

    audio: Tensor
    text: Tensor


@dataclass(frozen=True, kw_only=True)
class Teacher(Correspondence):
    """Targets are the softmax of finished retrievers' mean similarity.

    When: finished models exist, whose similarities are better targets than one caption a clip.
    Related: `train.start_from` takes their weights.

    >>> from ray_atr.objectives import Objective
    >>> from ray_atr.objectives.correspondence import CORRESPONDENCES
    >>> Objective(correspondence=CORRESPONDENCES["teacher"]()).correspondence.name
    'teacher'
    """

    name: ClassVar[str] = "teacher"
    teachers: tuple[str, ...] = setting(
        (), "folders of saved retrievers, or of finished trials, whose similarities are averaged", path="always"
    )
    temperature: float = setting(0.05, "divides the teachers' mean similarity", above=0)
    share: float = setting(1.0, "share of the teachers in the target; the rest is the own caption", above=0, at_most=1)

    def estimator(self, pairs: TrainingPairs) -> Estimator:
        self.require_teachers(pairs.teacher_embeddings)
        return _TeacherEstimator(pairs, self)

    def require_teachers(self, teachers: Sequence[object] | None) -> None:
        """ValueError if there is none."""
        if not teachers:
            allowed = "one saved retriever or finished trial, or more"
            raise refuse(TEACHERS, self.teachers, allowed)


class _TeacherEstimator(Estimator):
    settings: Teacher

    def estimate(self, comparison: Comparison, index: PairIndex) -> PairEstimate:
        similarities = [teacher.audio[index.rows] @ teacher.text[index].T for teacher in self.pairs.teacher_embeddings]
        mean = torch.stack(similarities).mean(dim=0).to(comparison.u)
        identity = torch.eye(comparison.size, dtype=mean.dtype, device=mean.device)
        of_clips, of_texts = (
            identity.lerp((side / self.settings.temperature).softmax(dim=1), self.settings.share)
            for side in (mean, mean.T)
        )
        return PairEstimate(targets=of_clips, reverse_targets=of_texts)
