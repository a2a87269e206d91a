"""Everything an evaluation reports of one model, from its embeddings: numbers, intervals, comparison, pictures, players."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from ray_atr.evaluation.arrays import Array, as_matrix
from ray_atr.evaluation.bootstrap import DRAWS, LEVEL, across_seeds, bootstrap_runs, compare_runs
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
from ray_atr.evaluation.samples import Samples, retrieval_samples, zero_shot_samples
from ray_atr.evaluation.zero_shot import classification_metrics, classify_languages

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


@dataclass(frozen=True)
class Embedded:
    """One model's embeddings: clips `audio` [N, D], captions `text[language]` [M, D], its metric for plans (`plan_scores`)."""

    audio: Array
    text: Mapping[str, Array]
    metric: Array | None = None
    zero_shot: ZeroShot | None = None


@dataclass(frozen=True)
class Scored:
    """One model's numbers, every query's scores behind them, and its retrieval by similarity, for pictures."""

    metrics: dict[str, float]
    samples: Samples
    retrievals: Mapping[str, Retrieval]
    notes: list[str] = field(default_factory=list)


def score_model(embedded: Embedded, captions: AlignedCaptions, *, device: torch.device | str | None = None) -> Scored:
    """All metrics of one model on these captions: by similarity, by plan where the whole plan fits, embeddings, zero-shot."""
    clips, text, relevance = as_matrix("audio", embedded.audio), embedded.text, captions.relevance
    retrievals = retrieve_languages(clips, text, relevance, present=captions.present, device=device)
    metrics, samples = language_metrics(retrievals), retrieval_samples(retrievals)
    notes = []
    if len(clips) * len(captions) <= MAX_ENTRIES:
        by_plan = retrieve_languages(
            clips, text, relevance, present=captions.present, ranking="plan", metric=embedded.metric, device=device
        )
        metrics |= language_metrics(by_plan, "plan")
        samples |= retrieval_samples(by_plan, "plan")
    else:
        notes.append(
            f"No ranking by plan: {len(captions)} captions x {len(clips)} clips are too many for a whole plan."
        )
    metrics |= embedding_metrics(clips, text, relevance, present=captions.present)
    if embedded.zero_shot is not None:
        asked = embedded.zero_shot
        found = classify_languages(clips, asked.class_texts, asked.classes, asked.labels, device=device)
        metrics |= classification_metrics(found)
        samples |= zero_shot_samples(found)
    return Scored(metrics, samples, retrievals, notes)


def compose_page(
    title: str,
    facts: Mapping[str, Any],
    embedded: Embedded,
    captions: AlignedCaptions,
    runs: Sequence[Scored],
    *,
    baseline: Sequence[Samples] = (),
    compared: tuple[str, str] = ("baseline", "this"),
    clip_ids: Sequence[str] | None = None,
    listen: Callable[[int], bytes] | None = None,
    draws: int = DRAWS,
    level: float = LEVEL,
    seed: int = 0,
    notes: Sequence[str] = (),
) -> Page:
    """The page of one model, or of several that differ in their seed: then with means, deviations and intervals of the mean.

    embedded  what pictures and players are made of: the embeddings of the first of the runs.
    baseline  another model's samples on the same captions, one a seed: adds this minus baseline.
    listen    gives clip i's encoded audio file; with it the page has players for a few queries.
    """
    first = runs[0]
    chosen = _choose(first.retrievals, captions, seed)
    own_notes = [
        *notes,
        "Ranks are by cosine; ties count as their expectation over the orders they allow.",
        *first.notes,
    ]
    if captions.is_by_label:
        own_notes.append(
            "Queries are class captions: all clips of the class are relevant. Intervals of theirs are over classes."
        )
    fragments = {}
    if listen is not None:
        ids = clip_ids if clip_ids is not None else [str(clip) for clip in range(len(embedded.audio))]
        fragments["What queries find"] = _players(chosen, embedded, captions, first.retrievals, ids, listen)
    samples = [run.samples for run in runs]
    spreads = across_seeds([run.metrics for run in runs])
    return Page(
        title=title,
        facts=facts,
        metrics={name: spread.mean for name, spread in spreads.items()},
        intervals=bootstrap_runs(samples, draws=draws, level=level, seed=seed),
        spreads=spreads if len(runs) > 1 else {},
        comparison=compare_runs(baseline, samples, draws=draws, level=level, seed=seed) if baseline else {},
        compared=compared,
        pictures=_pictures(chosen, embedded, captions, first.retrievals, seed),
        fragments=fragments,
        notes=own_notes,
    )


def _choose(retrievals: Mapping[str, Retrieval], captions: AlignedCaptions, seed: int) -> np.ndarray:
    """One caption, present in every language, of each of some clips drawn by the seed; best and worst alike."""
    _, shared = ranks_by_language(retrievals)
    _, first = np.unique(captions.clip_of_caption[shared], return_index=True)
    return np.random.default_rng(seed).permutation(shared[first])


def _pictures(
    chosen: np.ndarray,
    embedded: Embedded,
    captions: AlignedCaptions,
    retrievals: Mapping[str, Retrieval],
    seed: int,
) -> dict[str, Figure]:
    clips, text = as_matrix("audio", embedded.audio), embedded.text
    clip_of_caption = captions.clip_of_caption
    pictures: dict[str, Figure] = {}
    few = chosen[:MAP_CLIPS]
    if len(few) > 1:
        own = {language: _rows(text[language], few) for language in text}
        pictures["Embedding map"] = embedding_map(_rows(clips, clip_of_caption[few]), own, seed=seed)
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
        texts, own_clips = _rows(text[shown], few), _rows(clips, clip_of_caption[few])
        unit = torch.nn.functional.normalize
        similarity = unit(texts.double(), dim=1) @ unit(own_clips.double(), dim=1).T
        plan = plan_scores(texts, own_clips, metric=embedded.metric).exp()
        title = f"{len(few)} captions ({shown}) and their clips, matched among themselves"
        pictures["Similarity and plan"] = similarity_and_plan(similarity, plan, title=title)
    return pictures


def _players(
    chosen: np.ndarray,
    embedded: Embedded,
    captions: AlignedCaptions,
    retrievals: Mapping[str, Retrieval],
    ids: Sequence[str],
    listen: Callable[[int], bytes],
) -> str:
    """One query in each language in turn, so that every language is heard from."""
    text, pairs = embedded.text, captions.relevance
    shown = _shown_language(text)
    caption_of = {int(clip): int(m) for m, clip in zip(reversed(pairs.text), reversed(pairs.clip), strict=True)}
    queries = []
    for place, m in enumerate(chosen[:PLAYED_QUERIES].tolist()):
        language = list(text)[place % len(text)]
        index, cosine = best_clips(_rows(text[language], np.array([m])), embedded.audio, PLAYED_CLIPS)
        relevant = set(pairs.clip[pairs.text == m].tolist())
        scores = retrievals[language].text_to_audio
        found = [
            Found(
                clip_id=ids[clip],
                audio=listen(clip),
                score=value,
                is_relevant=clip in relevant,
                caption=captions.sentences[shown][caption_of[clip]] if clip in caption_of else "",
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
