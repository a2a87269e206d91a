"""Metrics by their keys -> tables a person reads: one a direction, a row a language, a column a metric."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ray_atr.evaluation.bootstrap import Difference, Interval, Spread
from ray_atr.evaluation.languages import MEAN

TITLES = {
    "text_to_audio": "Text to audio",
    "audio_to_text": "Audio to text",
    "text_to_audio_by_plan": "Text to audio, ranked by plan",
    "audio_to_text_by_plan": "Audio to text, ranked by plan",
    "zero_shot": "Zero-shot classification",
    "embedding": "Embeddings",
}
NOTES = {
    "text_to_audio_by_plan": "Transductive: all queries are matched at once, so one query's answer depends on the others.",
    "audio_to_text_by_plan": "Transductive: all queries are matched at once, so one query's answer depends on the others.",
    "embedding": "Distances between unit vectors; gap and distance are from English.",
}


@dataclass(frozen=True)
class Measure:
    """How a metric is shown: its heading, whether it is a share in [0, 1] (shown in %), and its decimals."""

    heading: str
    is_share: bool = False
    decimals: int = 2

    def show(self, value: float, signed: bool = False) -> str:
        if math.isnan(value):
            return "–"
        text = f"{value * (100 if self.is_share else 1):{'+' if signed else ''}.{self.decimals}f}"
        return text.replace("-", "−")


MEASURES = {
    "recall_at_1": Measure("R@1 %", True, 1),
    "recall_at_5": Measure("R@5 %", True, 1),
    "recall_at_10": Measure("R@10 %", True, 1),
    "map_at_10": Measure("mAP10 %", True, 1),
    "median_rank": Measure("median rank", False, 1),
    "tied_queries": Measure("tied queries", False, 0),
    "mean_rank_variance": Measure("MRV", False, 1),
    "modality_gap": Measure("modality gap", False, 3),
    "language_gap": Measure("gap", False, 3),
    "language_distance": Measure("dis", False, 3),
    "accuracy": Measure("accuracy %", True, 1),
    "map": Measure("mAP %", True, 1),
    "text_to_audio_map": Measure("class mAP %", True, 1),
    "text_to_audio_map_at_10": Measure("class mAP10 %", True, 1),
}


@dataclass(frozen=True)
class Table:
    """A titled table of ready text; `rows` are (label, cells)."""

    title: str
    note: str
    columns: list[str]
    rows: list[tuple[str, list[str]]]


def metric_tables(
    metrics: Mapping[str, float],
    intervals: Mapping[str, Interval] | None = None,
    spreads: Mapping[str, Spread] | None = None,
) -> list[Table]:
    """One table for each group of keys `group/language/metric`; the mean is the last row, an absent value a dash.

    A cell is the value, then its interval in brackets where there is one, and "mean ± deviation" where seeds are given.
    """
    groups: dict[str, dict[str, dict[str, str]]] = {}
    for key, value in metrics.items():
        group, language, name = _split(key)
        cell = measure(name).show(value)
        if spreads and key in spreads:
            spread = spreads[key]
            cell = f"{measure(name).show(spread.mean)} ± {measure(name).show(spread.deviation)}"
        if intervals and key in intervals:
            ends = (measure(name).show(intervals[key].low), measure(name).show(intervals[key].high))
            cell = f"{cell} [{ends[0]}, {ends[1]}]"
        groups.setdefault(group, {}).setdefault(language, {})[name] = cell
    return [_table(group, rows) for group, rows in groups.items()]


def comparison_tables(comparison: Mapping[str, Difference], first: str, second: str) -> list[Table]:
    """Second against first: both values and their difference for the means over languages, then differences by language.

    A difference has its interval in brackets, and a star where that leaves out zero.
    """
    tables = [_summary(comparison, first, second)]
    by_language: dict[str, dict[str, dict[str, str]]] = {}
    for key, difference in comparison.items():
        group, language, name = _split(key)
        by_language.setdefault(group, {}).setdefault(language, {})[name] = _difference(difference, measure(name))
    return tables + [
        _table(group, rows, f"Difference, {_lower(TITLES.get(group, group))}") for group, rows in by_language.items()
    ]


def _summary(comparison: Mapping[str, Difference], first: str, second: str) -> Table:
    """Rows are metrics: of their mean over languages, or of the one language there is."""
    languages = list(dict.fromkeys(_split(key)[1] for key in comparison))
    shown = MEAN if MEAN in languages else languages[0]
    rows = []
    for key, difference in sorted(comparison.items(), key=lambda item: _order(_split(item[0]))):
        group, language, name = _split(key)
        if language == shown:
            show = measure(name)
            values = [show.show(difference.first), show.show(difference.second), _difference(difference, show)]
            rows.append((f"{TITLES.get(group, group)}, {show.heading}", [*values, f"{difference.p_value:.3f}"]))
    note = "Mean of the languages. " if shown == MEAN and len(languages) > 1 else ""
    return Table("Difference", f"{note}A star: the interval leaves out zero.", [first, second, "difference", "p"], rows)


def _difference(difference: Difference, show: Measure) -> str:
    star = " *" if difference.is_distinguishable else ""
    ends = f"{show.show(difference.low, True)}, {show.show(difference.high, True)}"
    return f"{show.show(difference.value, True)}{star} [{ends}]"


def _order(key: tuple[str, str, str]) -> tuple[int, int]:
    group, _, name = key
    return (
        list(TITLES).index(group) if group in TITLES else len(TITLES),
        list(MEASURES).index(name) if name in MEASURES else len(MEASURES),
    )


def _lower(title: str) -> str:
    return title[0].lower() + title[1:]


def measure(name: str) -> Measure:
    """How a metric is shown; one this page does not know, by its name."""
    return MEASURES.get(name, Measure(name.replace("_", " "), False, 4))


def _split(key: str) -> tuple[str, str, str]:
    """`group/language/metric`, or `group/metric` for one language."""
    first, *middle, last = key.split("/")
    return first, "/".join(middle), last


def _table(group: str, rows: dict[str, dict[str, str]], title: str = "") -> Table:
    names = list(dict.fromkeys(name for cells in rows.values() for name in cells))
    known = [name for name in MEASURES if name in names]
    names = known + [name for name in names if name not in MEASURES]
    ordered = sorted(rows, key=lambda language: language == MEAN)
    return Table(
        title or TITLES.get(group, group),
        NOTES.get(group, ""),
        [measure(name).heading for name in names],
        [(language, [rows[language].get(name, "–") for name in names]) for language in ordered],
    )
