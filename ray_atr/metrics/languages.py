"""Evaluation of a multilingual model: every language, their means, and how far they agree."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import torch

from ray_atr.common.language_codes import ENGLISH
from ray_atr.common.ranking import DEFAULT_PLAN, RANKINGS, PlanOptions
from ray_atr.common.settings import nearest, refuse
from ray_atr.metrics.measures import of_queries
from ray_atr.metrics.metric import DIRECTIONS, MEAN, Metric, task_name, with_means
from ray_atr.metrics.ranking import LearnedMetric
from ray_atr.metrics.relevance import Array, IntegerArray, Relevance, as_matrix, as_relevance
from ray_atr.metrics.retrieval import Retrieval, retrieve, retrieve_by_plan

CHUNK = 8192


def evaluate_languages(
    audio: Array,
    text: Mapping[str, Array],
    relevant: IntegerArray | Relevance,
    *,
    present: Mapping[str, Array] | None = None,
    ranking: str = "learned",
    beside: Sequence[str] = (),
    metric: LearnedMetric | None = None,
    plan: PlanOptions = DEFAULT_PLAN,
    trained: Collection[str] | None = None,
    device: torch.device | str | None = None,
    keep: Callable[[Mapping[str, Retrieval]], None] | None = None,
) -> dict[Metric, float]:
    """Every metric of clips `audio` [N, D] and captions `text[language]` [M, D], by language and averaged.

    Row m is the same sentence in every language.

    relevant   [M]: the clip of each caption; or a `Relevance`, if several clips answer it (a class of sound).
    present    by language [M] bool: the captions that it has; a missing one is neither query nor candidate. None: all.
    ranking    the main one: `learned`, the distance under the learned `metric` (cosine if there is none), `cosine`, or `plan`,
               which is transductive. beside: further rankings to measure.
    trained    languages of the means called `trained`; None: all.
    keep       called with the scores of every query in the main ranking.

    Keys: `text_to_audio/fra/recall_at_1` and so on (`retrieval_metrics`), and for another ranking
    `text_to_audio_by_plan/fra/recall_at_1`; in place of a language `mean`, over all of them, `trained`, over those in
    `trained`, and `unseen`, over the others. `text_to_audio/fra/mean_rank_variance` is the part of French in
    `text_to_audio/mean/mean_rank_variance` (over captions that every language has; missing for one language);
    `embedding/fra/modality_gap`; and with English captions `embedding/fra/language_gap` and `.../language_distance`, whose
    mean is over the other languages. Embedding distances are of unit rows.

    When: all metrics of a data set with captions in one or several languages.
    Related: `retrieve_languages` returns each query's scores, `bootstrap_runs` intervals.

    >>> import numpy as np
    >>> from ray_atr.metrics import evaluate_languages
    >>> found = evaluate_languages(np.eye(3), {"eng": np.eye(3), "fra": np.eye(3)[[1, 0, 2]]}, np.arange(3))
    >>> {str(name): round(value, 2) for name, value in found.items() if str(name).startswith("text_to_audio/fra/recall_at_1")}
    {'text_to_audio/fra/recall_at_1': 0.33, 'text_to_audio/fra/recall_at_10': 1.0}
    """
    result: dict[Metric, float] = {}
    for name in (ranking, *beside):
        retrievals = retrieve_languages(
            audio, text, relevant, present=present, ranking=name, metric=metric, plan=plan, device=device
        )
        if keep is not None and name == ranking:
            keep(retrievals)
        result |= language_metrics(retrievals, "" if name == ranking else name, trained)
    return result | embedding_metrics(audio, text, relevant, present=present)


def retrieve_languages(
    audio: Array,
    text: Mapping[str, Array],
    relevant: IntegerArray | Relevance,
    *,
    present: Mapping[str, Array] | None = None,
    ranking: str = "learned",
    metric: LearnedMetric | None = None,
    plan: PlanOptions = DEFAULT_PLAN,
    device: torch.device | str | None = None,
) -> dict[str, Retrieval]:
    """The scores of every query in every language; text queries are numbered by caption m in all of them.

    audio [N, D], text, relevant, present, ranking, metric, plan and device are those of `evaluate_languages`.

    When: each query's scores are needed, for intervals or a comparison of two models.
    Related: `retrieval_samples` converts them for `bootstrap_runs` and `compare_runs`; `evaluate_languages` returns metrics.

    >>> import numpy as np
    >>> from ray_atr.metrics import retrieve_languages
    >>> sorted(retrieve_languages(np.eye(2), {"fra": np.eye(2), "eng": np.eye(2)}, np.arange(2)))
    ['eng', 'fra']
    """
    if ranking not in RANKINGS:
        raise refuse("ranking", ranking, ", ".join(RANKINGS), nearest(ranking, RANKINGS))
    clips = as_matrix("audio", audio)
    if device is not None and ranking != "cosine":
        clips = clips.to(device)
    by = metric if ranking == "learned" else None
    result = {}
    for language, rows in _present_rows(text, present).items():
        captions = as_matrix(f"text[{language!r}]", text[language], clips.shape[1])
        pairs = as_relevance(relevant, len(captions), len(clips)).of_texts(rows)
        chosen = captions if len(rows) == len(captions) else captions[rows.to(captions.device)]
        if ranking == "plan":
            result[language] = retrieve_by_plan(
                clips, chosen, pairs, epsilon=plan.epsilon, sweeps=plan.sweeps, metric=metric, text_number=rows.numpy()
            )
        else:
            result[language] = retrieve(clips, chosen, pairs, metric=by, device=device, text_number=rows.numpy())
    return result


def language_metrics(
    retrievals: Mapping[str, Retrieval], by: str = "", trained: Collection[str] | None = None
) -> dict[Metric, float]:
    """Retrieval metrics of each language and their means, and the rank variance between them.

    `by` is the name of a ranking other than the main one, which becomes part of the task's name.
    """
    result: dict[Metric, float] = {}
    for direction in DIRECTIONS:
        each = {language: of_queries(getattr(retrieval, direction)) for language, retrieval in retrievals.items()}
        result |= with_means(task_name(direction, by), each, trained)
    ranks, _ = ranks_by_language(retrievals)
    if len(retrievals) > 1 and len(ranks):
        variance = rank_variance_by_language(ranks)
        task = task_name("text_to_audio", by)
        parts = dict(zip(retrievals, map(float, variance), strict=True)) | {MEAN: float(variance.mean())}
        result |= {Metric(task, language, "mean_rank_variance"): part for language, part in parts.items()}
    return result


def rank_variance_by_language(ranks: np.ndarray) -> np.ndarray:
    """The part of each language k in the mean rank variance, [K]: mean over queries i of (rank_ik - mean_k rank_ik)^2.

    `ranks` [N, K] may count from 0 or from 1; the mean over k is that of Yin et al. 2025, Eq. 16.
    """
    values = torch.from_numpy(ranks).double()
    return (values - values.mean(1, keepdim=True)).square().mean(0).numpy()


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
) -> dict[Metric, float]:
    """Modality gap, and gap and distance from English, of each language and averaged, on unit rows.

    The modality gap is the norm of the difference of the mean audio and mean text embedding (Luong et al. 2024, section 5.1);
    the language gap is that of the mean English and mean other embedding (Yin et al. 2025, Eq. 14), and the distance the
    mean norm of the differences of paired ones (Eq. 15), which is never below the gap.
    """
    clips = as_matrix("audio", audio)
    rows = _present_rows(text, present)
    captions = {language: as_matrix(f"text[{language!r}]", text[language], clips.shape[1]) for language in rows}
    result: dict[Metric, float] = {}
    for language, texts in rows.items():
        clip = as_relevance(relevant, len(captions[language]), len(clips)).of_texts(texts).clip.unique()
        gap = _mean_unit(clips, clip) - _mean_unit(captions[language], texts)
        result[Metric("embedding", language, "modality_gap")] = float(gap.norm())
        both = texts[torch.isin(texts, rows[ENGLISH])] if ENGLISH in rows else texts[:0]
        if len(both):
            gap = _mean_unit(captions[ENGLISH], both) - _mean_unit(captions[language], both)
            result[Metric("embedding", language, "language_gap")] = float(gap.norm())
            distance = _mean_distance(captions[ENGLISH], captions[language], both)
            result[Metric("embedding", language, "language_distance")] = distance
    for name in ("modality_gap", "language_gap", "language_distance"):
        measured = [language for language in rows if name == "modality_gap" or language != ENGLISH]
        values = [result[key] for language in measured if (key := Metric("embedding", language, name)) in result]
        if values:
            result[Metric("embedding", MEAN, name)] = sum(values) / len(values)
    return result


def _present_rows(text: Mapping[str, Array], present: Mapping[str, Array] | None) -> dict[str, torch.Tensor]:
    """The indices into [M] of each language's captions."""
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
    """Mean of the chosen rows, each of unit norm, [D] float64, in chunks without a normalised copy of all rows."""
    return torch.stack([_unit(matrix, part).sum(0) for part in rows.split(CHUNK)]).sum(0).cpu() / len(rows)


def _mean_distance(first: torch.Tensor, second: torch.Tensor, rows: torch.Tensor) -> float:
    """Mean norm of the difference of paired unit rows."""
    pairs = ((_unit(first, part), _unit(second, part).to(first.device)) for part in rows.split(CHUNK))
    return sum(float((a - b).norm(dim=1).sum()) for a, b in pairs) / len(rows)


def _unit(matrix: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.normalize(matrix[rows.to(matrix.device)].double(), dim=1)
