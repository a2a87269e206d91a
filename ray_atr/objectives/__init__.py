"""Objectives of audio-text retrieval, usable in any training loop.

objective = preset("m_ltm_pot", transport_mass=0.8, epsilon=0.05, metric="diagonal")
terms = objective(Embeddings(audio=a, text=t), learned=Learned(metric=m))      # a [B, D], t [B, K, D], m [D]
terms.loss.backward()
"""

from ray_atr.data.positives import caption_groups, same_group
from ray_atr.objectives.embeddings import Embeddings
from ray_atr.objectives.knowledge import KNOWLEDGE
from ray_atr.objectives.learned import Learned, LearnedParameters, LearnedSettings, metric_scalars, project_metric
from ray_atr.objectives.objective import Objective
from ray_atr.objectives.pairs import PAIRS, Comparison, PairLoss, Terms
from ray_atr.objectives.presets import PRESETS, preset
from ray_atr.objectives.schemes import SCHEMES, Scheme

__all__ = [
    "KNOWLEDGE",
    "PAIRS",
    "PRESETS",
    "SCHEMES",
    "Comparison",
    "Embeddings",
    "Learned",
    "LearnedParameters",
    "LearnedSettings",
    "Objective",
    "PairLoss",
    "Scheme",
    "Terms",
    "caption_groups",
    "metric_scalars",
    "preset",
    "project_metric",
    "same_group",
]
