"""The place of an audio tower for data whose clips are vectors already, of CLAP, BEATs or any other encoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ray_atr.data.audio import FrontEnd
from ray_atr.models.tower import AudioSettings, AudioTower, Encoded
from ray_atr.settings import refuse, setting


@dataclass(frozen=True, kw_only=True)
class AudioVectors(AudioSettings):
    """Passes a clip's vector on: what is trained is the projection alone."""

    name: ClassVar[str] = "vectors"

    width: int = setting(0, "numbers of a clip's vector; 0: as many as the data set's have", at_least=0)

    @property
    def front_end(self) -> FrontEnd:
        """The vector itself, as the only frame. ValueError as long as its width is not known."""
        if self.width == 0:
            raise refuse("model.audio.width", 0, "the width of the vectors, if no data set says it")
        return FrontEnd(kind="vector", num_mels=self.width)

    def build(self) -> AudioVectorsTower:
        return AudioVectorsTower(self.front_end, self.width)


class AudioVectorsTower(AudioTower):
    """Features [N, 1, W] are the clips' vectors: a data set's own, or those that a frozen tower made once of the front end's."""

    def __init__(self, front_end: FrontEnd, width: int) -> None:
        super().__init__()
        self.front_end, self.width = front_end, width

    def forward(self, features: Tensor, frames: Tensor) -> Encoded:
        assert features.shape[1:] == (1, self.width), "the vectors of this tower, one a clip"
        return Encoded(features[:, 0], features, torch.ones_like(features[..., 0], dtype=torch.bool))
