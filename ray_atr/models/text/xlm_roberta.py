"""XLM-R (Conneau et al. 2020), 100 languages: masked mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ray_atr.models.text.transformers import POOLINGS, TransformersText
from ray_atr.settings import setting


@dataclass(frozen=True, kw_only=True)
class XlmRoberta(TransformersText):
    """The transformers port of the encoder, from the hub or a local folder."""

    name: ClassVar[str] = "xlm_roberta"

    checkpoint: str = setting("FacebookAI/xlm-roberta-base", "folder or hub id of the encoder and its tokeniser")
    pooling: str = setting(
        "mean", "of a text's tokens: mean, the first one (cls), or the model's pooler", choices=POOLINGS
    )
