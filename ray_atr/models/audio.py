"""The audio towers by name, and a convolutional one, small enough to train from scratch on two CPU cores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ray_atr.common.settings import by_name, inherited, setting
from ray_atr.data.audio import FrontEnd
from ray_atr.models.ced import Ced
from ray_atr.models.resnet38 import ResNet38
from ray_atr.models.sentence_transformers import SentenceTransformersAudio
from ray_atr.models.tower import AudioSettings, AudioTower, Encoded, clear, is_ragged, length_mask, masked_mean
from ray_atr.models.transformers import Ast, Htsat, TransformersAudio
from ray_atr.models.vectors import AudioVectors
from ray_atr.models.weights import WEIGHT_FILES, with_published


@dataclass(frozen=True, kw_only=True)
class SmallCnn(AudioSettings):
    """Three strided convolutions over time and frequency, then one over time; mean and maximum over the clip."""

    name: ClassVar[str] = "small_cnn"
    checkpoint_files: ClassVar[tuple[str, ...]] = WEIGHT_FILES
    is_convolutional: ClassVar[bool] = True
    channels: int = setting(
        16, "channels after the first convolution; each later one doubles them", at_least=4, at_most=2**12
    )
    checkpoint: str | None = setting(
        None,
        "file or folder of the weights; shipped:small_cnn: those that come with the package, trained to name the "
        "sounds of soundscapes; none: random weights",
        path="if there",
    )
    width: int = setting(192, "width W of the tower's embedding", at_least=8, at_most=2**14)
    clip_seconds: float = inherited(Ced, "clip_seconds", 10.0)

    @property
    def front_end(self) -> FrontEnd:
        """64 bands of 32 kHz audio at 50 frames/s, scaled to about zero mean and unit variance."""
        return FrontEnd(
            sample_rate=32_000,
            window_size=1024,
            hop_size=640,
            low_hz=50.0,
            high_hz=14_000.0,
            floor=1e-8,
            mean=-20.0,
            std=25.0,
            clip_seconds=self.clip_seconds,
        )

    def build(self) -> SmallCnnTower:
        return with_published(SmallCnnTower(self), self.checkpoint)


class SmallCnnTower(AudioTower):
    """Normalises within one frame, so that a clip does not depend on its batch, padding or the number of workers."""

    def __init__(self, settings: SmallCnn) -> None:
        super().__init__()
        self.front_end = settings.front_end
        self.width = settings.width
        first = settings.channels
        self.convolutions = nn.ModuleList([nn.Conv2d(1, first, kernel_size=5, stride=(2, 4), padding=2)])
        for channels in (first, 2 * first):
            self.convolutions.append(nn.Conv2d(channels, 2 * channels, kernel_size=3, stride=2, padding=1))
        self.norms = nn.ModuleList([nn.LayerNorm(first * scale) for scale in (1, 2, 4)])
        bands = self.front_end.num_mels // 16
        self.over_time = nn.Conv1d(4 * first * bands, settings.width, kernel_size=3, padding=1)
        self.over_time_norm = nn.LayerNorm(settings.width)
        self.out = nn.Linear(2 * settings.width, settings.width)

    def forward(self, features: Tensor, frames: Tensor) -> Encoded:
        x = features[:, None]
        ragged = is_ragged(frames, features.shape[1])
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = convolution(clear(x, frames if ragged else None))
            x = nn.functional.gelu(norm(x.permute(0, 2, 3, 1))).permute(0, 3, 1, 2)
            frames = (frames + 1) // 2
        mask = length_mask(frames, x.shape[2])
        flat = x.permute(0, 1, 3, 2).flatten(1, 2) * mask[:, None].to(x.dtype)
        tokens = nn.functional.gelu(self.over_time_norm(self.over_time(flat).transpose(1, 2)))
        peak = tokens.masked_fill(~mask[..., None], float("-inf")).amax(dim=1)
        pooled = self.out(torch.cat([masked_mean(tokens, mask), peak], dim=-1))
        return Encoded(pooled, tokens, mask)


AUDIO_TOWERS: dict[str, type[AudioSettings]] = by_name(
    (SmallCnn, Ced, ResNet38, Htsat, Ast, TransformersAudio, AudioVectors, SentenceTransformersAudio)
)
