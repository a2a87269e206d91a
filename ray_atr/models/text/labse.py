"""LaBSE (Feng et al. 2022), 109 languages in one space: the first token through the model's own pooler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ray_atr.models.text.transformers import POOLINGS, TransformersText
from ray_atr.settings import setting


@dataclass(frozen=True, kw_only=True)
class Labse(TransformersText):
    """The transformers port of the encoder, from the hub or a local folder."""

    name: ClassVar[str] = "labse"

    checkpoint: str = setting("sentence-transformers/LaBSE", "folder or hub id of the encoder and its tokeniser")
    pooling: str = setting(
        "pooler", "of a text's tokens: mean, the first one (cls), or the model's pooler", choices=POOLINGS
    )
