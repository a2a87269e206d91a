"""Every query's scores for resampling: their values, and the clip of each query."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ray_atr.common.settings import refuse
from ray_atr.metrics.languages import ranks_by_language
from ray_atr.metrics.measures import OF_QUERIES, QueryScores
from ray_atr.metrics.metric import DIRECTIONS, MEAN, Metric, QueryGroup, language_means, task_name
from ray_atr.metrics.retrieval import Retrieval
from ray_atr.metrics.zero_shot import CLASSIFICATION, Classification


class Sample(NamedTuple):
    """Queries of one kind in one language: metrics that are means over them, and metrics that are medians, by name."""

    query: np.ndarray
    """[Q]"""
    unit: np.ndarray
    """[Q]: the clip of each query. The bootstrap draws clips with all of their queries."""
    means: dict[str, np.ndarray]
    medians: dict[str, np.ndarray]


Samples = Mapping[QueryGroup, Sample]
KINDS_OF_ARRAYS = ("query", "unit", "mean", "median")


def retrieval_samples(retrievals: Mapping[str, Retrieval], by: str = "") -> dict[QueryGroup, Sample]:
    """The queries behind `language_metrics(retrievals, by)`; counts and constants are left out."""
    result = {
        QueryGroup(task_name(direction, by), language): _of_queries(getattr(retrieval, direction))
        for direction in DIRECTIONS
        for language, retrieval in retrievals.items()
    }
    ranks, shared = ranks_by_language(retrievals)
    if len(retrievals) > 1 and len(ranks):
        scores = next(iter(retrievals.values())).text_to_audio
        unit = scores.clip[np.searchsorted(scores.query, shared)]
        variance = {"mean_rank_variance": ranks.var(axis=1)}
        result[QueryGroup(task_name("text_to_audio", by), MEAN)] = Sample(shared, unit, variance, {})
    return result


def zero_shot_samples(classifications: Mapping[str, Classification]) -> dict[QueryGroup, Sample]:
    """The clips (and, for the maps of text to audio, classes) behind `classification_metrics`."""
    result = {}
    for language, classification in classifications.items():
        clips, classes = classification.retrieval.audio_to_text, classification.retrieval.text_to_audio
        result[QueryGroup(CLASSIFICATION, language)] = Sample(clips.query, clips.clip, classification.of_clips, {})
        result[QueryGroup(CLASSIFICATION, language, "classes")] = Sample(
            classes.query, classes.clip, classification.of_classes, {}
        )
    return result


def tasks_of(samples: Samples) -> list[str]:
    """The tasks of an evaluation; `text_to_audio_by_cosine` exists only with a learned metric."""
    return list(dict.fromkeys(group.task for group in samples))


def languages_of(samples: Samples) -> list[str]:
    """The languages of an evaluation's captions."""
    return [group.language for group in samples if group.task == DIRECTIONS[0] and group.language != MEAN]


def in_shared_tasks(runs: Sequence[Samples]) -> list[dict[QueryGroup, Sample]]:
    """The runs with only the tasks that all of them have, in the order of the first.

    ValueError if there is none, or if one has it in other languages.
    """
    shared = {task for task in tasks_of(runs[0]) if all(task in tasks_of(other) for other in runs[1:])}
    groups = [group for group in runs[0] if group.task in shared]
    for other in runs[1:]:
        theirs = [group for group in other if group.task in shared]
        if not groups or set(theirs) != set(groups):
            raise refuse("second", theirs or list(other), f"the languages of the first, {groups or list(runs[0])}")
    return [{group: run[group] for group in groups} for run in runs]


def check_same_queries(first: Samples, second: Samples) -> None:
    """ValueError unless two evaluations have the same queries in the same languages."""
    if list(first) != list(second):
        raise refuse("second", list(second), f"the tasks and languages of the first, {list(first)}")
    for group, sample in first.items():
        other = second[group]
        if not (np.array_equal(sample.query, other.query) and np.array_equal(sample.unit, other.unit)):
            raise refuse(f"second[{str(group)!r}]", "other queries", "the queries of the first")


