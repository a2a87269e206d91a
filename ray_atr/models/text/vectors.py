"""The place of a text tower for data whose captions are vectors already: a caption is looked up, never encoded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ray_atr.data.caption_vectors import GIVEN, CaptionVectors, open_caption_vectors
from ray_atr.models.tower import Encoded, TextSettings, TextTower
from ray_atr.settings import refuse, setting
from ray_atr.storage import read_json

WIDTH_FILE = "vectors.json"


@dataclass(frozen=True, kw_only=True)
class TextVectors(TextSettings):
    """Looks captions up in a data set of vectors: what is trained is the projection alone."""

    name: ClassVar[str] = "vectors"

    data: str | None = setting(
        None,
        "folder of the data set that has the captions' vectors (`ray-atr prepare vectors`); none: data.source",
        path="always",
    )

    def build(self, tokenizer: object | None = None) -> TextVectorsTower:
        return TextVectorsTower(self.data, self._open().width)

    def rebuild(self, folder: Path) -> TextVectorsTower:
        return TextVectorsTower(self.data, int(read_json(folder / WIDTH_FILE)["width"]))

    def _open(self) -> CaptionVectors:
        if self.data is None:
            raise refuse("model.text.data", None, "the folder of a data set of vectors")
        return open_caption_vectors(Path(self.data) / GIVEN, is_cache=False)


class TextVectorsTower(TextTower):
    """A caption's only token is the row of its vector. Retrievers find the vectors' folder again by its path."""

    pad_token_id = 0

    def __init__(self, data: str | None, width: int) -> None:
        super().__init__()
        self.data, self.width = data, width

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        # Nothing here is trained, and what is read is in files.
        return self

    @cached_property
    def vectors(self) -> CaptionVectors:
        """The captions' vectors. ValueError if their folder is gone."""
        return open_caption_vectors(Path(self.data or "") / GIVEN, is_cache=False)

    def tokenise(self, texts: Sequence[str], languages: Sequence[str]) -> list[list[int]]:
        rows = self.vectors.rows(list(zip(texts, languages, strict=True))).tolist()
        if -1 in rows:
            place = rows.index(-1)
            raise refuse(
                f"caption in {languages[place]}",
                texts[place],
                f"captions of {self.data}, which are all that model.text=vectors knows, or vectors [N, {self.width}]",
            )
        return [[row] for row in rows]

    def forward(self, token_ids: Tensor, token_mask: Tensor) -> Encoded:
        found = self.vectors.vectors(token_ids[:, 0].cpu().numpy())
        pooled = torch.from_numpy(found).to(token_ids.device)
        return Encoded(pooled, pooled[:, None], token_mask[:, :1])

    def save(self, folder: Path) -> None:
        (folder / WIDTH_FILE).write_text(json.dumps({"width": self.width}) + "\n")
