"""What the caller found for a batch outside of it, as an objective reads it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ray_atr.objectives.knowledge.reliability import consistency, potential
from ray_atr.objectives.pairs.pair_loss import Comparison


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


@dataclass(frozen=True, eq=False)
class Found:
    """The neighbours of the N queries of one side of a comparison, as `Neighbours` has them for a batch.

    own      [N, Kn, D]: the entries' component in the modality of the query.
    partner  [N, Kn, D]: that in the modality of the comparison's other side.
    valid    [N, Kn] bool.
    like     [N, Kn, B] bool, or None.
    """

    own: Tensor
    partner: Tensor
    valid: Tensor
    like: Tensor | None = None

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

    def found(self, rows: Tensor, language: Tensor | None, partner_language: Tensor | None) -> Found:
        """What the given clips' queries found, in the given languages and for partners in theirs; None stands for audio."""
        queries = self.by_audio if language is None else self.by_text
        audio = _in_language(queries.audio, rows, language)
        text = _in_language(queries.text, rows, partner_language if language is None else language)
        return Found(
            own=audio if language is None else text,
            partner=audio if partner_language is None else text,
            valid=_in_language(queries.valid, rows, language),
            like=None if queries.like is None else _in_language(queries.like, rows, language),
        )


@dataclass(frozen=True, eq=False)
class Sides:
    """What the two sides of a comparison found in one base."""

    u: Found
    v: Found

    @classmethod
    def of(cls, comparison: Comparison, granularity: Granularity) -> Sides:
        """The part of a batch's neighbours that the comparison's rows and languages are concerned with."""
        rows = comparison.rows
        if rows is None:
            rows = torch.arange(comparison.size, device=comparison.u.device)
        u_language, v_language = comparison.u_language, comparison.v_language
        return cls(
            u=granularity.found(rows, u_language, v_language),
            v=granularity.found(rows, v_language, u_language),
        )

    def potentials(self, comparison: Comparison) -> tuple[Tensor, Tensor]:
        """phi [N] of the rows' queries u and of the columns' queries v (Eq. 11-13)."""
        u, v = self.u, self.v
        phi_u = potential(comparison.u, u.partner, consistency(u.partner, v.own, v.valid), u.valid)
        phi_v = potential(comparison.v, v.partner, consistency(v.partner, u.own, u.valid), v.valid)
        return phi_u, phi_v


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


def _in_language(tensor: Tensor, rows: Tensor, language: Tensor | None) -> Tensor:
    return tensor[rows, 0 if language is None or tensor.shape[1] == 1 else language]
