"""What an audio tower and a text tower promise, so that every objective trains every pair of them.

Shapes: N clips or texts, T frames, F mel bands, L tokens, W width of the tower.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from ray_atr.data.audio import FrontEnd
from ray_atr.settings import Settings


class Encoded(NamedTuple):
    """What a tower returns: one vector a clip or text, and the tokens it was pooled from."""

    pooled: Tensor
    """[N, W]"""
    tokens: Tensor
    """[N, L, W]; what stands at a position outside the mask means nothing"""
    token_mask: Tensor
    """[N, L] bool"""


class AudioTower(nn.Module):
    """Log-mel frames to embeddings. An embedding depends on its own clip alone, never on batch-mates or padding."""

    front_end: FrontEnd
    width: int

    @abstractmethod
    def forward(self, features: Tensor, frames: Tensor) -> Encoded:
        """Encodes clips from log-mel frames [N, T, F]; the first `frames[n]` of clip n count, the rest is padding."""

    def layers(self) -> list[list[nn.Module]]:
        """The tower's depth levels, input first: what layer-wise decay and partial freezing count."""
        return [[self]]


class TextTower(nn.Module):
    """Token ids to embeddings. An embedding depends on its own text alone."""

    width: int
    pad_token_id: int

    @abstractmethod
    def tokenise(self, texts: Sequence[str], languages: Sequence[str]) -> list[list[int]]:
        """Token ids of each text in its language (ISO 639-3)."""

    @abstractmethod
    def forward(self, token_ids: Tensor, token_mask: Tensor) -> Encoded:
        """Encodes texts from token ids [N, L]; `token_mask` [N, L] bool is True on tokens, False on padding."""

    def layers(self) -> list[list[nn.Module]]:
        """The tower's depth levels, input first."""
        return [[self]]


class AudioSettings(Settings):
    """Base of every audio tower's settings: says its front end without building the tower, and builds it."""

    name: ClassVar[str]

    @property
    @abstractmethod
    def front_end(self) -> FrontEnd:
        """The front end that the tower's features come from."""

    @abstractmethod
    def build(self) -> AudioTower:
        """The tower with its initial or published weights."""


class TextSettings(Settings):
    """Base of every text tower's settings."""

    name: ClassVar[str]
    trains_tokenizer: ClassVar[bool] = False
    """Whether the tower needs a tokeniser trained on the training captions."""

    @abstractmethod
    def build(self, tokenizer: object | None = None) -> TextTower:
        """The tower with its initial or published weights."""


def length_mask(lengths: Tensor, size: int) -> Tensor:
    """[N, size] bool, True at the first `lengths[n]` positions of row n."""
    return torch.arange(size, device=lengths.device)[None, :] < lengths[:, None]


def masked_mean(tokens: Tensor, mask: Tensor) -> Tensor:
    """Mean [N, W] over the tokens [N, L, W] where the mask [N, L] is True; zero where a row has none."""
    weights = mask.to(tokens.dtype)[..., None]
    # A masked token may hold anything, NaN too, and NaN times zero is NaN.
    total = torch.where(mask[..., None], tokens, 0).sum(dim=1)
    return total / weights.sum(dim=1).clamp(min=1)


def pad_tokens(token_ids: Sequence[Sequence[int]], pad_token_id: int) -> tuple[Tensor, Tensor]:
    """Token lists as one tensor [N, L] int64 and its mask [N, L] bool, L the longest."""
    lengths = torch.tensor([len(ids) for ids in token_ids], dtype=torch.int64)
    mask = length_mask(lengths, int(lengths.max()) if len(lengths) else 0)
    padded = torch.full(mask.shape, pad_token_id, dtype=torch.int64)
    padded[mask] = torch.tensor([token for ids in token_ids for token in ids], dtype=torch.int64)
    return padded, mask


def tower_fingerprint(tower: nn.Module) -> str:
    """SHA-256 (hex) of the tower's class, parameters and buffers: equal for towers that encode alike."""
    digest = hashlib.sha256(type(tower).__qualname__.encode())
    for name, tensor in sorted(tower.state_dict().items()):
        value = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.flatten().view(torch.uint8).numpy().tobytes())
    front_end = getattr(tower, "front_end", None)
    digest.update(repr(front_end).encode())
    return digest.hexdigest()
