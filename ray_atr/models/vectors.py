"""Towers whose inputs are vectors: a data set's own (from CLAP, BEATs, any encoder), or the cached ones of a frozen tower.

A retriever with a stand-in for its frozen tower (`Retriever.with_towers`) trains, validates and is copied like any other.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ray_atr.common.settings import refuse, setting
from ray_atr.common.storage import read_json
from ray_atr.data.audio import FrontEnd
from ray_atr.data.caption_vectors import GIVEN, Caption, CaptionVectors, open_caption_vectors
from ray_atr.models.tower import AudioSettings, AudioTower, Encoded, TextSettings, TextTower, embed_by_length

WIDTH_FILE = "vectors.json"


@dataclass(frozen=True, kw_only=True)
class AudioVectors(AudioSettings):
    """Returns a clip's vector unchanged: only the projection is trained."""

    name: ClassVar[str] = "vectors"
    width: int = setting(0, "numbers of a clip's vector; 0: as many as the data set's have", at_least=0)

    @property
    def front_end(self) -> FrontEnd:
        """The vector itself, as the only frame. ValueError while its width is unknown."""
        if self.width == 0:
            raise refuse("model.audio.width", 0, "the width of the vectors, if there is no data set to read it from")
        return FrontEnd(kind="vector", num_mels=self.width)

    def build(self) -> AudioVectorsTower:
        return AudioVectorsTower(self.front_end, self.width)


class AudioVectorsTower(AudioTower):
    """Takes features [N, 1, W], the clips' vectors: a data set's own, or the cached ones of a frozen tower."""

    def __init__(self, front_end: FrontEnd, width: int) -> None:
        super().__init__()
        self.front_end, self.width = front_end, width

    def forward(self, features: Tensor, frames: Tensor) -> Encoded:
        assert features.shape[1:] == (1, self.width), "the vectors of this tower, one a clip"
        return Encoded(features[:, 0], features, torch.ones_like(features[..., 0], dtype=torch.bool))


@dataclass(frozen=True, kw_only=True)
class TextVectors(TextSettings):
    """Looks up captions in a data set of vectors: only the projection is trained."""

    name: ClassVar[str] = "vectors"
    data: str | None = setting(
        None,
        "folder of the data set that has the captions' vectors (`ray-atr prepare vectors`); none: data.source",
        path="always",
    )

    def build(self, tokenizer: object | None = None) -> TextVectorsTower:
        if self.data is None:
            raise refuse("model.text.data", None, "the folder of a data set of vectors")
        return TextVectorsTower(self.data, open_caption_vectors(Path(self.data) / GIVEN, is_cache=False).width)

    def outline(self) -> TextVectorsTower:
        return self.build()

    def rebuild(self, folder: Path) -> TextVectorsTower:
        return TextVectorsTower(self.data, int(read_json(folder / WIDTH_FILE)["width"]))


class TextVectorsTower(TextTower):
    """A caption's only token is the row of its vector. A saved retriever stores the path of the vectors' folder."""

    pad_token_id = 0

    def __init__(self, data: str | None, width: int) -> None:
        super().__init__()
        self.data, self.width, self.reads_texts = data, width, data is not None

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # Nothing here is trained, and the vectors are in files.
        return self

    @cached_property
    def vectors(self) -> CaptionVectors:
        """The captions' vectors. ValueError if there are none, or their folder is missing."""
        if self.data is None:
            allowed = (
                "its vector, given to Retriever.encode_text: the model was made of vectors and has no encoder of texts"
            )
            raise refuse("text", "words", allowed)
        return open_caption_vectors(Path(self.data) / GIVEN, is_cache=False)

    def looked_up(self, rows: NDArray[np.int64]) -> Tensor:
        """The vectors [n, W] of rows [n]."""
        return torch.from_numpy(self.vectors.vectors(rows))

    def knows(self, texts: Sequence[str], language: str) -> bool:
        return bool((self.vectors.rows([(text, language) for text in texts]) >= 0).all())

    def tokenise(self, texts: Sequence[str], languages: Sequence[str]) -> list[list[int]]:
        rows = self.vectors.rows(list(zip(texts, languages, strict=True))).tolist()
        if -1 in rows:
            place = rows.index(-1)
            allowed = (
                f"captions of {self.data}, which are all that model.text=vectors knows, or vectors [N, {self.width}]"
            )
            raise refuse(f"caption in {languages[place]}", texts[place], allowed)
        return [[row] for row in rows]

    def forward(self, token_ids: Tensor, token_mask: Tensor) -> Encoded:
        pooled = self.looked_up(token_ids[:, 0].cpu().numpy()).to(token_ids.device)
        return Encoded(pooled, pooled[:, None], token_mask[:, :1])

    def save(self, folder: Path) -> None:
        (folder / WIDTH_FILE).write_text(json.dumps({"width": self.width}) + "\n", encoding="utf-8")


class EncodedText(TextVectorsTower):
    """Stands in for a frozen tower: a caption that is not among its vectors is encoded at its first use."""

    def __init__(self, tower: TextTower, vectors: CaptionVectors) -> None:
        super().__init__(None, tower.width)
        self.vectors, self.reads_texts = vectors, True
        # In a tuple, so that the frozen tower is no submodule: it is not moved, copied or saved with this one.
        self._tower = (tower.eval(),)
        self._new_rows: dict[Caption, int] = {}
        self._new_vectors: list[Tensor] = []

    def knows(self, texts: Sequence[str], language: str) -> bool:
        return self._tower[0].knows(texts, language)

    def tokenise(self, texts: Sequence[str], languages: Sequence[str]) -> list[list[int]]:
        captions = list(zip(texts, languages, strict=True))
        rows = self.vectors.rows(captions).tolist()
        unknown = [caption for caption, row in zip(captions, rows, strict=True) if row < 0]
        new = [caption for caption in dict.fromkeys(unknown) if caption not in self._new_rows]
        for caption, vector in zip(new, encode_captions(self._tower[0], new), strict=True):
            self._new_rows[caption] = len(self.vectors) + len(self._new_vectors)
            self._new_vectors.append(vector)
        return [[self._new_rows[caption] if row < 0 else row] for caption, row in zip(captions, rows, strict=True)]

    def looked_up(self, rows: NDArray[np.int64]) -> Tensor:
        is_new = rows >= len(self.vectors)
        vectors = torch.empty(len(rows), self.width)
        vectors[torch.from_numpy(~is_new)] = super().looked_up(rows[~is_new])
        for place in np.flatnonzero(is_new):
            vectors[place] = self._new_vectors[rows[place] - len(self.vectors)]
        return vectors

    def save(self, folder: Path) -> None:
        raise NotImplementedError("a stand-in is not saved: the retriever that holds the frozen tower itself is")


@torch.no_grad()
def encode_captions(tower: TextTower, captions: Sequence[Caption]) -> Tensor:
    """Pooled vectors [n, W] float32 (CPU) of captions, encoded on the tower's device in buckets of similar length."""
    return embed_by_length(
        lambda tokens, mask: tower(tokens, mask).pooled.float().cpu(),
        tower.tokenise([text for text, _ in captions], [language for _, language in captions]),
        tower.pad_token_id,
        bucket=256,
        width=tower.width,
        device=next(tower.parameters()).device,
    ).cpu()
