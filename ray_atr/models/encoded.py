"""Towers that stand in for frozen ones whose pooled vectors were computed once: they read what the others would compute.

A retriever with them (`Retriever.with_towers`) trains, validates and is copied like any other, and nothing around it changes:
a clip's features are its vector, as one frame [N, 1, W], and a caption's only token is the number of its vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from ray_atr.data.caption_vectors import Caption, CaptionVectors
from ray_atr.models.tower import AudioTower, Encoded, TextTower, embed_by_length


class EncodedAudio(AudioTower):
    """Takes a clip's pooled vector in the place of its log-mel frames, and passes it on."""

    def __init__(self, tower: AudioTower) -> None:
        super().__init__()
        self.front_end, self.width = tower.front_end, tower.width

    def forward(self, features: Tensor, frames: Tensor) -> Encoded:
        assert features.shape[1:] == (1, self.width), "the vectors of this tower, one a clip"
        return Encoded(features[:, 0], features, torch.ones_like(features[..., 0], dtype=torch.bool))


class EncodedText(TextTower):
    """Reads captions' vectors; a caption that is not among them is encoded once, when it is first met."""

    pad_token_id = 0

    def __init__(self, tower: TextTower, vectors: CaptionVectors) -> None:
        super().__init__()
        self.width, self.vectors = tower.width, vectors
        # In a tuple, so that the frozen tower is no part of this module: it is not moved, copied or saved with it.
        self._tower = (tower.eval(),)
        self._new_rows: dict[Caption, int] = {}
        self._new_vectors: list[Tensor] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # Nothing here is trained, and what is read is in a file.
        return self

    def tokenise(self, texts: Sequence[str], languages: Sequence[str]) -> list[list[int]]:
        """The number of each caption's vector, as its only token."""
        captions = list(zip(texts, languages, strict=True))
        rows = self.vectors.rows(captions).tolist()
        unknown = [caption for caption, row in zip(captions, rows, strict=True) if row < 0]
        self._encode([caption for caption in dict.fromkeys(unknown) if caption not in self._new_rows])
        return [[self._new_rows[caption] if row < 0 else row] for caption, row in zip(captions, rows, strict=True)]

    def forward(self, token_ids: Tensor, token_mask: Tensor) -> Encoded:
        rows = token_ids[:, 0].cpu().numpy()
        is_new = rows >= len(self.vectors)
        pooled = torch.empty(len(rows), self.width)
        pooled[torch.from_numpy(~is_new)] = torch.from_numpy(self.vectors.vectors(rows[~is_new]))
        for place in np.flatnonzero(is_new):
            pooled[place] = self._new_vectors[rows[place] - len(self.vectors)]
        pooled = pooled.to(token_ids.device)
        return Encoded(pooled, pooled[:, None], token_mask[:, :1])

    def save(self, folder: Path) -> None:
        raise NotImplementedError("a stand-in is not saved: the retriever that holds the frozen tower itself is")

    def _encode(self, captions: list[Caption]) -> None:
        pooled = encode_captions(self._tower[0], captions)
        for caption, vector in zip(captions, pooled, strict=True):
            self._new_rows[caption] = len(self.vectors) + len(self._new_vectors)
            self._new_vectors.append(vector)


@torch.no_grad()
def encode_captions(tower: TextTower, captions: Sequence[Caption], *, bucket: int = 256) -> Tensor:
    """Pooled vectors [n, W] float32 (CPU) of captions, encoded on the tower's device in buckets of similar length."""
    return embed_by_length(
        lambda tokens, mask: tower(tokens, mask).pooled.float().cpu(),
        tower.tokenise([text for text, _ in captions], [language for _, language in captions]),
        tower.pad_token_id,
        bucket=bucket,
        width=tower.width,
        device=next(tower.parameters()).device,
    ).cpu()
