"""Everything an evaluation reports of one model, from its embeddings: numbers, intervals, comparison, pictures, players."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from ray_atr.evaluation.arrays import Array, as_matrix
from ray_atr.evaluation.bootstrap import DRAWS, bootstrap_languages, compare_languages
from ray_atr.evaluation.captions import AlignedCaptions
from ray_atr.evaluation.languages import (
    ENGLISH,
    embedding_metrics,
    language_metrics,
    ranks_by_language,
    retrieve_languages,
)
from ray_atr.evaluation.page import Page
from ray_atr.evaluation.pictures import embedding_map, rank_heat_map, similarity_and_plan
from ray_atr.evaluation.plan_ranking import MAX_ENTRIES, plan_scores
from ray_atr.evaluation.players import Found, Query, best_clips, players_html
from ray_atr.evaluation.retrieval import Retrieval
from ray_atr.evaluation.zero_shot import zero_shot_languages

MAP_CLIPS = 50
MATRIX_CLIPS = 60
HEAT_MAP_CAPTIONS = 16
PLAYED_QUERIES = 8
PLAYED_CLIPS = 5


@dataclass(frozen=True)
class ZeroShot:
    """Class texts' embeddings by language, {language: [C, D]}, the classes' names [C] and each clip's label or labels."""

    class_texts: Mapping[str, Array]
    classes: Sequence[str]
    labels: Sequence[str | Collection[str]]


def compose_page(
    title: str,
    facts: Mapping[str, Any],
    audio: Array,
    text: Mapping[str, Array],
    captions: AlignedCaptions,
    *,
    clip_ids: Sequence[str] | None = None,
    zero_shot: ZeroShot | None = None,
    baseline: Mapping[str, Retrieval] | None = None,
    compared: tuple[str, str] = ("baseline", "this"),
    listen: Callable[[int], bytes] | None = None,
    metric: Array | None = None,
    draws: int = DRAWS,
    seed: int = 0,
    device: torch.device | str | None = None,
    notes: Sequence[str] = (),
) -> tuple[Page, dict[str, Retrieval]]:
    """The page of clips `audio` [N, D] and captions `text[language]` [M, D], and every query's scores to keep.

    baseline  the scores of another model on the same captions (`storage.from_arrays`): adds this minus baseline.
    listen    gives clip i's encoded audio file; with it the page has players for a few queries.
    metric    a learned Mahalanobis metric for the ranking by plan (`plan_scores`).
    """
    clips = as_matrix("audio", audio)
    common: dict[str, Any] = {"present": captions.present}
    retrievals = retrieve_languages(clips, text, captions.clip_of_caption, device=device, **common)
    metrics = language_metrics(retrievals)
    notes = [*notes, "Ranks are by cosine; ties count as their expectation over the orders they allow."]
    if len(clips) * len(captions) <= MAX_ENTRIES:
        by_plan = retrieve_languages(clips, text, captions.clip_of_caption, ranking="plan", metric=metric, **common)
        metrics |= language_metrics(by_plan, "plan")
    else:
        notes.append(
            f"No ranking by plan: {len(captions)} captions x {len(clips)} clips are too many for a whole plan."
        )
    metrics |= embedding_metrics(clips, text, captions.clip_of_caption, **common)
    if zero_shot is not None:
        metrics |= zero_shot_languages(clips, zero_shot.class_texts, zero_shot.classes, zero_shot.labels, device=device)
    chosen = _choose(retrievals, captions, seed)
    ids = clip_ids if clip_ids is not None else [str(clip) for clip in range(len(clips))]
    fragments = {}
    if listen is not None:
        fragments["What queries find"] = _players(chosen, clips, text, captions, retrievals, ids, listen)
    page = Page(
        title=title,
        facts=facts,
        metrics=metrics,
        intervals=bootstrap_languages(retrievals, draws=draws, seed=seed),
        comparison=compare_languages(baseline, retrievals, draws=draws, seed=seed) if baseline else {},
        compared=compared,
        pictures=_pictures(chosen, clips, text, captions, retrievals, metric, seed),
        fragments=fragments,
        notes=notes,
    )
    return page, retrievals


