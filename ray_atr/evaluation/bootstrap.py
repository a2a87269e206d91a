"""Whether a difference is more than noise: bootstrap over clips, paired comparison, spread across seeds.

What is drawn again is the clip, with all its captions in all its languages: captions of one clip are not independent.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ray_atr.evaluation.languages import MEAN, Ranking, ranks_by_language
from ray_atr.evaluation.retrieval import MAP_AT, QueryScores, Retrieval
from ray_atr.settings import refuse

DRAWS = 1000
LEVEL = 0.95
WEIGHTS_AT_ONCE = 2**22


@dataclass(frozen=True)
class Interval:
    """A value and its bootstrap percentile interval at `level`."""

    value: float
    low: float
    high: float
    level: float


@dataclass(frozen=True)
class Difference:
    """Second minus first, on the same clips, with the interval of the paired bootstrap at `level`.

    `p_value` is twice the smaller share of draws on one side of zero.
    """

    first: float
    second: float
    value: float
    low: float
    high: float
    level: float
    p_value: float

    @property
    def is_distinguishable(self) -> bool:
        """Whether the interval leaves out zero."""
        return self.low > 0 or self.high < 0


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation (n - 1) of a metric over runs that differ in their seed alone."""

    mean: float
    deviation: float
    runs: int


def bootstrap_languages(
    retrievals: Mapping[str, Retrieval],
    *,
    ranking: Ranking = "similarity",
    draws: int = DRAWS,
    level: float = LEVEL,
    seed: int = 0,
) -> dict[str, Interval]:
    """Intervals of every metric of `language_metrics(retrievals)`, under its keys (without tie counts)."""
    _check(draws, level)
    value = _resampled(retrievals, ranking, [np.ones((1, _num_clips(retrievals)))])
    drawn = _resampled(retrievals, ranking, _weights(_clips(retrievals), _num_clips(retrievals), draws, seed))
    return {name: Interval(float(value[name][0]), *_ends(drawn[name], level), level) for name in value}


def compare_languages(
    first: Mapping[str, Retrieval],
    second: Mapping[str, Retrieval],
    *,
    ranking: Ranking = "similarity",
    draws: int = DRAWS,
    level: float = LEVEL,
    seed: int = 0,
) -> dict[str, Difference]:
    """Second minus first in every metric, for two models on the same queries: each draw of clips serves both.

    Raises ValueError where the two were not evaluated on the same languages and queries.
    """
    _check(draws, level)
    _check_same_queries(first, second)
    num_clips = _num_clips(first)
    whole = [np.ones((1, num_clips))]
    a, b = _resampled(first, ranking, whole), _resampled(second, ranking, whole)
    drawn_a = _resampled(first, ranking, _weights(_clips(first), num_clips, draws, seed))
    drawn_b = _resampled(second, ranking, _weights(_clips(first), num_clips, draws, seed))
    result = {}
    for name in a:
        drawn = drawn_b[name] - drawn_a[name]
        p_value = min(1.0, max(1 / draws, 2 * float(min(np.mean(drawn <= 0), np.mean(drawn >= 0)))))
        before, after = float(a[name][0]), float(b[name][0])
        result[name] = Difference(before, after, after - before, *_ends(drawn, level), level, p_value)
    return result


