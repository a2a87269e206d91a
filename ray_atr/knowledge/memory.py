"""The memories of the baselines: a queue of embeddings (NNCLR's support set, MoCo's keys) and momentum encoders.

They live in the worker, outside the loss. Every worker pushes the same gathered batch, so their queues are equal.
"""

from __future__ import annotations

import copy
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from ray_atr.objectives.knowledge.retrieved import Granularity, Neighbours, Queued, Retrieved

Encoder = TypeVar("Encoder", bound=nn.Module)


class Queue:
    """First in, first out: the last `size` clips' audio [n, D], text [n, K, D] and which texts were there, mask [n, K]."""

    def __init__(self, size: int, width: int, languages: int, device: torch.device | str = "cpu") -> None:
        self.audio = torch.zeros(size, width, device=device)
        self.text = torch.zeros(size, languages, width, device=device)
        self.mask = torch.zeros(size, languages, dtype=torch.bool, device=device)
        self.next, self.filled = 0, 0

    def __len__(self) -> int:
        return self.filled

    @torch.no_grad()
    def push(self, audio: Tensor, text: Tensor, mask: Tensor | None = None) -> None:
        """Add a batch, the oldest leaving. A batch that crosses the buffer's end goes on at its start."""
        size = len(self.audio)
        kept = slice(max(0, len(audio) - size), None)
        rows = (self.next + torch.arange(len(audio), device=self.audio.device)[kept]) % size
        there = torch.ones(text.shape[:2], dtype=torch.bool, device=self.mask.device) if mask is None else mask
        self.audio[rows] = audio[kept].detach().to(self.audio)
        self.text[rows] = torch.where(there[kept][:, :, None], text[kept].detach(), 0).to(self.text)
        self.mask[rows] = there[kept].to(self.mask.device)
        self.next = (self.next + len(audio)) % size
        self.filled = min(size, self.filled + len(audio))

    @torch.no_grad()
    def keys(self, audio: Tensor, text: Tensor) -> Queued:
        """MoCo's view: the batch's own keys beside the earlier ones."""
        n = self.filled
        return Queued(audio, text, self.audio[:n].clone(), self.text[:n].clone(), self.mask[:n].clone())

    @torch.no_grad()
    def nearest(self, audio: Tensor, text: Tensor) -> Retrieved:
        """NNCLR's view: the nearest earlier embedding of each query's own modality and language; empty: nothing retrieved."""
        if self.filled == 0:
            return Retrieved()
        n, K = self.filled, text.shape[1]
        own_audio = (audio @ self.audio[:n].T).argmax(dim=1)
        # A language that no queued clip had leaves all at -inf: argmax is then a row whose mask is False.
        by_language = torch.einsum("bkd,nkd->bkn", text, self.text[:n])
        own_text = by_language.masked_fill(~self.mask[:n].T[None], -torch.inf).argmax(dim=2)
        language = torch.arange(K, device=text.device).expand(len(text), K)
        return Retrieved(
            fine=Granularity(
                Neighbours(
                    self.audio[own_audio][:, None, None],
                    self.text[own_audio][:, :, None],
                    torch.ones(len(audio), 1, 1, dtype=torch.bool, device=audio.device),
                ),
                Neighbours(
                    self.audio[own_text][:, :, None],
                    self.text[own_text, language][:, :, None],
                    self.mask[own_text, language][:, :, None],
                ),
            )
        )

    def state_dict(self) -> dict[str, Any]:
        """Tensors and numbers, for a checkpoint."""
        return {"audio": self.audio, "text": self.text, "mask": self.mask, "next": self.next, "filled": self.filled}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint. ValueError where it is of another size."""
        if state["text"].shape != self.text.shape:
            raise ValueError(f"queue: got {tuple(state['text'].shape)}; allowed {tuple(self.text.shape)}, as set")
        for name in ("audio", "text", "mask"):
            getattr(self, name).copy_(state[name])
        self.next, self.filled = int(state["next"]), int(state["filled"])


class Momentum(Generic[Encoder]):
    """A copy of a module whose weights follow it slowly: theta' <- m theta' + (1 - m) theta after each optimiser step."""

    def __init__(self, module: Encoder, momentum: float) -> None:
        self.module: Encoder = copy.deepcopy(module).requires_grad_(False)
        self.momentum = momentum

    @torch.no_grad()
    def update(self, module: Encoder) -> None:
        """One step after `module`. Buffers and integer weights are copied."""
        followed = dict(module.named_parameters())
        for name, mine in self.module.named_parameters():
            mine.lerp_(followed[name].detach().to(mine), 1 - self.momentum)
        buffers = dict(module.named_buffers())
        for name, buffer in self.module.named_buffers():
            buffer.copy_(buffers[name])
