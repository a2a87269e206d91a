"""The interfaces of audio and text towers.

Shapes: N clips or texts, T frames, F mel bands, L tokens, W width of the tower.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from ray_atr.common.ranks import Ranks
from ray_atr.common.settings import Settings, setting
from ray_atr.data.audio import FrontEnd
from ray_atr.models.adaptation import Adaptation


class Encoded(NamedTuple):
    """A tower's output: one vector for each clip or text, and the tokens that it was pooled from."""

    pooled: Tensor
    """[N, W]"""
    tokens: Tensor
    """[N, L, W]; values outside of the mask have no meaning"""
    token_mask: Tensor
    """[N, L] bool"""


class Tower(nn.Module):
    """What audio and text towers have in common."""

    width: int
    """W"""
    saves_weights: bool = False
    """Whether `save` writes the weights too, which a saved retriever then holds nowhere else."""
    beyond_weights: str = ""
    """What decides its vectors beyond settings, weights and front end, such as the pooling in a checkpoint's configuration."""
    is_sharded: bool = False
    """Whether the weights are sharded over the workers (`models.sharding`)."""

    def save(self, folder: Path) -> None:
        """Write what `rebuild` of its settings needs besides these and the weights, such as the tokeniser."""


class AudioTower(Tower):
    """Log-mel frames to embeddings. An embedding depends on its own clip alone, not on its batch or padding."""

    front_end: FrontEnd
    is_checkpointing: bool
    """Whether `run` recomputes activations instead of storing them, in towers that support it."""
    trains_batch_norms: bool = False
    """Whether batch norms have the statistics of the batch in training, in towers that support it."""

    @abstractmethod
    def forward(self, features: Tensor, frames: Tensor) -> Encoded:
        """Encodes clips from log-mel frames [N, T, F]; the first `frames[n]` of clip n count, the rest is padding."""

    def run(self, block: nn.Module, *inputs: Any) -> Any:
        """A block's output, recomputed in the backward pass if `is_checkpointing`."""
        if self.is_checkpointing and torch.is_grad_enabled():
            return checkpoint(block, *inputs, use_reentrant=False)
        return block(*inputs)

    def train(self, mode: bool = True) -> Self:
        """Training mode. Unless `trains_batch_norms`, batch norms keep their statistics: an embedding ignores the batch."""
        super().train(mode)
        if self.trains_batch_norms:
            return self
        for module in self.modules():
            if isinstance(module, _BatchNorm):
                module.eval()
        return self


class TextTower(Tower):
    """Token ids to embeddings. An embedding depends on its own text alone."""

    pad_token_id: int
    reads_texts: bool = True
    """Whether it takes texts, and not only their vectors."""

    @abstractmethod
    def tokenise(self, texts: Sequence[str], languages: Sequence[str]) -> list[list[int]]:
        """Token ids of each text in its language (ISO 639-3)."""

    def knows(self, texts: Sequence[str], language: str) -> bool:
        """Whether `tokenise` accepts all of these texts: most towers accept any."""
        return True

    @abstractmethod
    def forward(self, token_ids: Tensor, token_mask: Tensor) -> Encoded:
        """Encodes texts from token ids [N, L]; `token_mask` [N, L] bool is True on tokens, False on padding."""


@dataclass(frozen=True, kw_only=True)
class AudioSettings(Settings):
    """Base of every audio tower's settings: gives its front end without building the tower, and builds the tower."""

    name: ClassVar[str]
    checkpoint_files: ClassVar[tuple[str, ...]] = ()
    """Names, or patterns of names: the folder of a checkpoint holds one of these files. Empty: not known."""
    is_convolutional: ClassVar[bool] = False
    """Whether it is a convolutional net, which `train.learning_rate=auto` gives a higher rate than a transformer."""
    blanks_after_norm: ClassVar[bool] = False
    """Whether its tower takes a third input `blank`, bool [N, T, F], and sets these values to 0 after its first batch norm."""

    adapt: Adaptation = setting(default_factory=Adaptation, help="which of the tower's weights are trained, and how")

    @property
    @abstractmethod
    def front_end(self) -> FrontEnd:
        """The front end that the tower's features come from."""

    @abstractmethod
    def build(self) -> AudioTower:
        """The tower with its initial or published weights."""

    def outline(self) -> AudioTower:
        """The tower's architecture from its settings and its checkpoint's configuration, without the checkpoint's weights.
        NotImplementedError for a tower whose architecture cannot be known without them.
        """
        unread: dict[str, Any] = {} if checkpoint_of(self) is None else {"checkpoint": None}
        return replace(self, **unread).build()

    def rebuild(self, folder: Path) -> AudioTower:
        """The tower's architecture from what its `save` wrote; its weights are loaded afterwards."""
        return self.outline()


@dataclass(frozen=True, kw_only=True)
class TextSettings(Settings):
    """Base of every text tower's settings."""

    name: ClassVar[str]
    checkpoint_files: ClassVar[tuple[str, ...]] = ()
    """As in `AudioSettings`."""

    adapt: Adaptation = setting(default_factory=Adaptation, help="which of the tower's weights are trained, and how")

    @property
    def trained_vocabulary(self) -> int:
        """Subwords of the tokeniser that is trained on the training captions; 0 if the tower brings its own."""
        return 0

    @abstractmethod
    def build(self, tokenizer: object | None = None) -> TextTower:
        """The tower with its initial or published weights."""

    def outline(self) -> TextTower:
        """As `AudioSettings.outline`; the vocabulary may be another."""
        raise NotImplementedError

    @abstractmethod
    def rebuild(self, folder: Path) -> TextTower:
        """The tower's architecture and tokeniser from what its `save` wrote; its weights are loaded afterwards."""


