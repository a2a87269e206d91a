"""Local interaction in training and evaluation: every clip's frames against every text's tokens, over all workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ray_atr.data.features import FeatureSet
from ray_atr.data.plan import evaluation_plan
from ray_atr.data.stream import stream
from ray_atr.evaluation.captions import AlignedCaptions
from ray_atr.evaluation.ranks import count_ranks_of_matrix
from ray_atr.evaluation.relevance import as_relevance
from ray_atr.evaluation.retrieval import Retrieval, score
from ray_atr.experiment import Experiment
from ray_atr.models.retriever import Retriever
from ray_atr.models.tower import Encoded
from ray_atr.objectives.local import late_interaction
from ray_atr.settings import refuse
from ray_atr.training.group import WorkerGroup
from ray_atr.training.texts import TextBatcher

TEXTS = 64
"""Texts that are compared with the clips at a time in an evaluation."""


def check_interaction(experiment: Experiment) -> None:
    """ValueError where local interaction meets what is defined for one embedding a clip alone."""
    if experiment.model.interaction == "global":
        return
    knowledge, train = experiment.objective.knowledge, experiment.train
    if knowledge.name not in ("none", "ask"):
        raise refuse("objective.knowledge", knowledge.name, "none, ask with model.interaction=local")
    metric = getattr(experiment.objective.pair, "metric", "euclidean")
    if metric != "euclidean":
        raise refuse("objective.pair.metric", metric, "euclidean with model.interaction=local")
    for name in ("language_chunk", "embedding_chunk"):
        if getattr(train, name):
            raise refuse(f"train.{name}", getattr(train, name), "0 with model.interaction=local")


@dataclass(frozen=True, eq=False)
class TokenShare:
    """One worker's share of a batch: audio as [b, D] and [b, F, D], text as [b, K, D] and [b, K, L, D], with masks."""

    audio: Encoded
    text: Encoded

    @classmethod
    def embed(
        cls,
        retriever: Retriever,
        texts: TextBatcher,
        clips: tuple[Tensor, Tensor],
        captions: list[list[str]],
        needed: NDArray[np.bool_],
        languages: Sequence[str],
    ) -> TokenShare:
        """The clips (features, frames), and the captions [b][K] where `needed` [b, K] is True; zeros elsewhere."""
        audio = retriever.audio_tokens(*clips)
        where = np.argwhere(needed)
        encoded = texts.embed_tokens([(captions[i][k], languages[k]) for i, k in where])
        index = tuple(torch.from_numpy(where).to(audio.pooled.device).T)

        def grid(values: Tensor) -> Tensor:
            return values.new_zeros(*needed.shape, *values.shape[1:]).index_put(index, values)

        return cls(audio, Encoded(*(grid(values) for values in encoded)))

    def similarity(self, group: WorkerGroup) -> Tensor:
        """Similarities [K, B, B] of all workers' clips (rows) and texts (columns), with gradient; 0 where there is no text."""
        frames, frame_mask = (_gather(values, group) for values in (self.audio.tokens, self.audio.token_mask))
        of_languages = [
            late_interaction(frames.float(), frame_mask, _gather(tokens, group).float(), _gather(mask, group))
            for tokens, mask in zip(self.text.tokens.unbind(1), self.text.token_mask.unbind(1), strict=True)
        ]
        return torch.stack(of_languages)


def _gather(values: Tensor, group: WorkerGroup) -> Tensor:
    """The workers' [b, L, ...], of different lengths L, as [B, L, ...]; padding is zero."""
    longest = max(group.gather_objects(values.shape[1]))
    padded = values.new_zeros(values.shape[0], longest, *values.shape[2:])
    padded[:, : values.shape[1]] = values
    return group.gather(padded)


@torch.no_grad()
def retrieve_locally(
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
