"""Published audio encoders: the transformers tower with each checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ray_atr.models.audio.transformers import TransformersAudio
from ray_atr.settings import inherited


@dataclass(frozen=True, kw_only=True)
class Ast(TransformersAudio):
    """The audio spectrogram transformer (Gong et al. 2021), on Kaldi's filter bank."""

    name: ClassVar[str] = "ast"

    checkpoint: str = inherited(TransformersAudio, "checkpoint", "MIT/ast-finetuned-audioset-10-10-0.4593")


@dataclass(frozen=True, kw_only=True)
class Htsat(TransformersAudio):
    """HTS-AT (Chen et al. 2022) as CLAP's audio encoder; clips are repeated to fill its ten seconds."""

    name: ClassVar[str] = "htsat"

    checkpoint: str = inherited(TransformersAudio, "checkpoint", "laion/clap-htsat-unfused")
