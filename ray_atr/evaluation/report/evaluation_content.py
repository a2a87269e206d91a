"""The content of an evaluation's page, from embeddings: numbers, intervals, comparison, pictures, players."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch.nn import functional

from ray_atr.common.language_codes import ENGLISH
from ray_atr.common.ranking import RankingSettings
from ray_atr.evaluation.report.evaluation_page import Page, Query, RetrievedClip
from ray_atr.evaluation.report.evaluation_pictures import embedding_map, rank_heat_map, similarity_and_plan
from ray_atr.evaluation.report.evaluation_tables import lacks, task_title, trained_by_both
from ray_atr.metrics.alignment import AlignedCaptions, ranked_by
from ray_atr.metrics.bootstrap import DRAWS, LEVEL, across_seeds, bootstrap_runs, compare_runs
from ray_atr.metrics.languages import (
    embedding_metrics,
    language_metrics,
    ranks_by_language,
    retrieve_languages,
)
from ray_atr.metrics.measures import is_recall_at_chance
from ray_atr.metrics.metric import DIRECTIONS, TRAINED, Metric, QueryGroup, of_part, task_within
from ray_atr.metrics.ranking import MAX_ENTRIES, LearnedMetric, audio_rows, plan_scores, rankings_beside, text_rows
from ray_atr.metrics.relevance import Array, as_matrix
from ray_atr.metrics.retrieval import Retrieval
from ray_atr.metrics.samples import Sample, Samples, retrieval_samples, tasks_of, zero_shot_samples
from ray_atr.metrics.zero_shot import CLASSIFICATION, classification_metrics, classify_languages

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
    trained: Collection[str] | None = None
    """The classes that the model was trained on; None: unknown."""

    @property
    def title(self) -> str:
        """The name of this classification: zero-shot only if no class was trained on."""
        if self.trained is None:
            return "Text-prompt classification (not known which classes were trained on)"
        trained = sum(name in self.trained for name in self.classes)
        words = "" if trained == len(self.classes) else f"{trained} of {len(self.classes)} "
        return f"Text-prompt classification, {words}trained classes" if trained else "Zero-shot classification"


@dataclass(frozen=True)
class Embedded:
    """One model's embeddings: clips `audio` [N, D], captions `text[language]` [M, D], and how they are ranked.

    metric   the learned metric (`as_metric`).
    trained  the languages that it was trained on; None: unknown, or all.
    notes    notes about captions that could not be embedded.
    similarity  of each language's existing captions with the clips, [P, N], for a model of late interaction.
    """

    audio: Array
    text: Mapping[str, Array]
    metric: LearnedMetric | None = None
    ranking: RankingSettings = RankingSettings()
    trained: Collection[str] | None = None
    zero_shot: ZeroShot | None = None
    notes: Sequence[str] = ()
    similarity: Mapping[str, Array] | None = None


@dataclass(frozen=True)
class ScoredModel:
    """One model's metrics, the scores of every query, and its retrieval by similarity, for pictures."""

    metrics: dict[Metric, float]
    samples: Samples
    retrievals: Mapping[str, Retrieval]
    notes: list[str] = field(default_factory=list)


