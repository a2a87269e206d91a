"""The audio spectrogram transformer (Gong et al. 2021), on Kaldi's filter bank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ray_atr.models.audio.transformers import TransformersAudio
from ray_atr.settings import setting


@dataclass(frozen=True, kw_only=True)
class Ast(TransformersAudio):
    """The transformers port of the encoder, from the hub or a local folder."""

    name: ClassVar[str] = "ast"

    checkpoint: str = setting(
        "MIT/ast-finetuned-audioset-10-10-0.4593", "folder or hub id of the encoder and its front end"
    )
