"""What the caller found for a batch outside of it, as an objective reads it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The Kn entries that each query of a batch of B clips found, best first, with both of their components.

    audio  [B, Q, Kn, D]: the entries' audio; Q = 1 for audio queries, the number of languages K for text queries.
    text   [B, T, Kn, D]: the entries' text. For audio queries T is the number of languages that the base holds (1 if it
           holds English alone); for text queries T = Q, and the text is in the language that was searched.
    valid  [B, Q, Kn] bool: False if fewer than Kn entries were there, or the query was absent. What stands there counts
           for nothing.
    like   [B, Q, Kn, B] bool: the clips of the batch that an entry is of, or has a caption of. None: not known.
    """

    audio: Tensor
    text: Tensor
    valid: Tensor
    like: Tensor | None = None

    def of(self, rows: Tensor, language: Tensor | None, text_language: Tensor | None) -> Found:
        """The neighbours [N, Kn, ...] of the given clips' queries in the given languages (None: the audio query).

        `text_language` is the language of the text component wanted of an audio query's neighbours.
        """
        wanted = text_language if language is None else language
        return Found(
            audio=self.audio[rows, _axis(self.audio, rows, language)],
            text=self.text[rows, _axis(self.text, rows, wanted)],
            valid=self.valid[rows, _axis(self.valid, rows, language)],
            like=None if self.like is None else self.like[rows, _axis(self.like, rows, language)],
        )


@dataclass(frozen=True, eq=False)
class Found:
    """The neighbours of N queries: audio and text [N, Kn, D], valid [N, Kn] bool, like [N, Kn, B] bool or None."""

    audio: Tensor
    text: Tensor
    valid: Tensor
    like: Tensor | None = None

    def component(self, is_audio: bool) -> Tensor:
        """The entries' audio or text, [N, Kn, D]."""
        return self.audio if is_audio else self.text

    def like_batch(self, rows: Tensor | None) -> Tensor:
        """[N, N] bool: the clips, of those at `rows` of the batch, that a query's valid neighbours are like."""
        if self.like is None:
            return torch.zeros(len(self.valid), len(self.valid), dtype=torch.bool, device=self.valid.device)
        like = (self.like & self.valid[:, :, None]).any(dim=1)
        return like if rows is None else like[:, rows]


@dataclass(frozen=True, eq=False)
class Granularity:
    """What one base (of single clips, or of prototypes) answered to the batch's audio and text queries."""

    by_audio: Neighbours
    by_text: Neighbours


@dataclass(frozen=True, eq=False)
class Retrieved:
    """What was found for a batch among single clips (`fine`) and among prototypes (`coarse`; None: not searched)."""

    fine: Granularity | None = None
    coarse: Granularity | None = None


@dataclass(frozen=True, eq=False)
class Queued:
    """Momentum encoders' keys of a batch and of earlier ones (MoCo).

    audio        [B, D], text [B, K, D]: keys of the batch's clips; what the batch's mask leaves out means nothing.
    queue_audio  [Q, D]: earlier keys, unit norm.
    queue_text   [Q, K, D], queue_mask [Q, K] bool: True if the text was there.
    negative     [B, Q] bool: False if a key is of the clip itself, or of a clip with its caption.
    """

    audio: Tensor
    text: Tensor
    queue_audio: Tensor
    queue_text: Tensor
    queue_mask: Tensor
    negative: Tensor


def _axis(tensor: Tensor, rows: Tensor, language: Tensor | None) -> Tensor:
    if language is None or tensor.shape[1] == 1:
        return torch.zeros_like(rows)
    return language
