"""Embedding in chunks whose activations are not kept: gradient caching (Gao et al. 2021, "Scaling deep contrastive learning
batch size under memory limited setup").

The embeddings of all chunks enter the loss; when its gradient comes back to a chunk, the chunk is embedded again, with the
random state of the first time, so that dropout falls alike, and back-propagated. Exact, at the price of one more forward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def embed_in_chunks(embed: Callable[..., Tensor], inputs: Sequence[Tensor], chunk: int) -> Tensor:
    """embed(*inputs) [N, D] of inputs [N, ...], `chunk` rows at a time and embedded again backwards; chunk 0: as it is.

    `embed` must treat every row by itself. The inputs must be on the device that `embed` computes on: it is from them
    that its random generator is known.
    """
    if chunk == 0:
        return embed(*inputs)
    parts = zip(*(tensor.split(chunk) for tensor in inputs), strict=True)
    return torch.cat([embed_again(embed, *part) for part in parts])


def embed_again(embed: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """embed(*inputs) without its activations, which the backward pass computes again with the same random draws."""
    embedded: Tensor = checkpoint(embed, *inputs, use_reentrant=False)
    return embedded
