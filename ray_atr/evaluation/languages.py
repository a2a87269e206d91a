"""One evaluation of a multilingual model: every language, their mean, and how far they agree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch

from ray_atr.evaluation.arrays import Array, IntegerArray, as_matrix
from ray_atr.evaluation.consistency import rank_variance_by_language
from ray_atr.evaluation.plan_ranking import retrieve_by_plan
from ray_atr.evaluation.relevance import Relevance, as_relevance
from ray_atr.evaluation.retrieval import Retrieval, retrieve
from ray_atr.settings import nearest, refuse

Ranking = Literal["similarity", "plan"]
ENGLISH = "eng"
MEAN = "mean"
CHUNK = 8192


def evaluate_languages(
    audio: Array,
    text: Mapping[str, Array],
    relevant: IntegerArray | Relevance,
    *,
    present: Mapping[str, Array] | None = None,
    ranking: Ranking = "similarity",
    metric: Array | None = None,
    device: torch.device | str | None = None,
    block_side: int | None = None,
) -> dict[str, float]:
    """Every metric of clips `audio` [N, D] and captions `text[language]` [M, D], by language and averaged.

    Row m is the same sentence in every language, a caption of clip `relevant[m]`, or of the clips that a `Relevance` names
    (a class of sound); `present[language]` [M] bool says where a language lacks it (such rows are neither queries nor
    candidates; default: all present).

    Keys: `text_to_audio/fra/recall_at_1`, `text_to_audio/mean/recall_at_1`, ... (`retrieval_metrics`; with
    ranking="plan" the direction is `text_to_audio_by_plan`); `text_to_audio/fra/mean_rank_variance`, the part of French
    in `text_to_audio/mean/mean_rank_variance` (over captions that every language has; absent for one language);
    `embedding/fra/modality_gap`; and where English is there, `embedding/fra/language_gap` and `.../language_distance`,
    whose mean is over the other languages. Embedding distances are of unit rows.
    """
    retrievals = retrieve_languages(
        audio,
        text,
        relevant,
        present=present,
        ranking=ranking,
        metric=metric,
        device=device,
        block_side=block_side,
    )
    result = language_metrics(retrievals, ranking)
    if ranking == "similarity":
        result |= embedding_metrics(audio, text, relevant, present=present)
    return result


def retrieve_languages(
    audio: Array,
    text: Mapping[str, Array],
    relevant: IntegerArray | Relevance,
    *,
    present: Mapping[str, Array] | None = None,
    ranking: Ranking = "similarity",
    metric: Array | None = None,
    device: torch.device | str | None = None,
    block_side: int | None = None,
) -> dict[str, Retrieval]:
    """The scores of every query in every language; text queries are numbered by caption m in all of them.

    `metric` is a learned Mahalanobis metric, for ranking="plan" alone (`plan_scores`).
    """
    if ranking not in ("similarity", "plan"):
        raise refuse("ranking", ranking, "similarity, plan", nearest(str(ranking), ("similarity", "plan")))
    clips = as_matrix("audio", audio)
    result = {}
    for language, rows in _present_rows(text, present).items():
        captions = as_matrix(f"text[{language!r}]", text[language], clips.shape[1])
        own = as_relevance(relevant, len(captions), len(clips)).of_texts(rows)
        chosen = captions if len(rows) == len(captions) else captions[rows.to(captions.device)]
        if ranking == "plan":
            result[language] = retrieve_by_plan(
                clips.to(device or clips.device), chosen, own, metric=metric, text_number=rows.numpy()
            )
        else:
            result[language] = retrieve(
                clips, chosen, own, device=device, block_side=block_side, text_number=rows.numpy()
            )
    return result


def language_metrics(retrievals: Mapping[str, Retrieval], ranking: Ranking = "similarity") -> dict[str, float]:
    """Retrieval metrics of each language and their mean, and the rank variance between them."""
    suffix = "" if ranking == "similarity" else "_by_plan"
    result: dict[str, float] = {}
    for direction in ("text_to_audio", "audio_to_text"):
        by_language = {language: getattr(r, direction).metrics() for language, r in retrievals.items()}
        for language, metrics in by_language.items():
            result |= {f"{direction}{suffix}/{language}/{name}": value for name, value in metrics.items()}
        for name in next(iter(by_language.values())):
            mean = sum(metrics[name] for metrics in by_language.values()) / len(by_language)
            result[f"{direction}{suffix}/{MEAN}/{name}"] = mean
    ranks, _ = ranks_by_language(retrievals)
    if len(retrievals) > 1 and len(ranks):
        variance = rank_variance_by_language(ranks)
        for language, part in zip(retrievals, variance, strict=True):
            result[f"text_to_audio{suffix}/{language}/mean_rank_variance"] = float(part)
        result[f"text_to_audio{suffix}/{MEAN}/mean_rank_variance"] = float(variance.mean())
    return result


def ranks_by_language(retrievals: Mapping[str, Retrieval]) -> tuple[np.ndarray, np.ndarray]:
    """Text-to-audio ranks [Q, K], 0-based, of the captions that every language has, and those captions' numbers [Q]."""
    scores = [retrieval.text_to_audio for retrieval in retrievals.values()]
    shared = scores[0].query
    for other in scores[1:]:
        shared = np.intersect1d(shared, other.query, assume_unique=True)
    return np.stack([s.first_rank[np.searchsorted(s.query, shared)] for s in scores], axis=1), shared


