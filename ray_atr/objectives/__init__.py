"""Objectives of audio-text retrieval, usable in any training loop.

objective = preset("m_ltm_pot", transport_mass=0.8, epsilon=0.05, metric="diagonal")
terms = objective(Embeddings(audio=a, text=t), learned=Learned(metric=m))      # a [B, D], t [B, K, D], m [D]
terms.loss.backward()
"""

from ray_atr.common.positives import caption_groups as caption_groups
from ray_atr.objectives.correspondence import CORRESPONDENCES as CORRESPONDENCES
from ray_atr.objectives.knowledge import KNOWLEDGE as KNOWLEDGE
from ray_atr.objectives.knowledge.knowledge import KnowledgeBaseObjective as KnowledgeBaseObjective
from ray_atr.objectives.objective import Objective as Objective
from ray_atr.objectives.pairs import PAIRS as PAIRS
from ray_atr.objectives.pairs import Comparison as Comparison
from ray_atr.objectives.pairs import PairLoss as PairLoss
from ray_atr.objectives.pairs import Terms as Terms
from ray_atr.objectives.pairs.embeddings import Embeddings as Embeddings
from ray_atr.objectives.pairs.learned import Learned as Learned
from ray_atr.objectives.pairs.learned import LearnedParameters as LearnedParameters
from ray_atr.objectives.pairs.learned import LearnedSettings as LearnedSettings
from ray_atr.objectives.pairs.learned import metric_scalars as metric_scalars
from ray_atr.objectives.pairs.learned import project_metric as project_metric
from ray_atr.objectives.pairs.pair_loss import same_group as same_group
from ray_atr.objectives.presets import PRESETS as PRESETS
from ray_atr.objectives.presets import preset as preset
from ray_atr.objectives.schemes import SCHEMES as SCHEMES
from ray_atr.objectives.schemes import Scheme as Scheme