def score_model(
    embedded: Embedded,
    captions: AlignedCaptions,
    *,
    parts: Mapping[str, NDArray[np.int64]] | None = None,
    device: torch.device | str | None = None,
    most_entries: int = MAX_ENTRIES,
) -> ScoredModel:
    """All metrics of one model on these captions: of every ranking that differs, of embeddings, and of classification.
    The ranking by plan is left out if the plan would have more than `most_entries` entries.

    `parts`: clips [n], ascending, by the name of their data set, within which their captions are ranked too (`of_part`).
    """
    clips, relevance, ranking = as_matrix("audio", embedded.audio), captions.relevance, embedded.ranking
    metrics: dict[Metric, float] = {}
    samples: dict[QueryGroup, Sample] = {}
    notes = []
    beside = rankings_beside(ranking.ranking, has_metric=embedded.metric is not None)
    if "plan" in beside and len(clips) * len(captions) > most_entries:
        beside.remove("plan")
        notes.append(
            f"No ranking by plan: {len(captions)} captions x {len(clips)} clips are too many for a whole plan."
        )
    chosen = _retrieved(embedded, captions, device)
    if embedded.similarity is not None:
        beside = ["cosine"]
        notes = [
            "Ranked by late interaction. The ranking by cosine, the embedding map and classification use pooled embeddings."
        ]
    for by, retrievals in [("", chosen), *((by, _ranked(embedded, captions, by, device)) for by in beside)]:
        metrics |= language_metrics(retrievals, by, embedded.trained)
        samples |= retrieval_samples(retrievals, by)
    for part, rows in (parts or {}).items():
        within = _retrieved(*_within(embedded, captions, rows), device)
        metrics |= {
            of_part(metric, part): value for metric, value in language_metrics(within, trained=embedded.trained).items()
        }
        # A class caption's number is beyond the clips': beyond those of the part, and of the whole.
        units = np.concatenate([rows, len(clips) + np.arange(len(captions))])
        samples |= {
            QueryGroup(task_within(queries.task, part), queries.language): sample._replace(unit=units[sample.unit])
            for queries, sample in retrieval_samples(within).items()
        }
    metrics |= embedding_metrics(clips, embedded.text, relevance, present=captions.present)
    if (zero_shot := embedded.zero_shot) is not None:
        by_distance = embedded.metric if ranking.ranking != "cosine" else None
        classified = classify_languages(
            clips, zero_shot.class_texts, zero_shot.classes, zero_shot.labels, metric=by_distance, device=device
        )
        metrics |= classification_metrics(classified, embedded.trained)
        samples |= zero_shot_samples(classified)
    return ScoredModel(metrics, samples, chosen, notes)


def _retrieved(
    embedded: Embedded, captions: AlignedCaptions, device: torch.device | str | None
) -> dict[str, Retrieval]:
    """What each language's captions retrieve, as the model ranks."""
    if embedded.similarity is None:
        return _ranked(embedded, captions, embedded.ranking.ranking, device)
    matrices = {language: as_matrix("similarity", scores) for language, scores in embedded.similarity.items()}
    return {language: ranked_by(matrix, captions, language) for language, matrix in matrices.items()}


def _ranked(
    embedded: Embedded, captions: AlignedCaptions, by: str, device: torch.device | str | None
) -> dict[str, Retrieval]:
    return retrieve_languages(
        embedded.audio, embedded.text, captions.relevance, present=captions.present, ranking=by,
        metric=embedded.metric, plan=embedded.ranking.plan, device=device,
    )  # fmt: skip


def _within(
    embedded: Embedded, captions: AlignedCaptions, clips: NDArray[np.int64]
) -> tuple[Embedded, AlignedCaptions]:
    """Some clips [n], ascending, with their captions, in the languages in which they have some."""
    rows = torch.from_numpy(clips)
    relevance, is_theirs = captions.relevance.of_clips(rows), np.zeros(len(captions), bool)
    is_theirs[relevance.text.numpy()] = True
    present = {code: has & is_theirs for code, has in captions.present.items() if (has & is_theirs).any()}
    similarity = embedded.similarity and {
        code: as_matrix("similarity", embedded.similarity[code])[is_theirs[captions.present[code]]][:, rows]
        for code in present
    }
    text = {code: embedded.text[code] for code in present}
    audio = as_matrix("audio", embedded.audio)[rows]
    theirs = AlignedCaptions(captions.sentences, present, relevance)
    return replace(embedded, audio=audio, text=text, similarity=similarity), theirs


