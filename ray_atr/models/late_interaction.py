"""Late interaction: similarities of clips and texts from all pairs of their tokens (`model.interaction=late`)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

ONLY_VECTORS = (
    "the model compares frames with tokens (model.interaction late), but only its pooled vectors are compared here; "
    "`ray-atr evaluate --ranking cosine` measures how well they rank"
)
"""The message of commands that use only one vector for each clip and text of a model of late interaction."""


def late_interaction(
    audio_tokens: Tensor, audio_mask: Tensor, text_tokens: Tensor, text_mask: Tensor, *, chunk: int = 16
) -> Tensor:
    """Similarities [N, M] of audio tokens [N, F, D] with text tokens [M, L, D]; masks [N, F], [M, L] bool say which count.

        s(a, t) = 1/2 [ mean over text tokens l of max over audio frames f of <a_f, t_l>
                      + mean over audio frames f of max over text tokens l of <a_f, t_l> ]

    For `Embeddings(similarity=...)`. Tokens are normalised here: results are in [-1, 1], and 0 for a clip or text without a
    token. `chunk` texts are compared at a time, and again in the backward pass: memory of [N, F, chunk, L].
    """
    audio = functional.normalize(torch.where(audio_mask[..., None], audio_tokens, 0), dim=-1)
    text = functional.normalize(torch.where(text_mask[..., None], text_tokens, 0), dim=-1)
    parts = [
        checkpoint(_block, audio, audio_mask, text[m : m + chunk], text_mask[m : m + chunk], use_reentrant=False)
        for m in range(0, len(text), chunk)
    ]
    return torch.cat(parts, dim=1)


def _block(audio: Tensor, audio_mask: Tensor, text: Tensor, text_mask: Tensor) -> Tensor:
    scores = torch.einsum("nfd,mld->nmfl", audio, text)
    # Below every cosine, and finite: rows without tokens are set to 0 below.
    over_frames = scores.masked_fill(~audio_mask[:, None, :, None], -2.0).amax(dim=2)
    over_words = scores.masked_fill(~text_mask[None, :, None, :], -2.0).amax(dim=3)
    frames, words = audio_mask.to(scores.dtype), text_mask.to(scores.dtype)
    by_words = (over_frames * words[None]).sum(dim=2) / words.sum(dim=1).clamp(min=1)
    by_frames = (over_words * frames[:, None]).sum(dim=2) / frames.sum(dim=1)[:, None].clamp(min=1)
    both_have_tokens = audio_mask.any(dim=1)[:, None] & text_mask.any(dim=1)
    return torch.where(both_have_tokens, 0.5 * (by_words + by_frames), torch.zeros_like(by_words))
