"""Late interaction in training and evaluation: every clip's frames against every text's tokens, over all workers."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ray_atr.data.epoch_order import evaluation_plan
from ray_atr.data.features import FeatureSet
from ray_atr.data.stream import stream
from ray_atr.encoding.texts import TextBatcher
from ray_atr.metrics.alignment import AlignedCaptions
from ray_atr.metrics.ranks import count_ranks_of_matrix
from ray_atr.metrics.relevance import as_relevance
from ray_atr.metrics.retrieval import Retrieval, score
from ray_atr.models.retriever import Retriever
from ray_atr.models.tower import Encoded
from ray_atr.objectives.late_interaction import late_interaction
from ray_atr.training.batch import Batch
from ray_atr.training.group import WorkerGroup
from ray_atr.training.share import Share

TEXTS = 64
"""Texts that are compared with the clips at a time in an evaluation."""


class LateShare(Share):
    """The share's clips and texts with their tokens, which are what is compared; audio and text are embedded at once."""

    def __init__(
        self, retriever: Retriever, texts: TextBatcher, batch: Batch, needed: Tensor, *, chunk: int, autocast: bool
    ) -> None:
        super().__init__(retriever, texts, batch, needed, chunk=chunk, autocast=autocast)
        with self.autocast():
            self.clips = retriever.audio_tokens(batch.features.to(self.device), batch.frames.to(self.device))
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


@torch.no_grad()
def retrieve_by_tokens(
    retriever: Retriever,
    texts: TextBatcher,
    features: FeatureSet,
    captions: AlignedCaptions,
    batch_size: int,
    group: WorkerGroup,
) -> dict[str, Retrieval]:
    """A split ranked by late interaction, in each language of the captions; each worker compares a share of the clips."""
    plan = evaluation_plan(len(features), batch_size=batch_size, rank=group.rank, num_workers=group.size)
    clips = [
        retriever.audio_tokens(batch.features.to(group.device), batch.frames.to(group.device))
        for batch in stream(features, [plan], use_ray=False)
    ]
    found = {}
    for language, sentences in captions.sentences.items():
        rows = np.flatnonzero(captions.present[language])
        columns = []
        for start in range(0, len(rows), TEXTS):
            some = texts.embed_tokens([(sentences[row], language) for row in rows[start : start + TEXTS]])
            columns.append(torch.cat([_compare(clip, some) for clip in clips]))
        scores = group.gather_rows(torch.cat(columns, dim=1)).T
        own = as_relevance(captions.relevance, len(captions), len(features)).of_texts(torch.from_numpy(rows))
        found[language] = score(count_ranks_of_matrix(scores, own), own, rows)
    return found


def _compare(clips: Encoded, texts: Encoded) -> Tensor:
    return late_interaction(clips.tokens, clips.token_mask, texts.tokens, texts.token_mask)