def across_seeds(runs: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    """Mean and deviation of every metric that all the runs have; the deviation of one run is NaN, not 0."""
    if not runs:
        raise refuse("runs", "none", "one or more runs' metrics")
    shared = [name for name in runs[0] if all(name in run for run in runs)]
    values = {name: np.array([run[name] for run in runs]) for name in shared}
    return {
        name: Spread(float(v.mean()), float(v.std(ddof=1)) if len(v) > 1 else float("nan"), len(v))
        for name, v in values.items()
    }


def _resampled(
    retrievals: Mapping[str, Retrieval], ranking: Ranking, weights: Sequence[np.ndarray] | Iterator[np.ndarray]
) -> dict[str, np.ndarray]:
    """Each metric under each draw, [draws]; weights are [some draws, clips], how often a clip was drawn."""
    suffix = "" if ranking == "similarity" else "_by_plan"
    parts: list[dict[str, np.ndarray]] = []
    for weight in weights:
        part: dict[str, np.ndarray] = {}
        for direction in ("text_to_audio", "audio_to_text"):
            by_language = {language: _weighted(getattr(r, direction), weight) for language, r in retrievals.items()}
            for language, metrics in by_language.items():
                part |= {f"{direction}{suffix}/{language}/{name}": value for name, value in metrics.items()}
            for name in next(iter(by_language.values())):
                mean = np.mean([metrics[name] for metrics in by_language.values()], axis=0)
                part[f"{direction}{suffix}/{MEAN}/{name}"] = mean
        ranks, shared = ranks_by_language(retrievals)
        if len(retrievals) > 1 and len(ranks):
            scores = next(iter(retrievals.values())).text_to_audio
            clip = scores.clip[np.searchsorted(scores.query, shared)]
            variance = ranks.var(axis=1)
            part[f"text_to_audio{suffix}/{MEAN}/mean_rank_variance"] = _means(variance[:, None], clip, weight)[:, 0]
        parts.append(part)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _weighted(scores: QueryScores, weight: np.ndarray) -> dict[str, np.ndarray]:
    columns = np.stack([*scores.recall.values(), scores.average_precision], axis=1)
    means = _means(columns, scores.clip, weight)
    result = {f"recall_at_{k}": means[:, i] for i, k in enumerate(scores.recall)}
    result[f"map_at_{MAP_AT}"] = means[:, -1]
    result["median_rank"] = _weighted_median(scores.first_rank, scores.clip, weight) + 1
    return result


def _means(values: np.ndarray, clip: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Mean of values [Q, C] with each query as often as its clip was drawn, [draws, C]."""
    num_clips = weight.shape[1]
    sums = np.stack([np.bincount(clip, column, minlength=num_clips) for column in values.T], axis=1)
    queries = (weight @ np.bincount(clip, minlength=num_clips))[:, None]
    return (weight @ sums) / np.where(queries > 0, queries, np.nan)


def _weighted_median(values: np.ndarray, clip: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Median of values [Q] with each query as often as its clip was drawn, [draws]; the middle two are averaged."""
    order = np.argsort(values, kind="stable")
    values = values[order]
    reached = np.cumsum(weight[:, clip[order]], axis=1)
    total = reached[:, -1:]
    lower = values[(reached >= np.floor((total + 1) / 2)).argmax(1)]
    upper = values[(reached >= np.floor(total / 2) + 1).argmax(1)]
    return np.where(total[:, 0] > 0, (lower + upper) / 2, np.nan)


def _weights(clips: np.ndarray, num_clips: int, draws: int, seed: int) -> Iterator[np.ndarray]:
    """How often each clip is drawn when as many clips as there are are drawn with replacement, [some draws, clips]."""
    generator = np.random.default_rng(seed)
    at_once = max(1, WEIGHTS_AT_ONCE // num_clips)
    for start in range(0, draws, at_once):
        weight = np.zeros((min(at_once, draws - start), num_clips))
        weight[:, clips] = generator.multinomial(len(clips), np.full(len(clips), 1 / len(clips)), size=len(weight))
        yield weight


def _ends(drawn: np.ndarray, level: float) -> tuple[float, float]:
    """Percentile interval; a draw that holds no query of a language (a language with few captions) has no value."""
    tail = (1 - level) / 2
    low, high = np.nanquantile(drawn, (tail, 1 - tail))
    return float(low), float(high)


def _clips(retrievals: Mapping[str, Retrieval]) -> np.ndarray:
    parts = [scores.clip for r in retrievals.values() for scores in (r.text_to_audio, r.audio_to_text)]
    return np.unique(np.concatenate(parts))


def _num_clips(retrievals: Mapping[str, Retrieval]) -> int:
    return int(_clips(retrievals).max()) + 1


def _check(draws: int, level: float) -> None:
    if draws < 1:
        raise refuse("draws", draws, "[1, inf)")
    if not 0 < level < 1:
        raise refuse("level", level, "(0, 1)")


def _check_same_queries(first: Mapping[str, Retrieval], second: Mapping[str, Retrieval]) -> None:
    if list(first) != list(second):
        raise refuse("second", list(second), f"the languages of the first, {list(first)}")
    for language in first:
        for direction in ("text_to_audio", "audio_to_text"):
            a, b = getattr(first[language], direction), getattr(second[language], direction)
            if not (np.array_equal(a.query, b.query) and np.array_equal(a.clip, b.clip)):
                raise refuse(f"second[{language!r}]", "other queries", "the queries of the first")
