"""The module of a SentenceTransformer that embeds with a retriever. Needs the extra `sentence-transformers`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sentence_transformers.base.modules import InputModule

from ray_atr.common.settings import refuse
from ray_atr.models.retriever import Retriever


class RetrieverModule(InputModule):
    """The only module of such a model: `forward` does all of the encoding."""

    save_in_root = True

    def __init__(self, retriever: Retriever, language: str) -> None:
        super().__init__()
        self.retriever, self.language = retriever, language

    @property
    def modalities(self) -> list[Any]:
        return ["text", "audio"]

    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, **kwargs: Any) -> dict[str, Any]:
        """The unchanged inputs. ValueError for a mix of texts and clips, or anything else."""
        if all(isinstance(one, str) for one in inputs):
            return {"texts": [f"{prompt or ''}{text}" for text in inputs], "modality": "text"}
        clips = [one.get("audio", one) if isinstance(one, dict) else None for one in inputs]
        if any(not isinstance(clip, dict) or {"array", "sampling_rate"} - clip.keys() for clip in clips):
            allowed = 'texts alone, or clips alone, each {"array": [S], "sampling_rate": Hz}'
            raise refuse("inputs", [type(one).__name__ for one in inputs][:3], allowed)
        return {"clips": clips, "modality": "audio"}

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Adds `sentence_embedding` [N, r]."""
        if "texts" in features:
            vectors = self.retriever.encode_text(features["texts"], self.language)
        else:
            vectors = torch.cat(
                [
                    self.retriever.encode_audio([np.asarray(clip["array"])], int(clip["sampling_rate"]))
                    for clip in features["clips"]
                ]
            )
        return {**features, "sentence_embedding": vectors.to(self.retriever.device)}

    def get_embedding_dimension(self) -> int:
        """Width r of the vectors."""
        return self.retriever.vector_width

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Always ValueError: the export writes a folder that the library can open."""
        raise refuse("save", output_path, "ray-atr export --to sentence-transformers, or Retriever.save_pretrained")
