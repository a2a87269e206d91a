"""Embeddings in, numbers out: retrieval, consistency across languages, zero-shot, intervals, pictures."""

from ray_atr.evaluation.consistency import language_distance, language_gap, mean_rank_variance
from ray_atr.evaluation.diagnostics import modality_gap
from ray_atr.evaluation.retrieval import retrieval_metrics, retrieve

__all__ = [
    "language_distance",
    "language_gap",
    "mean_rank_variance",
    "modality_gap",
    "retrieval_metrics",
    "retrieve",
]