def resampled(samples: Samples, weight: np.ndarray, trained: Collection[str] | None = None) -> dict[Metric, np.ndarray]:
    """Each metric under each draw, [draws]; weight [draws, units] is how often a unit was drawn.

    `trained` are the languages that the model was trained on (None: all); see `language_means`.
    """
    result: dict[Metric, np.ndarray] = {}
    by_measure: dict[tuple[str, str], dict[str, np.ndarray]] = {}
    for group, sample in samples.items():
        task, language = group.task, group.language
        by_name = dict(zip(sample.means, _means(list(sample.means.values()), sample.unit, weight), strict=True))
        by_name |= {name: _weighted_median(values, sample.unit, weight) for name, values in sample.medians.items()}
        for name, drawn in by_name.items():
            result[Metric(task, language, name)] = drawn
            if language != MEAN:
                by_measure.setdefault((task, name), {})[language] = drawn
    for (task, name), of_languages in by_measure.items():
        means = language_means(of_languages, trained)
        result |= {Metric(task, mean, name): drawn for mean, drawn in means.items()}
    return result


def to_arrays(samples: Samples) -> dict[str, np.ndarray]:
    """`{"text_to_audio/fra:mean:recall_at_1": [Q], ...}`, for `numpy.savez`; `from_arrays` is its inverse."""
    result: dict[str, np.ndarray] = {}
    for group, sample in samples.items():
        result |= {f"{group}:query": sample.query, f"{group}:unit": sample.unit}
        result |= {f"{group}:mean:{name}": values for name, values in sample.means.items()}
        result |= {f"{group}:median:{name}": values for name, values in sample.medians.items()}
    return result


def from_arrays(arrays: Mapping[str, np.ndarray]) -> dict[QueryGroup, Sample]:
    """The samples of `to_arrays` (or of the file that `numpy.load` opens), in their order."""
    of_groups: dict[QueryGroup, dict[str, dict[str, np.ndarray]]] = {}
    for name in arrays:
        key, _, rest = name.partition(":")
        kind, _, metric = rest.partition(":")
        if kind not in KINDS_OF_ARRAYS:
            raise refuse("arrays", name, "the arrays that to_arrays makes")
        of_groups.setdefault(QueryGroup.parse(key, "arrays"), {kind: {} for kind in KINDS_OF_ARRAYS})[kind][metric] = (
            arrays[name]
        )
    absent = [f"{key}:{kind}" for key, parts in of_groups.items() for kind in ("query", "unit") if not parts[kind]]
    if absent or not of_groups:
        raise refuse("arrays", f"no {', '.join(absent[:3]) or 'arrays'}", "the arrays that to_arrays makes")
    return {
        key: Sample(parts["query"][""], parts["unit"][""], parts["mean"], parts["median"])
        for key, parts in of_groups.items()
    }


def _of_queries(scores: QueryScores) -> Sample:
    by_average: dict[str, dict[str, np.ndarray]] = {"mean": {}, "median": {}}
    for name, measure in OF_QUERIES.items():
        if measure.values is not None and measure.average in by_average:
            by_average[measure.average][name] = measure.values(scores)
    return Sample(scores.query, scores.clip, by_average["mean"], by_average["median"])


def _means(values: Sequence[np.ndarray], unit: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Weighted mean of each of C arrays of values [Q], a query's weight being how often its unit was drawn, [C, draws]."""
    sums = np.stack([np.bincount(unit, column, minlength=weight.shape[1]) for column in values], axis=1)
    queries = (weight @ np.bincount(unit, minlength=weight.shape[1]))[:, None]
    return ((weight @ sums) / np.where(queries > 0, queries, np.nan)).T


def _weighted_median(values: np.ndarray, unit: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Median of values [Q], each query repeated as often as its unit was drawn, [draws]; the middle two are averaged."""
    order = np.argsort(values, kind="stable")
    values = values[order]
    reached = np.cumsum(weight[:, unit[order]], axis=1)
    total = reached[:, -1:]
    lower = values[(reached >= np.floor((total + 1) / 2)).argmax(1)]
    upper = values[(reached >= np.floor(total / 2) + 1).argmax(1)]
    return np.where(total[:, 0] > 0, (lower + upper) / 2, np.nan)
