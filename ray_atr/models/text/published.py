"""Published text encoders: the transformers tower with the checkpoint and the pooling that each was trained with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ray_atr.models.text.transformers import TransformersText
from ray_atr.settings import inherited


@dataclass(frozen=True, kw_only=True)
class Sonar(TransformersText):
    """SONAR (Duquenne et al. 2023), 200 languages in one space: NLLB's tokeniser with its language tag, masked mean."""

    name: ClassVar[str] = "sonar"

    checkpoint: str = inherited(TransformersText, "checkpoint", "cointegrated/SONAR_200_text_encoder")
    pooling: str = inherited(TransformersText, "pooling", "mean")


@dataclass(frozen=True, kw_only=True)
class Labse(TransformersText):
    """LaBSE (Feng et al. 2022), 109 languages in one space: the first token through the model's own pooler."""

    name: ClassVar[str] = "labse"

    checkpoint: str = inherited(TransformersText, "checkpoint", "sentence-transformers/LaBSE")
    pooling: str = inherited(TransformersText, "pooling", "pooler")


@dataclass(frozen=True, kw_only=True)
class Bert(TransformersText):
    """BERT (Devlin et al. 2019), English: the first token."""

    name: ClassVar[str] = "bert"

    checkpoint: str = inherited(TransformersText, "checkpoint", "google-bert/bert-base-uncased")
    pooling: str = inherited(TransformersText, "pooling", "cls")


@dataclass(frozen=True, kw_only=True)
class XlmRoberta(TransformersText):
    """XLM-R (Conneau et al. 2020), 100 languages: masked mean."""

    name: ClassVar[str] = "xlm_roberta"

    checkpoint: str = inherited(TransformersText, "checkpoint", "FacebookAI/xlm-roberta-base")
    pooling: str = inherited(TransformersText, "pooling", "mean")
