"""ResNet38 of PANNs (Kong et al. 2020, "PANNs: Large-scale pretrained audio neural networks"), with the published names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ray_atr.common.settings import inherited, refuse, setting
from ray_atr.data.audio import FrontEnd
from ray_atr.models.batch_norm import BatchNorm2d
from ray_atr.models.ced import Ced
from ray_atr.models.tower import AudioSettings, AudioTower, Encoded, clear, is_ragged, length_mask, masked_mean
from ray_atr.models.weights import WEIGHT_FILES, with_published

STAGES = (3, 4, 6, 3)
"""basic blocks of the four stages of ResNet34"""


@dataclass(frozen=True, kw_only=True)
class ResNet38(AudioSettings):
    """PANNs ResNet38; `width_divisor` makes a narrow one for tests."""

    name: ClassVar[str] = "resnet38"
    checkpoint_files: ClassVar[tuple[str, ...]] = WEIGHT_FILES
    is_convolutional: ClassVar[bool] = True
    blanks_after_norm: ClassVar[bool] = True
    checkpoint: str | None = setting(
        None, "file of the weights (ResNet38_mAP=0.434.pth); none: random weights", path="if there"
    )
    allow_mismatch: tuple[str, ...] = inherited(Ced, "allow_mismatch", ())
    output: str = setting(
        "pooled",
        "pooled: mean plus maximum over time, as retrieval papers use it; fc1: one more linear layer and a ReLU",
        choices=("pooled", "fc1"),
    )
    clip_seconds: float = inherited(Ced, "clip_seconds", 30.0)
    width_divisor: int = setting(1, "divides every number of channels; 1 is the published model", at_least=1)
    dropout: float = setting(
        0.0, "dropout inside the residual blocks in training (published: 0.1)", at_least=0, below=1
    )
    outer_dropout: float = setting(
        0.0,
        "dropout in training after the first two convolutions, and before and after the last two (published: 0.2)",
        at_least=0,
        below=1,
    )
    trains_batch_norms: bool = setting(
        False,
        "batch norms use the statistics of the global batch in training, and their running averages in evaluation, as in the "
        "released code of ML-ACT and m-LTM; false: they keep the published statistics, so that no clip depends on its batch",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.trains_batch_norms:
            return
        for name in ("is_frozen", "frozen_layers", "lora_rank", "activation_checkpointing"):
            if value := getattr(self.adapt, name):
                raise refuse(f"adapt.{name}", value, f"{type(value)(0)} with trains_batch_norms")

    @property
    def front_end(self) -> FrontEnd:
        return FrontEnd(
            sample_rate=32_000,
            window_size=1024,
            hop_size=320,
            num_mels=64,
            low_hz=50.0,
            high_hz=14_000.0,
            mel_scale="slaney",
            mel_norm="slaney",
            clip_seconds=self.clip_seconds,
            # 32 frames, so that one is left after five halvings.
            minimum_samples=9_920,
        )

    def build(self) -> ResNet38Tower:
        skip: tuple[str, ...] = ("spectrogram_extractor.", "logmel_extractor.", "fc_audioset.")
        skip += () if self.output == "fc1" else ("fc1.",)
        return with_published(ResNet38Tower(self), self.checkpoint, skip=skip, allowed=self.allow_mismatch)


class ResNet38Tower(AudioTower):
    """Two plain convolutions, ResNet34's stages with average pooling for strides, two wide convolutions, pooling."""

    def __init__(self, settings: ResNet38) -> None:
        super().__init__()
        self.front_end = settings.front_end
        first, last = 64 // settings.width_divisor, 2048 // settings.width_divisor
        self.width = last
        self.is_checkpointing = False
        self.trains_batch_norms = settings.trains_batch_norms
        self.dropout = nn.Dropout(settings.outer_dropout)
        self.bn0 = BatchNorm2d(self.front_end.num_mels)
        self.conv_block1 = ConvBlock(1, first)
        self.resnet = stages(first, settings.dropout)
        self.conv_block_after1 = ConvBlock(8 * first, last)
        self.fc1 = nn.Linear(last, last) if settings.output == "fc1" else None
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.xavier_uniform_(module.weight)

    def forward(self, features: Tensor, frames: Tensor, blank: Tensor | None = None) -> Encoded:
        lengths = frames if is_ragged(frames, features.shape[1]) else None
        x = self.bn0(features.transpose(1, 2)[..., None], lengths)[..., 0].transpose(1, 2)[:, None]
        if blank is not None:
            x = x.masked_fill(blank[:, None], 0)
        x, lengths = _halve(self.run(self.conv_block1, clear(x, lengths), lengths), lengths)
        x = self.dropout(x)
        for stage in self.resnet.children():
            for block in stage.children():
                x, lengths = self.run(block, x, lengths)
        x, lengths = _halve(x, lengths)
        x = self.dropout(x)
        x = self.dropout(self.run(self.conv_block_after1, clear(x, lengths), lengths))
        tokens = x.mean(dim=3).transpose(1, 2)
        mask = length_mask(frames // 32, tokens.shape[1])
        peak = tokens.masked_fill(~mask[..., None], float("-inf")).amax(dim=1)
        pooled = peak + masked_mean(tokens, mask)
        if self.fc1 is not None:
            pooled = torch.relu(self.fc1(pooled))
        return Encoded(pooled, tokens, mask)


class ConvBlock(nn.Module):
    """Two 3 x 3 convolutions, each with batch norm and ReLU."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.bn1, self.bn2 = BatchNorm2d(channels_out), BatchNorm2d(channels_out)

    def forward(self, x: Tensor, lengths: Tensor | None) -> Tensor:
        x = clear(torch.relu(self.bn1(self.conv1(x), lengths)), lengths)
        return torch.relu(self.bn2(self.conv2(x), lengths))


class BasicBlock(nn.Module):
    """A residual block; one that halves pools both its paths instead of striding its convolutions."""

    def __init__(self, channels_in: int, channels_out: int, halves: bool, dropout: float) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False)
        self.bn1 = BatchNorm2d(channels_out)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.bn2 = BatchNorm2d(channels_out)
        self.downsample: nn.Sequential | None = None
        if halves:
            mixing = nn.Conv2d(channels_in, channels_out, 1, bias=False)
            self.downsample = nn.Sequential(nn.AvgPool2d(2), mixing, BatchNorm2d(channels_out))

    def forward(self, x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        shortcut = x
        if self.downsample is not None:
            pool, mixing, norm = self.downsample
            shortcut = mixing(pool(x))
            x, lengths = _halve(x, lengths)
            shortcut = norm(shortcut, lengths)
        x = clear(torch.relu(self.bn1(self.conv1(clear(x, lengths)), lengths)), lengths)
        x = self.bn2(self.conv2(self.dropout(x)), lengths)
        return clear(torch.relu(x + shortcut), lengths), lengths


def stages(first: int, dropout: float) -> nn.ModuleDict:
    """The four stages of basic blocks by name; the last three halve time and frequency and double the channels."""
    modules = nn.ModuleDict()
    for number, num_blocks in enumerate(STAGES):
        wide = first * 2**number
        blocks = [BasicBlock(wide // 2, wide, True, dropout) if number else BasicBlock(wide, wide, False, dropout)]
        blocks += [BasicBlock(wide, wide, False, dropout) for _ in range(num_blocks - 1)]
        modules[f"layer{number + 1}"] = nn.ModuleList(blocks)
    return modules


def _halve(x: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
    return nn.functional.avg_pool2d(x, 2), None if lengths is None else lengths // 2
