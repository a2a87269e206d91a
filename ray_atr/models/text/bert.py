"""BERT (Devlin et al. 2019), English: the first token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ray_atr.models.text.transformers import POOLINGS, TransformersText
from ray_atr.settings import setting


@dataclass(frozen=True, kw_only=True)
class Bert(TransformersText):
    """The transformers port of the encoder, from the hub or a local folder."""

    name: ClassVar[str] = "bert"

    checkpoint: str = setting("google-bert/bert-base-uncased", "folder or hub id of the encoder and its tokeniser")
    pooling: str = setting(
        "cls", "of a text's tokens: mean, the first one (cls), or the model's pooler", choices=POOLINGS
    )
