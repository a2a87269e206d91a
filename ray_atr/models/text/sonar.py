"""SONAR's text encoder (Duquenne et al. 2023), 200 languages in one space: NLLB's tokeniser with language tag, masked mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ray_atr.models.text.transformers import POOLINGS, TransformersText
from ray_atr.settings import setting


@dataclass(frozen=True, kw_only=True)
class Sonar(TransformersText):
    """The transformers port of the encoder, from the hub or a local folder."""

    name: ClassVar[str] = "sonar"

    checkpoint: str = setting(
        "cointegrated/SONAR_200_text_encoder", "folder or hub id of the encoder and its tokeniser"
    )
    pooling: str = setting(
        "mean", "of a text's tokens: mean, the first one (cls), or the model's pooler", choices=POOLINGS
    )
