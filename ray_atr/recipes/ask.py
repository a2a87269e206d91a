"""ASK (Fu et al. 2025, arXiv 2512.19703): ResNet38 and BERT with a knowledge base that refreshes itself.

No code is released, and the paper's training settings could not be read: they are those of m-LTM's recipe, which has the same
encoders and data. Neighbours, prototypes and ratios are the defaults of `Ask`, whose docstring says where they come from.
"""

from __future__ import annotations

from ray_atr.experiment import Experiment
from ray_atr.override import override
from ray_atr.recipes.m_ltm import audiocaps_resnet38_bert_contrastive


def audiocaps_resnet38_bert_ask() -> Experiment:
    """AudioCaps, NT-Xent with injection, realignment and modulation from the training set's own knowledge base."""
    return override(audiocaps_resnet38_bert_contrastive(), {"objective": "ask"})
