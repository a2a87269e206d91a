"""Every measure: how it is computed from queries' scores, its heading, and its format.

A new measure of retrieval is one entry of `MEASURES`, and then is in validation, intervals, tables, pages and MLflow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ray_atr.metrics.metric import Metric

Average = Literal["mean", "median", "count", "constant"]
RECALL_AT = (1, 5, 10)
MAP_AT = 10
Z = 1.959963984540054
"""Standard normal quantile of a two-sided interval at 95%."""


@dataclass(frozen=True)
class QueryScores:
    """One direction's scores of the Q queries that have a relevant candidate; arrays [Q]."""

    query: np.ndarray
    """Index of the query among all texts (or clips)."""
    clip: np.ndarray
    """The clip of the query, which an interval resamples; a class text has a number beyond the clips'."""
    recall: dict[int, np.ndarray]
    """k -> chance in [0, 1] that the first k hold a relevant candidate; 0 or 1 unless candidates tie."""
    average_precision: np.ndarray
    """Expected AP at 10 in [0, 1]."""
    first_rank: np.ndarray
    """Expected 0-based rank of the first relevant candidate."""
    is_tied: np.ndarray
    """Whether an irrelevant candidate ties with a relevant one."""
    chance: np.ndarray
    """Chance in [0, 1] that a random order has a relevant candidate first."""


@dataclass(frozen=True)
class Measure:
    """The format of a measure, and for a measure of retrieval how it is computed.

    `values` returns each query's value [Q]. `average`: the measure is their mean, their median, their sum (`count`), or a mean
    that is the same for every model (`constant`). Counts and constants have no interval.
    """

    heading: str
    is_share: bool = False
    """In [0, 1], shown in percent."""
    decimals: int = 2
    is_higher_better: bool | None = True
    """None: neither end is better."""
    values: Callable[[QueryScores], NDArray[np.float64]] | None = None
    average: Average = "mean"

    def show(self, value: float | None, *, signed: bool = False) -> str:
        """The value as text, a dash if there is none."""
        if value is None or math.isnan(value):
            return "–"
        # Rounded before formatting, and added to 0.0, so that no number is shown as -0.
        rounded = round(value * (100 if self.is_share else 1), self.decimals) + 0.0
        text = f"{rounded:{'+' if signed else ''},.{self.decimals}f}"
        return text.replace("-", "−")

    def aggregate(self, scores: QueryScores) -> float:
        """The measure of one direction's queries."""
        assert self.values is not None, "a measure of queries"
        values = self.values(scores)
        if self.average == "median":
            return float(np.median(values))
        return float(values.sum() if self.average == "count" else values.mean())


def _share(heading: str, values: Callable[[QueryScores], NDArray[np.float64]] | None = None) -> Measure:
    return Measure(heading, is_share=True, decimals=1, values=values)


def _recall(k: int) -> Measure:
    return _share(f"R@{k} %", lambda scores: scores.recall[k])


MEASURES: dict[str, Measure] = {
    **{f"recall_at_{k}": _recall(k) for k in RECALL_AT},
    f"map_at_{MAP_AT}": _share(f"mAP{MAP_AT} %", lambda scores: scores.average_precision),
    # 1-based: 1 is perfect.
    "median_rank": Measure("median rank", decimals=1, is_higher_better=False,
                           values=lambda scores: scores.first_rank + 1, average="median"),
    "tied_queries": Measure("ties", decimals=0, is_higher_better=False,
                            values=lambda scores: scores.is_tied.astype(np.float64), average="count"),
    "queries": Measure("queries", decimals=0, is_higher_better=None,
                       values=lambda scores: np.ones(len(scores.query)), average="count"),
    # The expected R@1 of a random order: a model that does not differ from it has learned nothing.
    "chance_at_1": Measure("chance R@1 %", is_share=True, decimals=2, is_higher_better=None,
                           values=lambda scores: scores.chance, average="constant"),
    "mean_rank_variance": Measure("MRV", decimals=1, is_higher_better=False),
    "modality_gap": Measure("modality gap", decimals=3, is_higher_better=None),
    "language_gap": Measure("gap", decimals=3, is_higher_better=False),
    "language_distance": Measure("dis", decimals=3, is_higher_better=False),
    "accuracy": _share("accuracy %"),
    "map": _share("mAP %"),
    "text_to_audio_map": _share("class mAP %"),
    "text_to_audio_map_at_10": _share("class mAP10 %"),
}  # fmt: skip
ABOUT = {
    "tied_queries": "ties: queries for which a wrong candidate has the same score as a right one",
    "chance_at_1": "chance R@1: the expectation for a random order",
    "mean_rank_variance": "MRV: mean rank variance, how far the languages disagree about the rank of one caption's clip",
    "modality_gap": "modality gap: distance of the mean clip from the mean caption, both of unit norm",
    "language_gap": "gap: distance of a language's mean caption from the English one",
    "language_distance": "dis: mean distance of a caption from its English one",
}
"""Explanations of headings."""
OF_QUERIES = {name: measure for name, measure in MEASURES.items() if measure.values is not None}
"""The measures of retrieval, in both directions and every language."""


def of_queries(scores: QueryScores) -> dict[str, float]:
    """Every measure of one direction's queries, by its name."""
    return {name: measure.aggregate(scores) for name, measure in OF_QUERIES.items()}


def measure(name: str) -> Measure:
    """A measure by name; an unknown one has its name as heading."""
    return MEASURES.get(name, Measure(name.replace("_", " "), decimals=4, is_higher_better=None))


def is_chance(recall: float, chance: float, queries: float) -> bool:
    """Whether Wilson's 95% interval of a recall in [0, 1] over that many queries includes chance, or lies below it."""
    if not queries > 0:
        return False
    spread = Z * math.sqrt(max(recall * (1 - recall), 0) / queries + Z**2 / (4 * queries**2))
    low = (recall + Z**2 / (2 * queries) - spread) / (1 + Z**2 / queries)
    return low <= chance


def is_recall_at_chance(values: Mapping[Any, Any], task: str, language: str, num_runs: float = 1) -> bool:
    """Whether a task's R@1 in a language, from values by `Metric`, is `is_chance`."""
    recall, chance, queries = (values.get(Metric(task, language, n)) for n in ("recall_at_1", "chance_at_1", "queries"))
    if recall is None or chance is None or queries is None or recall != recall:
        return False
    return is_chance(recall, chance, queries * num_runs)


def pareto_front(gains: Sequence[Sequence[float]]) -> list[int]:
    """Indices of the points that are not dominated (no other point is as good in every gain and better in one), best first.

    Points that are equal in every gain are all on the front. Optuna's `best_trials` needs trials of a study.
    """

    def is_dominated(mine: Sequence[float]) -> bool:
        return any(other != mine and all(a >= b for a, b in zip(other, mine, strict=True)) for other in rows)

    rows = [tuple(gain) for gain in gains]
    front = [index for index, row in enumerate(rows) if not is_dominated(row)]
    return sorted(front, key=lambda index: rows[index], reverse=True)
