"""Recall, mAP and median rank in both directions; ties count as the expectation over their orders."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.special import digamma

from ray_atr.common.ranking import EPSILON
from ray_atr.metrics.measures import MAP_AT, RECALL_AT, QueryScores, of_queries
from ray_atr.metrics.metric import DIRECTIONS
from ray_atr.metrics.ranking import LearnedMetric, audio_rows, plan_scores, text_rows
from ray_atr.metrics.ranks import BothRanks, PairRanks, count_ranks, count_ranks_of_matrix
from ray_atr.metrics.relevance import Array, IntegerArray, Relevance, as_matrix, as_relevance

PLAN_TIE = 1e-7  # in log plan: two clips that are the same recording differ by rounding in their potentials


@dataclass(frozen=True)
class Retrieval:
    """Both directions of one retrieval task."""

    text_to_audio: QueryScores
    audio_to_text: QueryScores

    def metrics(self) -> dict[str, float]:
        return {
            f"{direction}/{name}": value
            for direction in DIRECTIONS
            for name, value in of_queries(getattr(self, direction)).items()
        }


def retrieval_metrics(
    audio: Array, captions: Array, clip_of_caption: IntegerArray, *, device: torch.device | str | None = None
) -> dict[str, float]:
    """Retrieval metrics of captions [M, D] against clips `audio` [N, D]; caption m describes clip `clip_of_caption[m]`.

    Rows are compared by cosine, whatever their norm. Every caption is a text-to-audio query with one relevant clip;
    every clip with a caption is an audio-to-text query for which all its captions are relevant, and finding any of them
    counts for recall. Clips without a caption are candidates only.

    Keys: `text_to_audio/` and `audio_to_text/` + `recall_at_1`, `recall_at_5`, `recall_at_10`, `map_at_10` (shares in
    [0, 1]), `median_rank` (of the first relevant candidate, 1 = first), `tied_queries` and `queries` (counts) and `chance_at_1`
    (R@1 of a random order). A tie counts as its expectation over the orders of the tied candidates, so that a model whose
    scores are all equal gets chance. Ranks are exact, and the full matrix of scores is never in memory; `device` defaults to
    that of `audio`.

    When: vectors of clips and of captions in one language are given.
    Related: `evaluate_languages` for several languages, `retrieve` for the scores of each query.

    >>> import numpy as np
    >>> from ray_atr.metrics import retrieval_metrics
    >>> audio, captions = np.eye(3), np.eye(3)[[0, 0, 1, 2]]  # clip 0 has two captions
    >>> found = retrieval_metrics(audio, captions, np.array([0, 0, 1, 2]))
    >>> found["text_to_audio/recall_at_1"], found["audio_to_text/queries"]
    (1.0, 3.0)
    """
    return retrieve(audio, captions, clip_of_caption, device=device).metrics()


def retrieve(
    audio: Array,
    captions: Array,
    relevant: IntegerArray | Relevance,
    *,
    metric: LearnedMetric | None = None,
    device: torch.device | str | None = None,
    text_number: np.ndarray | None = None,
) -> Retrieval:
    """The scores of each query, for intervals and pictures, of the retrieval that `retrieval_metrics` measures.

    `relevant` is the clip of each caption or a `Relevance`; text query i has the number `text_number[i]` (default: i). With a
    learned `metric` (`as_metric`) unit rows are ranked by the distance under it instead of by cosine.

    When: the scores of each query are needed.
    Related: `retrieve_languages` for several languages, `retrieve_by_plan` for another order.

    >>> import numpy as np
    >>> from ray_atr.metrics import retrieve
    >>> retrieve(np.eye(2), np.eye(2), np.array([1, 0])).metrics()["text_to_audio/recall_at_1"]
    0.0
    """
    relevance = as_relevance(relevant, len(captions), len(audio))
    ranks = ranked(audio, captions, relevance, metric=metric, device=device)
    return score(ranks, relevance, text_number)


def retrieve_by_plan(
    audio: Array,
    captions: Array,
    relevant: IntegerArray | Relevance,
    *,
    epsilon: float = EPSILON,
    sweeps: int = 0,
    metric: LearnedMetric | None = None,
    text_number: np.ndarray | None = None,
) -> Retrieval:
    """As `retrieve`, but ranked by the plan between all captions [M, D] and all clips [N, D]. See `plan_scores`.

    When: all queries are given at once, and should be matched to different clips.
    Related: `retrieve` ranks for each query by itself.

    >>> import numpy as np
    >>> from ray_atr.metrics import retrieve_by_plan
    >>> retrieve_by_plan(np.eye(2), np.eye(2), np.array([0, 1])).metrics()["text_to_audio/recall_at_1"]
    1.0
    """
    relevance = as_relevance(relevant, len(captions), len(audio))
    scores = plan_scores(captions, audio, epsilon=epsilon, sweeps=sweeps, metric=metric)
    return score(count_ranks_of_matrix(scores, relevance, tie=PLAN_TIE), relevance, text_number)


def ranked(
    audio: Array,
    captions: Array,
    relevance: Relevance,
    *,
    metric: LearnedMetric | None = None,
    device: torch.device | str | None = None,
) -> BothRanks:
    """Ranks of the relevant pairs by cosine, or by the distance of unit rows under a learned metric."""
    if metric is None:
        return count_ranks(captions, audio, relevance, device=device)
    clips = as_matrix("audio", audio)
    texts = as_matrix("text", captions, clips.shape[1])
    return count_ranks(text_rows(texts, metric), audio_rows(clips, metric), relevance, is_cosine=False, device=device)


def score(ranks: BothRanks, relevance: Relevance, text_number: np.ndarray | None = None) -> Retrieval:
    """Query scores from the ranks of the relevant pairs; text query i has the number `text_number[i]` (default: i)."""
    text, clip = relevance.text.numpy(), relevance.clip.numpy()
    text_to_audio = score_queries(text, ranks.text_to_audio, relevance.num_clips)
    audio_to_text = score_queries(clip, ranks.audio_to_text, relevance.num_texts)
    number = text_to_audio.query if text_number is None else text_number[text_to_audio.query]
    has_own_clip = len(text_to_audio.query) == len(text)
    unit = clip[np.argsort(text, kind="stable")] if has_own_clip else relevance.num_clips + number
    return Retrieval(replace(text_to_audio, query=number, clip=unit), audio_to_text)


def score_queries(query: np.ndarray, ranks: PairRanks, num_candidates: int) -> QueryScores:
    """Expected recall, AP at 10 and first rank of each query, from its relevant pairs' counts."""
    groups = _tie_groups(query, ranks)
    first = groups.is_first
    return QueryScores(
        query=groups.queries,
        clip=groups.queries,
        recall={k: _chance_within(groups, k)[first] for k in RECALL_AT},
        average_precision=_average_precision(groups, MAP_AT),
        first_rank=(groups.greater + (groups.tied + 1) / (groups.relevant + 1) - 1)[first],
        is_tied=np.bincount(groups.query_index, groups.tied > groups.relevant) > 0,
        chance=groups.relevant_in_all / num_candidates,
    )


