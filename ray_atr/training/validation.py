"""A split embedded by all workers and scored in every language."""

from __future__ import annotations

import json

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ray_atr.data.features import MANIFEST_FILE, FeatureSet
from ray_atr.data.plan import Plan, evaluation_plan
from ray_atr.data.stream import stream
from ray_atr.evaluation import align_captions, evaluate_languages
from ray_atr.evaluation.captions import AlignedCaptions
from ray_atr.evaluation.languages import embedding_metrics, language_metrics
from ray_atr.experiment import Experiment
from ray_atr.models.retriever import Retriever
from ray_atr.training.group import WorkerGroup
from ray_atr.training.local import retrieve_locally
from ray_atr.training.texts import TextBatcher


def split_exists(features: object, split: str) -> bool:
    """Whether a feature cache has a split."""
    content = json.loads((features / MANIFEST_FILE).read_text())  # type: ignore[operator]
    return split in content["splits"]


@torch.no_grad()
def embed_clips(
    retriever: Retriever,
    features: FeatureSet,
    batch_size: int,
    group: WorkerGroup,
    rows: NDArray[np.int64] | None = None,
) -> Tensor:
    """Unit-norm embeddings [N, D] of a split's clips (all, or those at `rows`), each worker embedding a share."""
    num_clips = len(features) if rows is None else len(rows)
    plan = evaluation_plan(num_clips, batch_size=batch_size, rank=group.rank, num_workers=group.size)
    if rows is not None:
        plan = Plan(epoch=plan.epoch, rows=[rows[positions] for positions in plan.rows])
    # Read in this process: the rows are cached and memory-mapped, and a short pass is not worth an execution's start.
    parts = [
        retriever.embed_audio(batch.features.to(group.device), batch.frames.to(group.device))
        for batch in stream(features, [plan], use_ray=False)
    ]
    mine = torch.cat(parts) if parts else torch.zeros(0, retriever.settings.embedding_width, device=group.device)
    return group.gather_rows(mine)


@torch.no_grad()
def embed_captions(
    texts: TextBatcher, captions: AlignedCaptions, language: str, width: int, group: WorkerGroup
) -> Tensor:
    """Unit-norm embeddings [M, D] of the captions in one language, zeros where it lacks one; each worker embeds a share."""
    rows = np.flatnonzero(captions.present[language])
    mine = np.array_split(rows, group.size)[group.rank]
    sentences = captions.sentences[language]
    embedded = group.gather_rows(texts.embed([(sentences[row], language) for row in mine]))
    matrix = torch.zeros(len(captions), width, device=embedded.device)
    matrix[torch.from_numpy(rows).to(matrix.device)] = embedded
    return matrix


def evaluate_split(
    retriever: Retriever,
    texts: TextBatcher,
    features: FeatureSet,
    experiment: Experiment,
    group: WorkerGroup,
    *,
    max_captions: int = 0,
) -> dict[str, float]:
    """The metrics of `evaluate_languages` on a split: `text_to_audio/fra/recall_at_1`, `embedding/fra/language_gap`, ...

    `max_captions` limits the captions of a clip and language to the first ones; 0 takes all of them. A language that the
    split lacks is left out. All workers take part and all get the metrics.
    """
    by_language = {language: features.captions_in(language) for language in experiment.data.languages}
    spoken = {language: of_clip for language, of_clip in by_language.items() if any(map(any, of_clip))}
    if not spoken:
        return {}
    settings = experiment.evaluation
    captions = align_captions(spoken, max_captions, labels=features.labels, relevance=settings.relevance)
    was_training = retriever.training
    retriever.eval()
    audio = embed_clips(retriever, features, settings.batch_size, group)
    text = {language: embed_captions(texts, captions, language, audio.shape[1], group) for language in spoken}
    try:
        if experiment.model.interaction == "local":
            retrievals = retrieve_locally(retriever, texts, features, captions, settings.batch_size, group)
            metrics = embedding_metrics(audio, text, captions.relevance, present=captions.present)
            return language_metrics(retrievals) | metrics
        return evaluate_languages(audio, text, captions.relevance, present=captions.present)
    finally:
        retriever.train(was_training)