def compose_page(
    title: str,
    facts: Mapping[str, Any],
    embedded: Embedded,
    captions: AlignedCaptions,
    runs: Sequence[ScoredModel],
    *,
    baseline: Sequence[Samples] = (),
    compared: tuple[str, str] = ("baseline", "this"),
    trained_before: Collection[str] | None = None,
    clip_ids: Sequence[str] | None = None,
    listen: Callable[[int], bytes | None] | None = None,
    draws: int = DRAWS,
    level: float = LEVEL,
    seed: int = 0,
    figures: bool = True,
    named: Sequence[int] = (),
    notes: Sequence[str] = (),
    warnings: Sequence[str] = (),
) -> Page:
    """The page of one model, or of several that differ in their seed: then with means, deviations and intervals of the mean.

    embedded  what pictures and players are made of: the embeddings of the first of the runs.
    baseline  another model's samples on the same captions, one a seed: adds this minus baseline. `trained_before` are the
              languages that it was trained on (None: not known, or all); means of differences are over those of both.
    named     captions that pictures and players show before those that the seed draws; every language has them.
    listen    gives clip i's encoded audio file, or None; with it the page shows what a few queries find, with players.
    """
    first, samples, trained = runs[0], [run.samples for run in runs], embedded.trained
    intervals = bootstrap_runs(samples, trained=trained, draws=draws, level=level, seed=seed)
    spreads = across_seeds([run.metrics for run in runs])
    means = {name: spread.mean for name, spread in spreads.items()}
    titles = {CLASSIFICATION: embedded.zero_shot.title} if embedded.zero_shot is not None else {}
    ranks = f"Ranks are {ranked_how(embedded)}; ties count as their expectation over the orders they allow."
    own_notes = [*notes, *embedded.notes, ranks, *first.notes]
    if captions.is_by_label:
        own_notes.append(
            "Queries are class captions: all clips of the class are relevant. Their intervals are over classes."
        )
    comparison = {}
    if baseline:
        shared = trained_by_both(trained_before, trained)
        comparison = compare_runs(baseline, samples, trained=shared, draws=draws, level=level, seed=seed)
        own_notes += _not_both_trained(compared, (trained_before, trained), list(embedded.text))
        own_notes += _of_one_alone(compared, (baseline[0], samples[0]), titles)
    ids = clip_ids if clip_ids is not None else [str(clip) for clip in range(len(embedded.audio))]
    chosen = _choose(first.retrievals, captions, seed, named)
    shown = _Shown(chosen, len(named), embedded, captions, first.retrievals, ids)
    return Page(
        title=title,
        facts=facts,
        metrics=means,
        intervals=intervals,
        warnings=[*warnings, *_learnt_nothing(means, len(runs))],
        spreads=spreads if len(runs) > 1 else {},
        comparison=comparison,
        compared=compared,
        trained=trained,
        trained_before=trained_before,
        titles=titles,
        pictures=_pictures(shown, seed) if figures else {},
        queries=[] if listen is None else _queries(shown, listen),
        notes=own_notes,
    )


def _learnt_nothing(metrics: Mapping[Metric, float], num_runs: int) -> list[str]:
    """A note if R@1 of the trained languages is not distinguishable from chance in either direction, as tables mark it."""
    at_chance = []
    for direction in DIRECTIONS:
        if not is_recall_at_chance(metrics, direction, TRAINED, num_runs):
            return []
        recall, chance = (100 * metrics[Metric(direction, TRAINED, name)] for name in ("recall_at_1", "chance_at_1"))
        at_chance.append(f"{recall:.1f}% {direction.replace('_', ' ')}, chance is {chance:.1f}%")
    return [f"It learned nothing: R@1 is not distinguishable from chance ({'; '.join(at_chance)})."]


def _not_both_trained(
    names: tuple[str, str], trained: tuple[Collection[str] | None, Collection[str] | None], languages: Sequence[str]
) -> list[str]:
    """A note about languages that one of the two was not trained on, and about the languages of the means of differences."""
    without = {
        name: alone
        for name, learned in zip(names, trained, strict=True)
        if (alone := [language for language in languages if lacks(learned, language)])
    }
    if not without:
        return []
    shared = [language for language in languages if not any(language in alone for alone in without.values())]
    missing = "; ".join(f"{name} had no captions in {', '.join(alone)}" for name, alone in without.items())
    over = f"over {', '.join(shared)}" if shared else "over all languages, as there is none that both were trained on"
    return [f"In training, {missing}. Means of differences are {over}."]


