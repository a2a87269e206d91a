"""Clips and captions to vectors, a bounded number in memory at a time: without a gradient, or with it in chunks.

Chunks are gradient caching (Gao et al. 2021, "Scaling deep contrastive learning batch size under memory limited
setup"): their activations are not kept. The embeddings of all chunks enter the loss; when its gradient comes back to a
chunk, it is embedded again, with the random state of the first time, so that dropout is the same, and back-propagated.
Exact, at the cost of one more forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ray_atr.data.features import FeatureSet
from ray_atr.models.retriever import Retriever


class ClipBatch(NamedTuple):
    """Windows of clips.

    features  [m, T, F] float32.
    frames    [m]: how many of a window's frames are not padding.
    clips     [m]: the window's clip, numbered from 0 within a pass; the windows of a clip are consecutive.
    """

    features: Tensor
    frames: Tensor
    clips: Tensor


@torch.no_grad()
def encode_clips(
    embed: Callable[[Tensor, Tensor], Tensor],
    batches: Iterable[ClipBatch],
    *,
    width: int,
    device: torch.device,
    pool: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> Tensor:
    """The rows of `embed(features, frames)` -> [m, width] of all batches, on the device that `embed` returns them on.

    `pool(embedded [M, width], clips [M])` combines the windows of each clip to [N, width]; None: a row for each window.
    """
    parts, clips = [], []
    for batch in batches:
        parts.append(embed(batch.features.to(device), batch.frames.to(device)))
        clips.append(batch.clips)
    if not parts:
        return torch.zeros(0, width, device=device)
    embedded = torch.cat(parts)
    return embedded if pool is None else pool(embedded, torch.cat(clips).to(embedded.device))


def embed_batches(retriever: Retriever, batches: Iterable[ClipBatch]) -> Tensor:
    """The retriever's unit-norm embeddings of the batches' clips, [N, D], on its device; a clip's windows are pooled."""
    width, device = retriever.settings.embedding_width, retriever.device
    return encode_clips(retriever.embed_audio, batches, width=width, device=device, pool=retriever.pool_windows)


def clip_batches(features: FeatureSet, parts: Iterable[NDArray[np.int64]]) -> Iterator[ClipBatch]:
    """Batches of the cached windows of clips. Each part is the row numbers [b] of some clips; a batch has at most b windows."""
    first = 0
    for rows in parts:
        counts = features.num_windows[rows]
        clips = np.repeat(np.arange(len(rows)), counts)
        windows = np.concatenate([np.arange(count) for count in counts]) if len(rows) else clips
        for part in rows_in_parts(0, len(clips), max(1, len(rows))):
            array, frames = features.features(rows[clips[part]], windows[part])
            yield as_clip_batch(array, frames, first + clips[part])
        first += len(rows)


def as_clip_batch(array: NDArray[np.generic], frames: NDArray[np.generic], clips: NDArray[np.int64]) -> ClipBatch:
    """Stored features, converted to the number types that towers take."""
    features = torch.from_numpy(array.astype(np.float32))
    return ClipBatch(features, torch.from_numpy(frames.astype(np.int64)), torch.from_numpy(clips.astype(np.int64)))


def rows_in_parts(first: int, end: int, size: int) -> list[NDArray[np.int64]]:
    """The row numbers from `first` to before `end`, at most `size` at a time."""
    return [np.arange(start, min(start + size, end)) for start in range(first, end, size)]


def embed_in_chunks(embed: Callable[..., Tensor], inputs: Sequence[Tensor], chunk: int) -> Tensor:
    """embed(*inputs) [N, D] of inputs [N, ...], `chunk` rows at a time, embedded again in the backward pass; 0: all at once.

    `embed` must treat every row by itself. The inputs must be on the device that `embed` computes on: torch saves the random
    state of their device.
    """
    if chunk == 0:
        return embed(*inputs)
    parts = zip(*(tensor.split(chunk) for tensor in inputs), strict=True)
    return torch.cat([embed_again(embed, *part) for part in parts])


def embed_again(embed: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """embed(*inputs) without its activations, which the backward pass computes again with the same random draws."""
    embedded: Tensor = checkpoint(embed, *inputs, use_reentrant=False)
    return embedded
