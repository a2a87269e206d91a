"""Embeddings of a worker's share of a batch, for global and for late interaction."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from ray_atr.models.late_interaction import late_interaction
from ray_atr.models.retriever import Retriever
from ray_atr.models.tower import Encoded
from ray_atr.training.batch import Batch
from ray_atr.training.encoding.encode import embed_in_chunks
from ray_atr.training.encoding.texts import TextBatcher
from ray_atr.training.group import WorkerGroup
from ray_atr.training.knowledge_base.memory import WorkerBatch


def embed_batch(retriever: Retriever, batch: Batch, chunk: int = 0) -> Tensor:
    """Embeddings [b, D] of the share's clips, pooled over their windows; `chunk` windows are embedded at a time, 0: all."""
    inputs = [tensor.to(retriever.device) for tensor in batch.audio_inputs]
    embedded = embed_in_chunks(retriever.embed_audio, inputs, chunk)
    return retriever.pool_windows(embedded, batch.clips.to(embedded.device))


class Share:
    """The share's clips and texts, `chunk` of them embedded at a time (0: all). needed [b, K] bool: which texts."""

    def __init__(
        self, retriever: Retriever, texts: TextBatcher, batch: Batch, needed: Tensor, *, chunk: int, autocast: bool
    ) -> None:
        self.retriever, self.texts, self.batch, self.needed, self.chunk = retriever, texts, batch, needed, chunk
        self.device = retriever.device
        # With sharded towers no cast weight is cached: it would outlive the gathered weight that it was made from.
        caches = retriever.calls is None
        self.autocast = partial(
            torch.autocast, self.device.type, torch.bfloat16, enabled=autocast, cache_enabled=caches
        )

    def audio(self) -> Tensor:
        """Audio embeddings [b, D]."""
        with self.autocast(), self.retriever.equal_calls(gradient=True, again=self.chunk > 0) as extra:
            embedded = embed_batch(self.retriever, self.batch, self.chunk)
        return extra.joined(embedded)

    def text(self, columns: Tensor) -> Tensor:
        """Text embeddings [b, K, D] of the languages with True in columns [K]; zeros for texts that are not needed."""
        with self.autocast(), self.retriever.equal_calls(gradient=True, again=self.chunk > 0) as extra:
            embedded = self._text(self.texts, columns)
        return extra.joined(embedded)

    def similarity(self, group: WorkerGroup) -> Tensor | None:
        """Similarities [K, B, B] in the place of the embeddings' inner products; here None."""
        return None

    @torch.no_grad()
    def embed_with(self, module: nn.Module) -> tuple[Tensor, Tensor]:
        """(audio [b, D], text [b, K, D]) by another retriever, without gradient."""
        assert isinstance(module, Retriever), "a copy of the retriever"
        every_language = torch.ones(self.needed.shape[1], dtype=torch.bool)
        return embed_batch(module, self.batch, self.chunk), self._text(
            self.texts.with_retriever(module), every_language
        )

    def worker_batch(self, audio: Tensor, text: Tensor) -> WorkerBatch:
        """The share for a memory, with the embeddings [b, D] and [b, K, D] of the loss."""
        return WorkerBatch(
            audio=audio,
            text=text,
            mask=self.needed.to(self.device),
            clip_ids=self.batch.clip_ids,
            groups=torch.from_numpy(self.batch.captions.groups).to(self.device),
            step=self.batch.step,
            embed_with=self.embed_with,
        )

    def _text(self, texts: TextBatcher, columns: Tensor) -> Tensor:
        needed = (self.needed & columns).numpy()
        return texts.embed_grid(self.batch.captions.texts, needed, self.batch.languages, chunk=self.chunk)


class LateShare(Share):
    """A share for late interaction, which compares frames and tokens; audio and all texts are embedded at once."""

    def __init__(
        self, retriever: Retriever, texts: TextBatcher, batch: Batch, needed: Tensor, *, chunk: int, autocast: bool
    ) -> None:
        super().__init__(retriever, texts, batch, needed, chunk=chunk, autocast=autocast)
        # Every worker calls each tower once, even if its share has no text.
        with self.autocast(), retriever.equal_calls():
            self.clips = retriever.audio_tokens(*(tensor.to(self.device) for tensor in batch.audio_inputs))
            where = np.argwhere(needed.numpy())
            encoded = texts.embed_tokens([(batch.captions.texts[i][k], batch.languages[k]) for i, k in where])
        index = tuple(torch.from_numpy(where).to(self.device).T)

        def grid(values: Tensor) -> Tensor:
            return values.new_zeros(*needed.shape, *values.shape[1:]).index_put(index, values)

        self.captions = Encoded(*(grid(values) for values in encoded))

    def audio(self) -> Tensor:
        """[b, D], the mean of the clips' frames."""
        return self.clips.pooled

    def text(self, columns: Tensor) -> Tensor:
        """[b, K, D], the mean of the texts' tokens; all languages at once."""
        return self.captions.pooled

    def similarity(self, group: WorkerGroup) -> Tensor:
        """Similarities [K, B, B] of all workers' clips (rows) and texts (columns), with gradient; 0 if there is no text."""
        frames, frame_mask = (_gather(values, group) for values in (self.clips.tokens, self.clips.token_mask))
        of_languages = [
            late_interaction(frames.float(), frame_mask, _gather(tokens, group).float(), _gather(mask, group))
            for tokens, mask in zip(self.captions.tokens.unbind(1), self.captions.token_mask.unbind(1), strict=True)
        ]
        return torch.stack(of_languages)


def _gather(values: Tensor, group: WorkerGroup) -> Tensor:
    """The workers' [b, L, ...], of different lengths L, as [B, L, ...]; padding is zero."""
    longest = max(group.gather_objects(values.shape[1]))
    padded = values.new_zeros(values.shape[0], longest, *values.shape[2:])
    padded[:, : values.shape[1]] = values
    return group.gather(padded)
