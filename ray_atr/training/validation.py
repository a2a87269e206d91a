"""A split embedded by all workers and scored in every language."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ray_atr.common.storage import write_bytes
from ray_atr.data.features import FeatureSet
from ray_atr.data.stream import evaluation_plan, stream
from ray_atr.metrics import align_captions, evaluate_languages
from ray_atr.metrics.alignment import AlignedCaptions, ranked_by
from ray_atr.metrics.languages import embedding_metrics, language_metrics
from ray_atr.metrics.metric import Metric
from ray_atr.metrics.ranking import rankings_beside
from ray_atr.metrics.retrieval import Retrieval
from ray_atr.metrics.samples import Sample, retrieval_samples, to_arrays
from ray_atr.models.late_interaction import late_interaction
from ray_atr.models.retriever import Retriever
from ray_atr.training.encoding.encode import clip_batches, embed_batches
from ray_atr.training.encoding.texts import TextBatcher, distinct
from ray_atr.training.experiment import Experiment
from ray_atr.training.group import WorkerGroup
from ray_atr.training.run_folder import TEST_SCORES

MOST_PLANNED = 2**24
"""Most pairs of a test split for which the ranking by plan is computed in addition to the main one."""

TEXTS = 64
"""Texts that are compared with the clips at a time by late interaction."""

MEASURE = "recall_at_1"
"""The measure that is stored for each test query."""


@torch.no_grad()
def embed_clips(retriever: Retriever, features: FeatureSet, batch_size: int, group: WorkerGroup) -> Tensor:
    """Unit-norm embeddings [N, D] of a split's clips, each worker embedding a share."""
    # Read in this process: the rows are cached and memory-mapped, and starting a Ray Data execution would take longer.
    plan = evaluation_plan(len(features), batch_size=batch_size, rank=group.rank, num_workers=group.size)
    with retriever.equal_calls():
        embedded = embed_batches(retriever, clip_batches(features, plan.rows))
    return group.gather_rows(embedded)


@torch.no_grad()
def embed_captions(
    texts: TextBatcher, captions: AlignedCaptions, language: str, width: int, group: WorkerGroup
) -> Tensor:
    """Unit-norm embeddings [M, D] of the captions in one language, zeros if it lacks one; each worker embeds a share."""
    rows = np.flatnonzero(captions.present[language])
    sentences = captions.sentences[language]
    once, row_of = distinct([(sentences[row], language) for row in rows])
    share = np.array_split(np.arange(len(once)), group.size)[group.rank]
    with texts.retriever.equal_calls():
        own_texts = texts.embed([once[place] for place in share])
    embedded = group.gather_rows(own_texts)
    matrix = torch.zeros(len(captions), width, device=embedded.device)
    matrix[torch.from_numpy(rows).to(matrix.device)] = embedded[torch.from_numpy(row_of).to(matrix.device)]
    return matrix


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
    with retriever.equal_calls():
        clips = [
            retriever.audio_tokens(batch.features.to(group.device), batch.frames.to(group.device))
            for batch in stream(features, [plan], use_ray=False)
        ]
    encoded = {}
    for language, sentences in captions.sentences.items():
        once, row_of = distinct([(sentences[row], language) for row in np.flatnonzero(captions.present[language])])
        columns = []
        with retriever.equal_calls():
            for start in range(0, len(once), TEXTS):
                part = texts.embed_tokens(once[start : start + TEXTS])
                compared = [
                    late_interaction(clip.tokens, clip.token_mask, part.tokens, part.token_mask) for clip in clips
                ]
                # A worker may have no clip of a small split.
                columns.append(torch.cat([part.pooled.new_zeros(0, len(part.pooled)), *compared]))
        scores = group.gather_rows(torch.cat(columns, dim=1)).T[torch.from_numpy(row_of).to(group.device)]
        encoded[language] = ranked_by(scores, captions, language)
    return encoded


def evaluate_split(
    retriever: Retriever,
    texts: TextBatcher,
    features: FeatureSet,
    experiment: Experiment,
    group: WorkerGroup,
    *,
    max_captions: int = 0,
    has_other_rankings: bool = False,
    keep: Callable[[Mapping[str, Retrieval]], None] | None = None,
) -> dict[Metric, float]:
    """The metrics of `evaluate_languages` on a split: `text_to_audio/fra/recall_at_1`, `embedding/fra/language_gap`, ...

    Ranked as the retriever ranks, and with `has_other_rankings` in the other ways too. `keep` is called with every query's
    scores. `max_captions` limits the captions of a clip and language to the first ones; 0: all. A language that the split lacks
    is left out. All workers take part and get the metrics.
    """
    by_language = {language: features.captions_in(language) for language in experiment.data.languages}
    spoken = {language: of_clip for language, of_clip in by_language.items() if any(map(any, of_clip))}
    if not spoken:
        return {}
    settings = experiment.evaluation
    captions = align_captions(spoken, max_captions, labels=features.labels, relevance=settings.relevance)
    trained = experiment.trained_languages
    with retriever.evaluating():
        audio = embed_clips(retriever, features, settings.batch_size, group)
        text = {language: embed_captions(texts, captions, language, audio.shape[1], group) for language in spoken}
        if experiment.model.is_late:
            retrievals = retrieve_by_tokens(retriever, texts, features, captions, settings.batch_size, group)
            if keep is not None:
                keep(retrievals)
            metrics = embedding_metrics(audio, text, captions.relevance, present=captions.present)
            return language_metrics(retrievals, trained=trained) | metrics
        ranking, metric = retriever.ranking, retriever.learned_metric
        beside = rankings_beside(ranking.ranking, has_metric=metric is not None) if has_other_rankings else []
        return evaluate_languages(
            audio,
            text,
            captions.relevance,
            present=captions.present,
            ranking=ranking.ranking,
            beside=[name for name in beside if name != "plan" or len(audio) * len(captions) <= MOST_PLANNED],
            metric=metric,
            plan=ranking.plan,
            trained=trained,
            keep=keep,
        )


def keep_scores(folder: Path, retrievals: Mapping[str, Retrieval]) -> None:
    """Write R@1 of every query in each language and direction to `folder/test/scores.npz`, for paired differences of trials."""
    stored = {
        key: Sample(sample.query, sample.unit, {MEASURE: sample.means[MEASURE]}, {})
        for key, sample in retrieval_samples(retrievals).items()
        if MEASURE in sample.means
    }
    if not stored:
        return
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **to_arrays(stored))  # type: ignore[arg-type]
    (folder / TEST_SCORES).parent.mkdir(exist_ok=True)
    write_bytes(folder / TEST_SCORES, buffer.getvalue())
