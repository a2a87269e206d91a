"""A worker's share of a batch, embedded: what a step learns from, whatever the model's interaction."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ray_atr.encoding.chunks import embed_in_chunks
from ray_atr.encoding.texts import TextBatcher
from ray_atr.knowledge.memory import WorkerBatch
from ray_atr.models.retriever import Retriever
from ray_atr.training.batch import Batch
from ray_atr.training.group import WorkerGroup


def embed_batch(retriever: Retriever, batch: Batch, chunk: int = 0) -> Tensor:
    """Embeddings [b, D] of the share's clips, pooled from the windows that are heard; `chunk` windows embedded at a time."""
    inputs = batch.features.to(retriever.device), batch.frames.to(retriever.device)
    embedded = embed_in_chunks(retriever.embed_audio, inputs, chunk)
    return retriever.pool_windows(embedded, batch.clips.to(embedded.device))


class Share:
    """The share's clips and texts, `chunk` of them embedded at a time; needed [b, K] bool says which texts."""

    def __init__(
        self, retriever: Retriever, texts: TextBatcher, batch: Batch, needed: Tensor, *, chunk: int, autocast: bool
    ) -> None:
        self.retriever, self.texts, self.batch, self.needed, self.chunk = retriever, texts, batch, needed, chunk
        self.device = retriever.device
        self.is_cast = autocast

    def audio(self) -> Tensor:
        """[b, D]."""
        with self.autocast():
            return self._audio(self.retriever)

    def text(self, columns: Tensor) -> Tensor:
        """[b, K, D] of the languages with True in columns [K]; zeros if no text is needed."""
        with self.autocast():
            return self._text(self.texts, columns)

    def similarity(self, group: WorkerGroup) -> Tensor | None:
        """What takes the place of the embeddings' inner products, [K, B, B]: nothing."""
        return None

    @torch.no_grad()
    def embed_with(self, module: nn.Module) -> tuple[Tensor, Tensor]:
        """(audio [b, D], text [b, K, D]) by another retriever, without gradient."""
        assert isinstance(module, Retriever), "a copy of the retriever"
        return self._audio(module), self._text(self.texts.of(module), torch.ones(self.needed.shape[1]).bool())

    def worker_batch(self, audio: Tensor, text: Tensor) -> WorkerBatch:
        """The share as a memory sees it, with the embeddings [b, D] and [b, K, D] that the loss takes."""
        return WorkerBatch(
            audio=audio,
            text=text,
            mask=self.needed.to(self.device),
            clip_ids=self.batch.clip_ids,
            groups=torch.from_numpy(self.batch.captions.groups).to(self.device),
            step=self.batch.step,
            embed_with=self.embed_with,
        )

    def autocast(self) -> torch.autocast:
        """bfloat16 in the towers, if that is asked for."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.is_cast)

    def _audio(self, retriever: Retriever) -> Tensor:
        return embed_batch(retriever, self.batch, self.chunk)

    def _text(self, texts: TextBatcher, columns: Tensor) -> Tensor:
        needed = (self.needed & columns).numpy()
        return texts.embed_grid(self.batch.captions.texts, needed, self.batch.languages, chunk=self.chunk)
