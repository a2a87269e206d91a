"""CED, an audio transformer distilled from an ensemble (Dinkel et al. 2023, "CED: Consistent ensemble distillation").

The parameter names are the published ones. Shapes: C chunks, L tokens of a chunk, W width.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ray_atr.common.settings import setting
from ray_atr.data.audio import SHORTEST_WINDOW, FrontEnd
from ray_atr.models.tower import AudioSettings, AudioTower, Encoded, is_ragged, length_mask, masked_mean
from ray_atr.models.weights import WEIGHT_FILES, with_published

SIZES = {"tiny": (192, 3), "mini": (256, 4), "small": (384, 6), "base": (768, 12)}
"""size -> (width, attention heads); all have 12 blocks"""
PATCH = 16
"""frames and mel bands of a patch"""
ML_CLAP = "audio_encoder.model."
"""Prefix of the published names in ML-CLAP's checkpoints."""


@dataclass(frozen=True, kw_only=True)
class Ced(AudioSettings):
    """CED of a published size, or of your own."""

    name: ClassVar[str] = "ced"
    checkpoint_files: ClassVar[tuple[str, ...]] = WEIGHT_FILES
    size: str = setting("base", "published size", choices=tuple(SIZES))
    checkpoint: str | None = setting(
        None, "file, folder or hub id of the weights (mispeech/ced-base); none: random weights", path="if there"
    )
    allow_mismatch: tuple[str, ...] = setting((), "patterns of parameter names that the checkpoint need not match")
    clip_seconds: float = setting(
        30.0, "length of a window (s); model.windows says how longer clips are encoded", at_least=SHORTEST_WINDOW
    )
    num_blocks: int = setting(12, "transformer blocks", at_least=1, at_most=256)
    chunk_frames: int = setting(
        1012, "frames that are encoded at once; a longer clip is split and averaged", at_least=PATCH
    )
    dropout: float = setting(0.0, "share of the blocks' outputs that training sets to zero", at_least=0, below=1)

    @property
    def front_end(self) -> FrontEnd:
        return FrontEnd(
            sample_rate=16_000,
            window_size=512,
            hop_size=160,
            num_mels=64,
            low_hz=0.0,
            high_hz=8_000.0,
            mel_scale="htk",
            mel_norm="none",
            top_db=120.0,
            clip_seconds=self.clip_seconds,
            # One patch: 16 frames.
            minimum_samples=2_400,
        )

    def build(self) -> CedTower:
        tower, skip = CedTower(self), ("front_end.", "outputlayer.")
        return with_published(tower, self.checkpoint, tower.fitted, skip=skip, allowed=self.allow_mismatch)


