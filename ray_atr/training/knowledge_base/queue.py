"""A queue of embeddings: NNCLR's support set, MoCo's keys. Every worker pushes the same gathered batch, so queues are equal."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ray_atr.objectives.knowledge.knowledge import Granularity, Neighbours, Queued, Retrieved


class Identity(NamedTuple):
    """Which clips a batch holds, as numbers int64 [n]: of the clip itself, and of its group of positives."""

    clip: Tensor
    group: Tensor

    def is_like(self, other: Identity) -> Tensor:
        """Which pairs are of the same clip or in the same group, bool [n, m]."""
        return (self.clip[:, None] == other.clip) | (self.group[:, None] == other.group)


NO_CLIP = -1
"""Stands for no clip and no group, in the free places of a queue."""
ROUNDING = 1e-6
"""By which cosines of equal rows may differ."""


class Queue:
    """The last `size` clips: audio [n, D], text [n, K, D], mask [n, K] of existing texts, their identity, and `is_clean` [n],
    whether the clip and its caption are taken for a true pair.
    """

    def __init__(self, size: int, width: int, languages: int, device: torch.device | str = "cpu") -> None:
        self.identity = Identity(*(torch.full((size,), NO_CLIP, device=device) for _ in range(2)))
        self.audio = torch.zeros(size, width, device=device)
        self.text = torch.zeros(size, languages, width, device=device)
        self.mask = torch.zeros(size, languages, dtype=torch.bool, device=device)
        self.is_clean = torch.ones(size, dtype=torch.bool, device=device)
        self.next, self.filled = 0, 0

    @torch.no_grad()
    def push(
        self,
        identity: Identity,
        audio: Tensor,
        text: Tensor,
        mask: Tensor | None = None,
        is_clean: Tensor | None = None,
    ) -> None:
        """Add a batch in the place of the oldest entries. A batch that crosses the buffer's end continues at its start."""
        size = len(self.audio)
        newest = slice(max(0, len(audio) - size), None)
        rows = (self.next + torch.arange(len(audio), device=self.audio.device)[newest]) % size
        is_present = torch.ones(text.shape[:2], dtype=torch.bool, device=self.mask.device) if mask is None else mask
        self.audio[rows] = audio[newest].detach().to(self.audio)
        self.text[rows] = torch.where(is_present[newest][:, :, None], text[newest].detach(), 0).to(self.text)
        self.mask[rows] = is_present[newest].to(self.mask.device)
        self.is_clean[rows] = True if is_clean is None else is_clean[newest].to(self.is_clean.device)
        for mine, theirs in zip(self.identity, identity, strict=True):
            mine[rows] = theirs[newest].to(mine)
        self.next = (self.next + len(audio)) % size
        self.filled = min(size, self.filled + len(audio))

    @torch.no_grad()
    def keys(self, identity: Identity, audio: Tensor, text: Tensor) -> Queued:
        """For MoCo: the batch's own keys, the earlier ones, and which of the earlier ones are its negatives."""
        n = self.filled
        negative = ~identity.is_like(self._filled_by)
        return Queued(audio, text, self.audio[:n].clone(), self.text[:n].clone(), self.mask[:n].clone(), negative)

    def is_of(self, identity: Identity) -> Tensor:
        """Which of the earlier embeddings are of clips of a batch, bool [n]."""
        return torch.isin(self._filled_by.clip, identity.clip)

    @property
    def _filled_by(self) -> Identity:
        return Identity(*(numbers[: self.filled] for numbers in self.identity))

    @torch.no_grad()
    def nearest(self, identity: Identity, audio: Tensor, text: Tensor) -> Retrieved:
        """For NNCLR: the nearest earlier embedding of each query's own modality and language; empty while the queue is."""
        if self.filled == 0:
            return Retrieved()
        n, K = self.filled, text.shape[1]
        own_audio = _first_of_the_best(audio @ self.audio[:n].T)
        # A language that no queued clip had leaves all at -inf: the first row is then found, whose mask is False.
        by_language = torch.einsum("bkd,nkd->bkn", text, self.text[:n])
        own_text = _first_of_the_best(by_language.masked_fill(~self.mask[:n].T[None], -torch.inf))
        language = torch.arange(K, device=text.device).expand(len(text), K)
        like = self._filled_by.is_like(identity)
        # A clip whose pair is not clean is no positive by its caption, only by its own id.
        audio_like = like & (self.is_clean[:n, None] | (self._filled_by.clip[:, None] == identity.clip))
        by_audio = Neighbours(
            self.audio[own_audio][:, None, None],
            self.text[own_audio][:, :, None],
            torch.ones(len(audio), 1, 1, dtype=torch.bool, device=audio.device),
            audio_like[own_audio][:, None, None],
            own_audio[:, None, None],
        )
        by_text = Neighbours(
            self.audio[own_text][:, :, None],
            self.text[own_text, language][:, :, None],
            self.mask[own_text, language][:, :, None],
            like[own_text][:, :, None],
            own_text[:, :, None],
        )
        return Retrieved(fine=Granularity(by_audio, by_text))

    def state_dict(self) -> dict[str, Any]:
        """Tensors and numbers, for a checkpoint."""
        tensors = {name: getattr(self, name) for name in ("audio", "text", "mask", "is_clean")}
        return {**tensors, **self.identity._asdict(), "next": self.next, "filled": self.filled}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint. ValueError if it is of another size."""
        if state["text"].shape != self.text.shape:
            raise ValueError(f"queue: got {tuple(state['text'].shape)}; allowed {tuple(self.text.shape)}, as set")
        for name in ("audio", "text", "mask", "is_clean"):
            getattr(self, name).copy_(state[name])
        for name, numbers in self.identity._asdict().items():
            numbers.copy_(state[name])
        self.next, self.filled = int(state["next"]), int(state["filled"])


def _first_of_the_best(scores: Tensor) -> Tensor:
    """The place of the first of the largest scores [..., n]: those of equal texts differ by rounding, and their clips differ."""
    return (scores >= scores.amax(dim=-1, keepdim=True) - ROUNDING).byte().argmax(dim=-1)
