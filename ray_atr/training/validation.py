"""A split embedded by all workers and scored in every language."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ray_atr.data.features import MANIFEST_FILE, FeatureSet
from ray_atr.data.plan import evaluation_plan
from ray_atr.data.stream import stream
from ray_atr.evaluation import modality_gap
from ray_atr.evaluation.ranks import count_ranks
from ray_atr.evaluation.relevance import relevance_by_clip, relevance_by_label
from ray_atr.evaluation.retrieval import score
from ray_atr.experiment import Experiment
from ray_atr.models.retriever import Retriever
from ray_atr.training.group import WorkerGroup
from ray_atr.training.texts import TextBatcher


def split_exists(features: object, split: str) -> bool:
    """Whether a feature cache has a split."""
    content = json.loads((features / MANIFEST_FILE).read_text())  # type: ignore[operator]
    return split in content["splits"]


@torch.no_grad()
def embed_clips(retriever: Retriever, features: FeatureSet, batch_size: int, group: WorkerGroup) -> Tensor:
    """Unit-norm embeddings [N, D] of every clip of a split, each worker embedding a share."""
    plan = evaluation_plan(len(features), batch_size=batch_size, rank=group.rank, num_workers=group.size)
    # Read in this process: the rows are cached and memory-mapped, and a short pass is not worth an execution's start.
    parts = [
        retriever.embed_audio(batch.features.to(group.device), batch.frames.to(group.device))
        for batch in stream(features, [plan], use_ray=False)
    ]
    mine = torch.cat(parts) if parts else torch.zeros(0, retriever.settings.embedding_width, device=group.device)
    return group.gather_rows(mine)


@torch.no_grad()
def embed_captions(texts: TextBatcher, captions: Sequence[str], language: str, group: WorkerGroup) -> Tensor:
    """Unit-norm embeddings [M, D] of captions in one language, each worker embedding a share."""
    mine = np.array_split(np.arange(len(captions)), group.size)[group.rank]
    return group.gather_rows(texts.embed([(captions[index], language) for index in mine]))


def evaluate_split(
    retriever: Retriever,
    texts: TextBatcher,
    features: FeatureSet,
    experiment: Experiment,
    group: WorkerGroup,
    *,
    max_captions: int = 0,
) -> dict[str, float]:
    """Retrieval metrics of a split: `text_to_audio/fra/recall_at_1`, ... for each language and their `mean`.

    `max_captions` limits the captions of a clip and language to the first ones; 0 takes all of them.
    All workers take part and all get the metrics.
    """
    was_training = retriever.training
    retriever.eval()
    settings = experiment.evaluation
    audio = embed_clips(retriever, features, settings.batch_size, group)
    by_label = _is_by_label(settings.relevance, features)
    metrics: dict[str, float] = {}
    by_language: list[dict[str, float]] = []
    for language in experiment.data.languages:
        of_clip = features.captions_in(language)
        pairs = [
            (clip, caption) for clip, captions in enumerate(of_clip) for caption in captions[: max_captions or None]
        ]
        if not pairs:
            continue
        if by_label:
            # One query a class: its caption, which every clip of the class shares.
            label_of = {caption: features.labels[clip] for clip, caption in pairs}
            captions = list(label_of)
            relevance = relevance_by_label(list(label_of.values()), features.labels)
        else:
            captions = [caption for _, caption in pairs]
            relevance = relevance_by_clip(np.array([clip for clip, _ in pairs]), len(pairs), len(features))
        text = embed_captions(texts, captions, language, group)
        found = score(count_ranks(text, audio, relevance), relevance).metrics()
        by_language.append(found)
        metrics.update({_with_language(name, language): value for name, value in found.items()})
        if language == "eng":
            metrics["modality_gap/eng"] = modality_gap(audio, text)
    for name in by_language[0] if by_language else ():
        metrics[_with_language(name, "mean")] = float(np.mean([found[name] for found in by_language]))
    retriever.train(was_training)
    return metrics


def _with_language(name: str, language: str) -> str:
    direction, metric = name.split("/")
    return f"{direction}/{language}/{metric}"


def _is_by_label(relevance: str, features: FeatureSet) -> bool:
    """Whether clips of one class are all relevant: asked for, or every clip's English captions say its class alone."""
    if relevance != "auto":
        return relevance == "label"
    class_of: dict[str, tuple[str, ...]] = {}
    english = features.captions_in("eng")
    for captions, labels in zip(english, features.labels, strict=True):
        if len(captions) != 1 or len(labels) != 1 or class_of.setdefault(captions[0], tuple(labels)) != tuple(labels):
            return False
    return len(class_of) < len(english) and len(class_of) == len(set(class_of.values()))