def _choose(retrievals: Mapping[str, Retrieval], captions: AlignedCaptions, seed: int) -> np.ndarray:
    """One caption, present in every language, of each of some clips drawn by the seed; best and worst alike."""
    _, shared = ranks_by_language(retrievals)
    _, first = np.unique(captions.clip_of_caption[shared], return_index=True)
    return np.random.default_rng(seed).permutation(shared[first])


def _pictures(
    chosen: np.ndarray,
    clips: torch.Tensor,
    text: Mapping[str, Array],
    captions: AlignedCaptions,
    retrievals: Mapping[str, Retrieval],
    metric: Array | None,
    seed: int,
) -> dict[str, Figure]:
    pictures: dict[str, Figure] = {}
    few = chosen[:MAP_CLIPS]
    if len(few) > 1:
        own = {language: _rows(text[language], few) for language in text}
        pictures["Embedding map"] = embedding_map(_rows(clips, captions.clip_of_caption[few]), own, seed=seed)
    shown = _shown_language(text)
    few = chosen[:HEAT_MAP_CAPTIONS]
    if len(few):
        ranks, shared = ranks_by_language(retrievals)
        sentences = [captions.sentences[shown][m] for m in few]
        rows = ranks[np.searchsorted(shared, few)]
        pictures["Ranks of some captions' clips, by language"] = rank_heat_map(
            rows, list(retrievals), sentences, num_candidates=len(clips)
        )
    few = chosen[:MATRIX_CLIPS]
    if len(few) > 1:
        texts, own_clips = _rows(text[shown], few), _rows(clips, captions.clip_of_caption[few])
        unit = torch.nn.functional.normalize
        similarity = unit(texts.double(), dim=1) @ unit(own_clips.double(), dim=1).T
        plan = plan_scores(texts, own_clips, metric=metric).exp()
        title = f"{len(few)} captions ({shown}) and their clips, matched among themselves"
        pictures["Similarity and plan"] = similarity_and_plan(similarity, plan, title=title)
    return pictures


def _players(
    chosen: np.ndarray,
    clips: torch.Tensor,
    text: Mapping[str, Array],
    captions: AlignedCaptions,
    retrievals: Mapping[str, Retrieval],
    ids: Sequence[str],
    listen: Callable[[int], bytes],
) -> str:
    """One query in each language in turn, so that every language is heard from."""
    shown = _shown_language(text)
    first_caption = {int(clip): m for m, clip in reversed(list(enumerate(captions.clip_of_caption)))}
    queries = []
    for place, m in enumerate(chosen[:PLAYED_QUERIES].tolist()):
        language = list(text)[place % len(text)]
        index, cosine = best_clips(_rows(text[language], np.array([m])), clips, PLAYED_CLIPS)
        scores = retrievals[language].text_to_audio
        found = [
            Found(
                clip_id=ids[clip],
                audio=listen(clip),
                score=value,
                is_relevant=clip == captions.clip_of_caption[m],
                caption=captions.sentences[shown][first_caption[clip]] if clip in first_caption else "",
            )
            for clip, value in zip(index[0].tolist(), cosine[0].tolist(), strict=True)
        ]
        rank = float(scores.first_rank[np.searchsorted(scores.query, m)]) + 1
        queries.append(Query(captions.sentences[language][m], language, found, rank))
    return players_html(queries)


def _rows(values: Array, rows: np.ndarray) -> torch.Tensor:
    matrix = as_matrix("embeddings", values)
    return matrix[torch.from_numpy(rows).to(matrix.device)].cpu()


def _shown_language(text: Mapping[str, Array]) -> str:
    return ENGLISH if ENGLISH in text else next(iter(text))