@dataclass(frozen=True)
class _TieGroups:
    """Relevant candidates of one query with one score, [G], ordered by query and then from best to worst."""

    queries: np.ndarray
    relevant_in_all: np.ndarray
    query_index: np.ndarray
    greater: np.ndarray
    tied: np.ndarray
    relevant: np.ndarray
    relevant_above: np.ndarray
    is_first: np.ndarray


def _tie_groups(query: np.ndarray, ranks: PairRanks) -> _TieGroups:
    greater, tied = ranks.greater.numpy(), ranks.tied.numpy()
    order = np.lexsort((greater, query))
    query, greater, tied = query[order], greater[order], tied[order]
    new_query = np.r_[True, query[1:] != query[:-1]]
    new_group = new_query | np.r_[True, greater[1:] != greater[:-1]]
    start = np.flatnonzero(new_group)
    relevant = np.diff(np.r_[start, len(query)])
    query_start = np.flatnonzero(new_query)
    query_index = np.cumsum(new_query)[start] - 1
    return _TieGroups(
        queries=query[query_start],
        relevant_in_all=np.diff(np.r_[query_start, len(query)]),
        query_index=query_index,
        greater=greater[start],
        tied=np.maximum(tied[start], relevant),
        relevant=relevant,
        relevant_above=start - query_start[query_index],
        is_first=new_query[start],
    )


def _chance_within(groups: _TieGroups, k: int) -> np.ndarray:
    """Chance that a relevant one of t tied candidates, r of them relevant, is among the first k places: with n of these places
    for the tie, 1 - C(t - r, n) / C(t, n).
    """
    num_within = np.clip(k - groups.greater, 0, groups.tied)
    miss = np.ones(len(num_within))
    for place in range(k):
        is_open = place < num_within
        miss_here = np.maximum(groups.tied - groups.relevant - place, 0) / np.maximum(groups.tied - place, 1)
        miss *= np.where(is_open, miss_here, 1.0)
    return 1 - miss


def average_precision(query: np.ndarray, ranks: PairRanks) -> np.ndarray:
    """Expected AP among all candidates of each query that has a relevant one, [Q], queries ascending."""
    return _average_precision(_tie_groups(query, ranks), None)


def _average_precision(groups: _TieGroups, k: int | None) -> np.ndarray:
    """Expected AP of each query, [Q]: (1 / min(R, k)) sum over its relevant sorted 1-based ranks r_m <= k of m / r_m.

    R is the number of its relevant candidates; never above 1. In a tie of t candidates, r of them relevant, below g
    greater ones of which b are relevant, place g + i holds a relevant one with chance r / t, and then there are
    b + 1 + (i - 1) o of them up to there in expectation, o = (r - 1)/(t - 1) (McSherry and Najork 2008). The sum over i of
    that count / (g + i) is n o + (b + 1 - o (g + 1)) (H_(g+n) - H_g), n places of the tie being within k.
    """
    greater, tied = groups.greater.astype(float), groups.tied.astype(float)
    num_within = tied if k is None else np.clip(k - greater, 0, tied)
    others = (groups.relevant - 1) / np.maximum(tied - 1, 1)
    harmonic = digamma(greater + num_within + 1) - digamma(greater + 1)
    gain = num_within * others + (groups.relevant_above + 1 - others * (greater + 1)) * harmonic
    total = np.bincount(groups.query_index, groups.relevant / tied * gain)
    return total / (groups.relevant_in_all if k is None else np.minimum(groups.relevant_in_all, k))