def length_mask(lengths: Tensor, size: int) -> Tensor:
    """[N, size] bool, True at the first `lengths[n]` positions of row n."""
    return torch.arange(size, device=lengths.device)[None, :] < lengths[:, None]


def is_ragged(frames: Tensor, longest: int) -> bool:
    """Whether a clip has fewer than `longest` frames. False in a graph that is being exported, which takes one length."""
    return not torch.compiler.is_exporting() and bool((frames < longest).any())


def clear(x: Tensor, lengths: Tensor | None) -> Tensor:
    """`x` [N, C, T, F] with zeros beyond each clip's end, as a convolution pads the clip by itself; None: unchanged."""
    return x if lengths is None else x * length_mask(lengths, x.shape[2])[:, None, :, None].to(x.dtype)


def masked_mean(tokens: Tensor, mask: Tensor) -> Tensor:
    """Mean [N, W] over the tokens [N, L, W] where the mask [N, L] is True; zero where a row has none."""
    weights = mask.to(tokens.dtype)[..., None]
    # `where`, because a masked token may be NaN, and NaN times zero is NaN.
    total = torch.where(mask[..., None], tokens, 0).sum(dim=1)
    return total / weights.sum(dim=1).clamp(min=1)


def pad_tokens(token_ids: Sequence[Sequence[int]], pad_token_id: int) -> tuple[Tensor, Tensor]:
    """Token lists as one tensor [N, L] int64 and its mask [N, L] bool, L the longest."""
    lengths = torch.tensor([len(ids) for ids in token_ids], dtype=torch.int64)
    mask = length_mask(lengths, int(lengths.max()) if len(lengths) else 0)
    padded = torch.full(mask.shape, pad_token_id, dtype=torch.int64)
    padded[mask] = torch.tensor([token for ids in token_ids for token in ids], dtype=torch.int64)
    return padded, mask


def encode_groups(
    groups: Sequence[tuple[Tensor, int]],
    encode: Callable[[Tensor, int], Encoded],
    length: int = 0,
    *,
    is_sharded: bool = False,
) -> Encoded:
    """The results of `encode(rows, longest)` for groups of rows, in the order of the rows; tokens padded to at least `length`.

    is_sharded: whether the weights are sharded over workers, which must then all encode as many groups.
    """
    most = len(groups)
    if is_sharded:
        # Before the first one is encoded: the order of exchanges is the same on all workers.
        most = int(Ranks.here().maximum(torch.tensor(most, device=groups[0][0].device)))
    parts = [encode(rows, longest) for rows, longest in groups]
    back = torch.argsort(torch.cat([rows for rows, _ in groups]))
    L = max(length, *(part.tokens.shape[1] for part in parts))
    pad = nn.functional.pad
    pooled = torch.cat([part.pooled for part in parts])[back]
    tokens = torch.cat([pad(part.tokens, (0, 0, 0, L - part.tokens.shape[1])) for part in parts])[back]
    mask = torch.cat([pad(part.token_mask, (0, L - part.tokens.shape[1])) for part in parts])[back]
    rows, longest = groups[0]
    for _ in range(most - len(groups)):
        # Its first row once more, whose gradient is zero.
        more = encode(rows[:1], longest)
        pooled, tokens = pooled + 0 * more.pooled.sum(), tokens + 0 * more.tokens.sum()
    return Encoded(pooled, tokens, mask)


def embed_by_length(
    embed: Callable[[Tensor, Tensor], Tensor],
    token_ids: Sequence[Sequence[int]],
    pad_token_id: int,
    *,
    bucket: int,
    width: int,
    device: torch.device,
) -> Tensor:
    """embed(token ids [n, L], mask [n, L]) -> [n, width] of all texts, in their order, with gradient.

    At most `bucket` texts of similar length are padded and embedded together, on `device`.
    """
    by_length = sorted(range(len(token_ids)), key=lambda row: len(token_ids[row]))
    buckets = [by_length[start : start + bucket] for start in range(0, len(by_length), bucket)]
    parts = [
        embed(*(part.to(device) for part in pad_tokens([token_ids[row] for row in rows], pad_token_id)))
        for rows in buckets
    ]
    if not parts:
        return torch.zeros(0, width, device=device)
    embedded = torch.cat(parts)
    return embedded[torch.tensor(by_length, device=embedded.device).argsort()]


def checkpoint_of(settings: AudioSettings | TextSettings) -> str | None:
    """The checkpoint of a tower's published weights; None if it has none."""
    return getattr(settings, "checkpoint", None)


def tower_fingerprint(tower: nn.Module) -> str:
    """SHA-256 (hex) of the tower's class, parameters, buffers, front end and `beyond_weights`: equal for towers that encode
    alike.
    """
    digest = hashlib.sha256(type(tower).__qualname__.encode())
    add_state(digest, tower)
    digest.update(repr(getattr(tower, "front_end", None)).encode())
    digest.update(getattr(tower, "beyond_weights", "").encode())
    return digest.hexdigest()


def add_state(digest: Any, module: nn.Module) -> None:
    """Add a module's parameters and buffers to a digest of hashlib or xxhash."""
    for name, tensor in sorted(module.state_dict().items()):
        value = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.flatten().view(torch.uint8).numpy())
