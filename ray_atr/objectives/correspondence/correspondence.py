"""The seam of an objective's fourth choice: its settings, and the estimator that a run keeps for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ray_atr.objectives.correspondence.estimator import Estimator, TrainingPairs
from ray_atr.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Correspondence(Settings):
    """How far the pairs of a batch are believed. A subclass sets `name` (its key in CORRESPONDENCES) and makes its estimator.

    `needs_truth`: the noise must be known, as injected noise is.
    """

    name: ClassVar[str]
    needs_truth: ClassVar[bool] = False

    def estimator(self, pairs: TrainingPairs) -> Estimator:
        """What a run keeps to judge these training pairs."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class NoCorrespondence(Correspondence):
    """Every pair is believed."""

    name: ClassVar[str] = "none"

    def estimator(self, pairs: TrainingPairs) -> Estimator:
        """One that changes nothing."""
        return Estimator(pairs)
