"""The input of an objective: the embeddings of the global batch, or similarities in the place of their inner products."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ray_atr.common.settings import refuse


@dataclass(frozen=True, eq=False)
class Embeddings:
    """The embeddings of one global batch of B clips with texts in K languages (k = 0 is English).

    audio       [B, D], text [B, K, D]: rows get unit norm here, and half precision becomes float32, in which a loss over a batch
                is computed. Texts outside of the mask may hold anything, even NaN.
    mask        [B, K] bool: True if the text exists and was encoded; None: all. A text outside is no anchor, no positive
                and no negative.
    positives   [B, B] bool: True if two clips are no negatives of each other (the same clip twice, the same label, the
                same caption); None for the identity. The diagonal is always True.
    groups      [B, G] int64: the same as numbers: two clips that are equal in one of the G columns are no negatives of each
                other. Needs no mask of B^2 where workers share the rows of a loss. Not read if `positives` are given.
    similarity  [K, B, B]: takes the place of the inner products (rows audio, columns text); see `models.late_interaction`.

    Raises ValueError, with the tensor's name, if a shape or type does not fit, or if audio or a text is not finite.

    When: you call an objective in a loop of your own; training makes them itself.
    Related: `Objective` takes them; `pairs.Comparison` is what a scheme makes of them for a pair loss.

    >>> import torch
    >>> mask = torch.tensor([[True, True], [True, False]])
    >>> batch = Embeddings(audio=torch.randn(2, 8), text=torch.randn(2, 2, 8), mask=mask)
    >>> torch.allclose(batch.audio.norm(dim=1), torch.ones(2))
    True
    """

    audio: Tensor
    text: Tensor
    mask: Tensor | None = None
    positives: Tensor | None = None
    similarity: Tensor | None = None
    groups: Tensor | None = None

    def __post_init__(self) -> None:
        if self.audio.ndim != 2:
            raise refuse("embeddings.audio", tuple(self.audio.shape), "a tensor [B, D]")
        B, D = self.audio.shape
        if self.text.ndim != 3 or self.text.shape[0] != B or self.text.shape[2] != D:
            raise refuse("embeddings.text", tuple(self.text.shape), f"a tensor [B, K, D] with B = {B} and D = {D}")
        K, text = self.text.shape[1], self.text
        if self.mask is not None:
            _require_shape("embeddings.mask", self.mask, (B, K), torch.bool)
            text = text.masked_fill(~self.mask[:, :, None], 0.0)
        if self.positives is not None:
            _require_shape("embeddings.positives", self.positives, (B, B), torch.bool)
        if self.groups is not None:
            _require_shape("embeddings.groups", self.groups, (B, *self.groups.shape[1:2]), torch.int64)
        if self.similarity is not None:
            _require_shape("embeddings.similarity", self.similarity, (K, B, B), None)
            object.__setattr__(self, "similarity", _single_or_double(self.similarity))
        require_finite("embeddings.audio", self.audio)
        require_finite("embeddings.text", text)
        object.__setattr__(self, "audio", functional.normalize(_single_or_double(self.audio), dim=-1))
        object.__setattr__(self, "text", functional.normalize(_single_or_double(text), dim=-1))

    def available(self) -> Tensor:
        """The mask, bool [B, K]; all True if none was given."""
        text = self.text
        return torch.ones(text.shape[:2], dtype=torch.bool, device=text.device) if self.mask is None else self.mask


def _single_or_double(values: Tensor) -> Tensor:
    return values.to(torch.promote_types(values.dtype, torch.float32))


def require_finite(name: str, value: Tensor) -> None:
    """Raise ValueError if a tensor holds NaN or infinity."""
    if not bool(torch.isfinite(value).all()):
        raise refuse(name, f"{int((~torch.isfinite(value)).sum())} values that are NaN or infinite", "finite values")


def _require_shape(name: str, value: Tensor, shape: tuple[int, ...], dtype: torch.dtype | None) -> None:
    if tuple(value.shape) != shape:
        raise refuse(name, tuple(value.shape), f"a tensor of shape {list(shape)}")
    if dtype is not None and value.dtype != dtype:
        raise refuse(name, str(value.dtype), str(dtype))