def _of_one_alone(names: tuple[str, str], both: tuple[Samples, Samples], titles: Mapping[str, str]) -> list[str]:
    """A note about tasks that are not compared, because one of the two lacks them."""
    before, after = map(tasks_of, both)
    notes = []
    for name, tasks, other in zip(names, (before, after), (after, before), strict=True):
        if alone := [task_title(task, titles) for task in tasks if task not in other]:
            notes.append(f"Not compared, as {name} alone has it: {'; '.join(alone)}.")
    return notes


def ranked_how(embedded: Embedded) -> str:
    """A description of the ranking."""
    ranking = embedded.ranking
    if embedded.similarity is not None:
        return "by late interaction, audio frames with text tokens"
    if ranking.ranking == "plan":
        sweeps = f"{ranking.plan_sweeps} sweeps" if ranking.plan_sweeps else "to convergence"
        return (
            f"by the transport plan at epsilon {ranking.plan_epsilon:g}, {sweeps} (transductive: all queries are matched at "
            "once, so one query's answer depends on the others)"
        )
    return "by cosine" if ranking.ranking == "cosine" or embedded.metric is None else "by the learned distance"


def _choose(
    retrievals: Mapping[str, Retrieval], captions: AlignedCaptions, seed: int, named: Sequence[int]
) -> np.ndarray:
    """The named captions; then one that every language has of each other clip, drawn by the seed, best and worst alike."""
    _, shared = ranks_by_language(retrievals)
    _, first = np.unique(captions.clip_of_caption[shared], return_index=True)
    drawn = np.random.default_rng(seed).permutation(shared[first])
    queries = np.array(list(dict.fromkeys(named)), dtype=drawn.dtype)
    is_other = ~np.isin(captions.clip_of_caption[drawn], captions.clip_of_caption[queries])
    return np.concatenate([queries, drawn[is_other]])


class _Shown(NamedTuple):
    """The captions of pictures and players, the named ones first, and their results."""

    chosen: np.ndarray
    num_named: int
    embedded: Embedded
    captions: AlignedCaptions
    retrievals: Mapping[str, Retrieval]
    ids: Sequence[str]


def _pictures(shown: _Shown, seed: int) -> dict[str, Figure]:
    chosen, num_named, embedded, captions, retrievals, ids = shown
    clips, text, clip_of_caption = embedded.audio, embedded.text, captions.clip_of_caption
    pictures: dict[str, Figure] = {}
    few = chosen[:MAP_CLIPS]
    if len(few) > 1:
        few_texts = {language: _rows(text[language], few) for language in text}
        pictures["Embedding map"] = embedding_map(_rows(clips, clip_of_caption[few]), few_texts, seed=seed)
    language = _shown_language(text)
    few = chosen[: max(HEAT_MAP_CAPTIONS, num_named)]
    if len(few):
        ranks, shared = ranks_by_language(retrievals)
        pictures["Ranks of some captions' clips, by language"] = rank_heat_map(
            ranks[np.searchsorted(shared, few)],
            list(retrievals),
            [captions.sentences[language][m] for m in few],
            names=[ids[clip] for clip in clip_of_caption[few]],
            num_candidates=len(clips),
        )
    few = chosen[:MATRIX_CLIPS]
    if len(few) > 1:
        texts, own_clips = _rows(text[language], few), _rows(clips, clip_of_caption[few])
        similarity = functional.normalize(texts.double(), dim=1) @ functional.normalize(own_clips.double(), dim=1).T
        by = embedded.ranking.plan
        plan = plan_scores(texts, own_clips, epsilon=by.epsilon, sweeps=by.sweeps, metric=embedded.metric).exp()
        title = f"{len(few)} captions ({language}) and their clips, matched among themselves"
        pictures["Similarity and plan"] = similarity_and_plan(similarity, plan, title=title)
    return pictures


