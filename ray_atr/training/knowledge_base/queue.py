"""A queue of embeddings: NNCLR's support set, MoCo's keys. Every worker pushes the same gathered batch, so queues are equal."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ray_atr.objectives.knowledge.knowledge import Granularity, Neighbours, Queued, Retrieved


class Identity(NamedTuple):
    """Whose the clips of a batch are, as numbers int64 [n]: `clip` stands for the clip, `group` for its group of positives."""

    clip: Tensor
    group: Tensor

    def is_like(self, other: Identity) -> Tensor:
        """[n, m] bool: of the same clip, or in the same group."""
        return (self.clip[:, None] == other.clip) | (self.group[:, None] == other.group)


NOBODY = -1
"""The number of no clip and no group: what the free places of a queue hold."""


class Queue:
    """First in, first out: the last `size` clips' audio [n, D], text [n, K, D], mask [n, K] (texts that are there), whose, and
    whether the clip and its caption are taken to belong together, [n].
    """

    def __init__(self, size: int, width: int, languages: int, device: torch.device | str = "cpu") -> None:
        self.whose = Identity(*(torch.full((size,), NOBODY, device=device) for _ in range(2)))
        self.audio = torch.zeros(size, width, device=device)
        self.text = torch.zeros(size, languages, width, device=device)
        self.mask = torch.zeros(size, languages, dtype=torch.bool, device=device)
        self.is_clean = torch.ones(size, dtype=torch.bool, device=device)
        self.next, self.filled = 0, 0

    @torch.no_grad()
    def push(
        self,
        whose: Identity,
        audio: Tensor,
        text: Tensor,
        mask: Tensor | None = None,
        is_clean: Tensor | None = None,
    ) -> None:
        """Add a batch, the oldest leaving. A batch that crosses the buffer's end continues at its start."""
        size = len(self.audio)
        newest = slice(max(0, len(audio) - size), None)
        rows = (self.next + torch.arange(len(audio), device=self.audio.device)[newest]) % size
        is_present = torch.ones(text.shape[:2], dtype=torch.bool, device=self.mask.device) if mask is None else mask
        self.audio[rows] = audio[newest].detach().to(self.audio)
        self.text[rows] = torch.where(is_present[newest][:, :, None], text[newest].detach(), 0).to(self.text)
        self.mask[rows] = is_present[newest].to(self.mask.device)
        self.is_clean[rows] = True if is_clean is None else is_clean[newest].to(self.is_clean.device)
        for mine, theirs in zip(self.whose, whose, strict=True):
            mine[rows] = theirs[newest].to(mine)
        self.next = (self.next + len(audio)) % size
        self.filled = min(size, self.filled + len(audio))

    @torch.no_grad()
    def keys(self, whose: Identity, audio: Tensor, text: Tensor) -> Queued:
        """MoCo's view: the batch's own keys besides the earlier ones, and which of those are its negatives."""
        n = self.filled
        negative = ~whose.is_like(self._filled_by)
        return Queued(audio, text, self.audio[:n].clone(), self.text[:n].clone(), self.mask[:n].clone(), negative)

    def is_of(self, whose: Identity) -> Tensor:
        """[n] bool: which of the earlier embeddings are of the clips of a batch."""
        return torch.isin(self._filled_by.clip, whose.clip)

    @property
    def _filled_by(self) -> Identity:
        return Identity(*(numbers[: self.filled] for numbers in self.whose))

    @torch.no_grad()
    def nearest(self, whose: Identity, audio: Tensor, text: Tensor) -> Retrieved:
        """NNCLR's view: the nearest earlier embedding of each query's own modality and language; empty: nothing retrieved."""
        if self.filled == 0:
            return Retrieved()
        n, K = self.filled, text.shape[1]
        own_audio = (audio @ self.audio[:n].T).argmax(dim=1)
        # A language that no queued clip had leaves all at -inf: argmax is then a row whose mask is False.
        by_language = torch.einsum("bkd,nkd->bkn", text, self.text[:n])
        own_text = by_language.masked_fill(~self.mask[:n].T[None], -torch.inf).argmax(dim=2)
        language = torch.arange(K, device=text.device).expand(len(text), K)
        like = self._filled_by.is_like(whose)
        # A clip has no part in its group by a caption that is not taken for its own.
        audio_like = like & (self.is_clean[:n, None] | (self._filled_by.clip[:, None] == whose.clip))
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
        return {**tensors, **self.whose._asdict(), "next": self.next, "filled": self.filled}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint. ValueError if it is of another size."""
        if state["text"].shape != self.text.shape:
            raise ValueError(f"queue: got {tuple(state['text'].shape)}; allowed {tuple(self.text.shape)}, as set")
        for name in ("audio", "text", "mask", "is_clean"):
            getattr(self, name).copy_(state[name])
        for name, numbers in self.whose._asdict().items():
            numbers.copy_(state[name])
        self.next, self.filled = int(state["next"]), int(state["filled"])