def embedding_metrics(
    audio: Array,
    text: Mapping[str, Array],
    relevant: IntegerArray | Relevance,
    *,
    present: Mapping[str, Array] | None = None,
) -> dict[str, float]:
    """Modality gap, and gap and distance from English, of each language and averaged, on unit rows."""
    clips = as_matrix("audio", audio)
    rows = _present_rows(text, present)
    captions = {language: as_matrix(f"text[{language!r}]", text[language], clips.shape[1]) for language in rows}
    result: dict[str, float] = {}
    for language, own in rows.items():
        clip = as_relevance(relevant, len(captions[language]), len(clips)).of_texts(own).clip.unique()
        gap = _mean_unit(clips, clip) - _mean_unit(captions[language], own)
        result[f"embedding/{language}/modality_gap"] = float(gap.norm())
        both = own[torch.isin(own, rows[ENGLISH])] if ENGLISH in rows else own[:0]
        if len(both):
            gap = _mean_unit(captions[ENGLISH], both) - _mean_unit(captions[language], both)
            result[f"embedding/{language}/language_gap"] = float(gap.norm())
            result[f"embedding/{language}/language_distance"] = _mean_distance(
                captions[ENGLISH], captions[language], both
            )
    for name in ("modality_gap", "language_gap", "language_distance"):
        others = [
            result[key]
            for language in rows
            if (key := f"embedding/{language}/{name}") in result and (name == "modality_gap" or language != ENGLISH)
        ]
        if others:
            result[f"embedding/{MEAN}/{name}"] = sum(others) / len(others)
    return result


def _present_rows(text: Mapping[str, Array], present: Mapping[str, Array] | None) -> dict[str, torch.Tensor]:
    """For each language the captions it has, as indices into [M]."""
    if not text:
        raise refuse("text", "no language", "one or more languages")
    lengths = {language: len(captions) for language, captions in text.items()}
    if len(set(lengths.values())) > 1:
        raise refuse("text", lengths, "one number of captions in all languages (mark absent ones in `present`)")
    result = {}
    for language, length in lengths.items():
        if present is None or language not in present:
            result[language] = torch.arange(length)
            continue
        mask = torch.as_tensor(present[language]).cpu()
        if mask.dtype != torch.bool or mask.shape != (length,):
            raise refuse(f"present[{language!r}]", f"{mask.dtype} {tuple(mask.shape)}", f"booleans [{length}]")
        result[language] = mask.nonzero().squeeze(1)
        if len(result[language]) == 0:
            raise refuse(f"present[{language!r}]", "no caption at all", "a language with captions")
    return result


def _mean_unit(matrix: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Mean of the unit rows chosen, [D] float64, without a normalised copy of all."""
    return torch.stack([_unit(matrix, part).sum(0) for part in rows.split(CHUNK)]).sum(0).cpu() / len(rows)


def _mean_distance(first: torch.Tensor, second: torch.Tensor, rows: torch.Tensor) -> float:
    """Mean norm of the difference of paired unit rows (`language_distance`, streamed)."""
    sums = [
        float((_unit(first, part) - _unit(second, part).to(first.device)).norm(dim=1).sum())
        for part in rows.split(CHUNK)
    ]
    return sum(sums) / len(rows)


def _unit(matrix: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.normalize(matrix[rows.to(matrix.device)].double(), dim=1)