def _queries(shown: _Shown, listen: Callable[[int], bytes | None]) -> list[Query]:
    """The results of some queries, in each language in turn."""
    chosen, num_named, embedded, captions, retrievals, ids = shown
    text, pairs = embedded.text, captions.relevance
    usual = _shown_language(text)
    first_of = {
        (language, int(clip)): captions.sentences[language][m]
        for language in text
        for m, clip in zip(reversed(pairs.text), reversed(pairs.clip), strict=True)
        if captions.present[language][m]
    }
    scores_of = CaptionScores(embedded, captions)
    play = cache(listen)  # reads a shard, and several queries may find the same clip
    queries = []
    for place, m in enumerate(chosen[: max(PLAYED_QUERIES, num_named)].tolist()):
        language = list(text)[place % len(text)]
        query = np.searchsorted(retrievals[language].text_to_audio.query, m)
        scores, index = scores_of.of(language, np.array([m])).topk(min(PLAYED_CLIPS, len(ids)), dim=1)
        relevant = set(pairs.clip[pairs.text == m].tolist())
        retrieved = [
            RetrievedClip(ids[clip], play(clip), score, clip in relevant, first_of.get((code, clip), ""), code)
            for clip, score in zip(index[0].tolist(), scores[0].tolist(), strict=True)
            for code in [language if (language, clip) in first_of else usual]
        ]
        rank = float(retrievals[language].text_to_audio.first_rank[query]) + 1
        queries.append(Query(captions.sentences[language][m], language, retrieved, rank, scores_of.kind))
    return queries


class CaptionScores:
    """The clips' scores for captions, higher ones first, in the order that ranks them in an evaluation's tables."""

    def __init__(self, embedded: Embedded, captions: AlignedCaptions) -> None:
        self.embedded, self.captions = embedded, captions
        by = embedded.ranking.ranking
        self.metric = embedded.metric if by != "cosine" else None
        self.kind = "cosine" if self.metric is None else "minus distance"
        if embedded.similarity is not None:
            self.kind = "similarity"
        elif by == "plan":
            self.kind = "log of the plan"
        self._plan = cache(self._whole_plan)

    def of(self, language: str, rows: np.ndarray) -> torch.Tensor:
        """Scores [R, N], on the CPU, of captions `rows` that the language has."""
        rows_present = np.searchsorted(np.flatnonzero(self.captions.present[language]), rows)
        if self.embedded.similarity is not None:
            return _rows(self.embedded.similarity[language], rows_present)
        if self.kind == "log of the plan":
            return self._plan(language)[torch.from_numpy(rows_present)]
        texts = _rows(self.embedded.text[language], rows)
        if self.metric is None:
            return functional.normalize(texts.float(), dim=1) @ self._clips.T
        # The product of these rows is minus half of the squared distance.
        return -(-2 * text_rows(texts, self.metric) @ self._clips.T).clamp(min=0).sqrt()

    @cached_property
    def _clips(self) -> torch.Tensor:
        clips = as_matrix("audio", self.embedded.audio).cpu()
        return functional.normalize(clips.float(), dim=1) if self.metric is None else audio_rows(clips, self.metric)

    def _whole_plan(self, language: str) -> torch.Tensor:
        embedded, plan = self.embedded, self.embedded.ranking.plan
        texts = _rows(embedded.text[language], np.flatnonzero(self.captions.present[language]))
        scores = plan_scores(texts, embedded.audio, epsilon=plan.epsilon, sweeps=plan.sweeps, metric=embedded.metric)
        return scores.cpu()


def _rows(values: Array, rows: np.ndarray) -> torch.Tensor:
    matrix = as_matrix("embeddings", values)
    return matrix[torch.from_numpy(rows).to(matrix.device)].cpu()


def _shown_language(text: Mapping[str, Array]) -> str:
    return ENGLISH if ENGLISH in text else next(iter(text))
