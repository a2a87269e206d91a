"""HTS-AT (Chen et al. 2022) as CLAP's audio encoder; clips are repeated to fill its ten seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ray_atr.models.audio.transformers import TransformersAudio
from ray_atr.settings import setting


@dataclass(frozen=True, kw_only=True)
class Htsat(TransformersAudio):
    """The transformers port of the encoder, from the hub or a local folder."""

    name: ClassVar[str] = "htsat"

    checkpoint: str = setting("laion/clap-htsat-unfused", "folder or hub id of the encoder and its front end")
