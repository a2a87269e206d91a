"""Metrics of embeddings: retrieval, consistency across languages, zero-shot classification, intervals.

Nothing here needs matplotlib: `ray_atr.evaluation.report.evaluation_content` composes pages and pictures.
"""

from ray_atr.metrics.alignment import align_captions
from ray_atr.metrics.bootstrap import across_seeds, bootstrap_runs, compare_runs
from ray_atr.metrics.languages import evaluate_languages, retrieve_languages
from ray_atr.metrics.ranking import plan_scores
from ray_atr.metrics.retrieval import retrieval_metrics, retrieve, retrieve_by_plan
from ray_atr.metrics.samples import retrieval_samples
from ray_atr.metrics.zero_shot import classification_metrics, classify, classify_languages

__all__ = [
    "across_seeds",
    "align_captions",
    "bootstrap_runs",
    "classification_metrics",
    "classify",
    "classify_languages",
    "compare_runs",
    "evaluate_languages",
    "plan_scores",
    "retrieval_metrics",
    "retrieval_samples",
    "retrieve",
    "retrieve_by_plan",
    "retrieve_languages",
]
