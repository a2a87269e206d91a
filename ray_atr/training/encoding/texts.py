"""A batch of captions to text embeddings, encoding each distinct caption once, in buckets of similar length."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ray_atr.data.caption_vectors import Caption
from ray_atr.models.retriever import Retriever
from ray_atr.models.tower import Encoded, embed_by_length, pad_tokens
from ray_atr.training.encoding.encode import embed_again

CPU_BUCKET, GPU_BUCKET = 256, 1024
"""Captions that are embedded together: few on a CPU, so that they fit its cache; many on a GPU, so that they fill it."""


def distinct(captions: Sequence[Caption]) -> tuple[list[Caption], NDArray[np.int64]]:
    """(the distinct captions, the index of each given caption among them [n]).

    Equal captions have equal embeddings only if they are embedded once: in another batch the same one is rounded otherwise.
    """
    position = {caption: place for place, caption in enumerate(dict.fromkeys(captions))}
    return list(position), np.fromiter((position[caption] for caption in captions), np.int64, len(captions))


class TextBatcher:
    """Tokenises captions (each distinct one once in a process) and embeds batches of them.

    bucket   distinct captions that are encoded together, sorted by length to save padding; None: by the device.
    memory   captions whose tokens are stored.
    """

    def __init__(self, retriever: Retriever, *, bucket: int | None = None, memory: int = 500_000) -> None:
        self.retriever, self.bucket, self.memory = retriever, bucket, memory
        self.tokens: dict[Caption, list[int]] = {}

    def with_retriever(self, retriever: Retriever) -> TextBatcher:
        """The same for another retriever with the same tokeniser; tokens are shared."""
        other = TextBatcher(retriever, bucket=self.bucket, memory=self.memory)
        other.tokens = self.tokens
        return other

    def embed(self, captions: Sequence[Caption], *, chunk: int = 0) -> Tensor:
        """Unit-norm embeddings `[n, D]` of the captions, in their order.

        With a `chunk`, buckets have at most that many captions, and are embedded again in the backward pass instead of storing
        activations.
        """
        once, row_of = distinct(captions)
        bucket = self.bucket or (GPU_BUCKET if self.retriever.device.type == "cuda" else CPU_BUCKET)
        embedded = embed_by_length(
            partial(embed_again, self.retriever.embed_text) if chunk else self.retriever.embed_text,
            self._tokenise(once),
            self.retriever.text_tower.pad_token_id,
            bucket=min(chunk, bucket) if chunk else bucket,
            width=self.retriever.settings.embedding_width,
            device=self.retriever.device,
        )
        return embedded if len(once) == len(captions) else embedded[torch.from_numpy(row_of).to(embedded.device)]

    def embed_grid(
        self, texts: list[list[str]], needed: NDArray[np.bool_], languages: Sequence[str], *, chunk: int = 0
    ) -> Tensor:
        """Embeddings `[b, K, D]` of the texts that are needed; zeros elsewhere."""
        where = np.argwhere(needed)
        embedded = self.embed([(texts[i][k], languages[k]) for i, k in where], chunk=chunk)
        grid = embedded.new_zeros(*needed.shape, embedded.shape[1])
        index = torch.from_numpy(where).to(embedded.device)
        return grid.index_put((index[:, 0], index[:, 1]), embedded)

    def embed_tokens(self, captions: Sequence[Caption]) -> Encoded:
        """The captions' tokens `[n, L, D]`, their mask `[n, L]` and mean `[n, D]`, for late interaction."""
        once, row_of = distinct(captions)
        padded, mask = pad_tokens(self._tokenise(once), self.retriever.text_tower.pad_token_id)
        encoded = self.retriever.text_tokens(padded.to(self.retriever.device), mask.to(self.retriever.device))
        rows = torch.from_numpy(row_of).to(self.retriever.device)
        return Encoded(*(values[rows] for values in encoded))

    def _tokenise(self, captions: Sequence[Caption]) -> list[list[int]]:
        new = [caption for caption in captions if caption not in self.tokens]
        if new:
            if len(self.tokens) + len(new) > self.memory:
                self.tokens.clear()
                new = list(captions)
            texts, languages = [text for text, _ in new], [language for _, language in new]
            self.tokens.update(zip(new, self.retriever.text_tower.tokenise(texts, languages), strict=True))
        return [self.tokens[caption] for caption in captions]