class CedTower(AudioTower):
    """Patches of 16 x 16, position tables for time and frequency, pre-norm blocks, mean over the tokens.

    A clip longer than `chunk_frames` is split after the input norm; the last chunk is padded with zeros, and the means of the
    chunks are averaged with equal weight. This is as published, except that the published code drops the last chunk of a clip
    whose length is an exact multiple of the chunk.
    """

    def __init__(self, settings: Ced) -> None:
        super().__init__()
        self.front_end = settings.front_end
        self.width, num_heads = SIZES[settings.size]
        self.chunk_frames = settings.chunk_frames
        self.is_checkpointing = False
        num_mels = self.front_end.num_mels
        self.time_pos_embed = nn.Parameter(torch.randn(1, self.width, 1, self.chunk_frames // PATCH) * 0.02)
        self.freq_pos_embed = nn.Parameter(torch.randn(1, self.width, num_mels // PATCH, 1) * 0.02)
        # The published module transposes before and after: the batch norm is number 1 of three.
        self.init_bn = nn.Sequential(nn.Identity(), nn.BatchNorm1d(num_mels), nn.Identity())
        patches = nn.Conv2d(1, self.width, kernel_size=PATCH, stride=PATCH)
        self.patch_embed = nn.Sequential(OrderedDict(proj=patches))
        blocks = [Block(self.width, num_heads, settings.dropout) for _ in range(settings.num_blocks)]
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(self.width, eps=1e-6)

    def forward(self, features: Tensor, frames: Tensor) -> Encoded:
        normed = self.init_bn(features.transpose(1, 2)).transpose(1, 2)
        chunks, chunk_columns, owners = self._chunks(normed, frames)
        x = self.patch_embed(chunks.transpose(1, 2)[:, None])
        x = x + self.time_pos_embed[..., : x.shape[-1]] + self.freq_pos_embed
        rows, columns = x.shape[2], x.shape[3]
        # Tokens run frequency by frequency, each over all times.
        tokens = x.flatten(2).transpose(1, 2)
        mask = length_mask(chunk_columns, columns)[:, None, :].expand(-1, rows, -1).flatten(1)
        attention_mask = mask[:, None, None, :] if is_ragged(chunk_columns, columns) else None
        for block in self.blocks:
            tokens = self.run(block, tokens, attention_mask)
        tokens = self.norm(tokens)
        pooled = masked_mean(tokens, mask)
        if len(owners) == len(features):
            return Encoded(pooled, tokens, mask)
        return self._join(pooled, tokens, mask, owners, len(features))

    def _chunks(self, normed: Tensor, frames: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(chunks [C, T', F] of clips [N, T, F], the number of patch columns of each [C], the clip of each [C])."""
        size = self.chunk_frames
        if torch.compiler.is_exporting():
            # All clips are one chunk.
            return normed, frames // PATCH, torch.arange(len(frames), device=frames.device)
        counts = torch.clamp((frames + size - 1) // size, min=1)
        if int(counts.max()) == 1:
            longest = int(frames.max())
            return normed[:, :longest], frames // PATCH, torch.arange(len(frames), device=frames.device)
        owners = torch.repeat_interleave(torch.arange(len(frames), device=frames.device), counts)
        first = torch.cumsum(counts, 0) - counts
        starts = (torch.arange(len(owners), device=frames.device) - first[owners]) * size
        cleared = normed * length_mask(frames, normed.shape[1])[..., None].to(normed.dtype)
        padded = nn.functional.pad(cleared, (0, 0, 0, int(counts.max()) * size - normed.shape[1]))
        index = starts[:, None] + torch.arange(size, device=frames.device)[None, :]
        # A clip of one chunk is encoded without padding; a chunk of a longer one with it.
        return padded[owners[:, None], index], frames[owners].clamp(max=size) // PATCH, owners

    def _join(self, pooled: Tensor, tokens: Tensor, mask: Tensor, owners: Tensor, num_clips: int) -> Encoded:
        """The mean of each clip's chunk means, and the tokens of its chunks concatenated."""
        counts = torch.bincount(owners, minlength=num_clips)
        mean = pooled.new_zeros(num_clips, self.width).index_add(0, owners, pooled) / counts[:, None]
        place = torch.arange(len(owners), device=owners.device) - (torch.cumsum(counts, 0) - counts)[owners]
        longest, length = int(counts.max()), tokens.shape[1]
        joined = tokens.new_zeros(num_clips, longest, length, self.width).index_put((owners, place), tokens)
        joined_mask = mask.new_zeros(num_clips, longest, length).index_put((owners, place), mask)
        return Encoded(mean, joined.flatten(1, 2), joined_mask.flatten(1))

    def fitted(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors by published name, with position tables cut to this tower's size, or interpolated bilinearly if shorter.

        From a checkpoint of ML-CLAP, only those of its CED.
        """
        if any(name.startswith(ML_CLAP) for name in tensors):
            tensors = {name: value for name, value in tensors.items() if name.startswith(ML_CLAP)}
        fitted = {_published_name(name): value for name, value in tensors.items()}
        for name, wanted in (("time_pos_embed", self.time_pos_embed), ("freq_pos_embed", self.freq_pos_embed)):
            stored = fitted.get(name)
            if stored is None or stored.ndim != 4 or stored.shape == wanted.shape:
                continue
            if all(have >= want for have, want in zip(stored.shape[2:], wanted.shape[2:], strict=True)):
                fitted[name] = stored[:, :, : wanted.shape[2], : wanted.shape[3]]
            else:
                fitted[name] = nn.functional.interpolate(stored, wanted.shape[2:], mode="bilinear", align_corners=False)
        return fitted


class Attention(nn.Module):
    """Multi-head self-attention with one matrix for queries, keys and values."""

    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.proj_drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, attention_mask: Tensor | None) -> Tensor:
        C, L, W = x.shape
        q, k, v = self.qkv(x).view(C, L, 3, self.num_heads, W // self.num_heads).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=attention_mask)
        return self.proj_drop(self.proj(attended.transpose(1, 2).reshape(C, L, W)))


class Block(nn.Module):
    """Pre-norm attention and feed-forward on [C, L, W]."""

    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.attn = Attention(width, num_heads, dropout)
        fc1, fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.mlp = nn.Sequential(OrderedDict(fc1=fc1, gelu=nn.GELU(), fc2=fc2, drop=nn.Dropout(dropout)))

    def forward(self, x: Tensor, attention_mask: Tensor | None) -> Tensor:
        x = x + self.attn(self.norm1(x), attention_mask)
        return x + self.mlp(self.norm2(x))


def _published_name(name: str) -> str:
    """The published name of an entry with another distribution's name (Hugging Face, ML-CLAP checkpoints)."""
    for prefix in (ML_CLAP, "encoder."):
        name = name.removeprefix(prefix)
    return name.replace("init_bn.", "init_bn.1.", 1) if name.startswith("init_bn.") and name[8] not in "012" else name
