"""Metrics by their keys -> tables a person reads: one a direction, a row a language, a column a metric."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ray_atr.metrics.bootstrap import Difference, Interval, Spread
from ray_atr.metrics.measures import MEASURES, Measure, measure
from ray_atr.metrics.metric import MEAN, MEANS, TRAINED, UNSEEN, Metric, task_name
from ray_atr.metrics.zero_shot import CLASSIFICATION
from ray_atr.table import Cell, Table

DIRECTION_TITLES = {"text_to_audio": "Text to audio", "audio_to_text": "Audio to text"}
BY = {"plan": "ranked by plan", "cosine": "ranked by cosine", "learned": "ranked by the learned distance"}
TITLES = {
    **DIRECTION_TITLES,
    **{
        task_name(direction, by): f"{title}, {words}"
        for by, words in BY.items()
        for direction, title in DIRECTION_TITLES.items()
    },
    CLASSIFICATION: "Text-prompt classification",
    "embedding": "Embeddings",
}
ABSENT = Cell("–")
UNSHOWN = ("queries",)
"""Measures that say nothing of the model."""
GROUPS = {TRAINED: "trained languages", UNSEEN: "no captions in training", MEAN: "mean"}
TRANSDUCTIVE = "Transductive: all queries are matched at once, so one query's answer depends on the others."
NOTES = {
    **{task_name(direction, "plan"): TRANSDUCTIVE for direction in DIRECTION_TITLES},
    "embedding": "Distances between unit vectors; gap and distance are from English.",
}


def metric_tables(
    metrics: Mapping[Metric, float],
    intervals: Mapping[Metric, Interval] | None = None,
    spreads: Mapping[Metric, Spread] | None = None,
    titles: Mapping[str, str] | None = None,
    trained: Collection[str] | None = None,
) -> list[Table]:
    """One table for each group of keys `group/language/metric`; the mean is the last row, an absent value a dash.

    A cell is the value, its interval in brackets as its detail if there is one, and "mean ± deviation" if seeds are given.
    """
    groups: dict[str, dict[str, dict[str, Cell]]] = {}
    for key, value in metrics.items():
        metric = Metric.parse(key)
        show = measure(metric.name).show
        text, detail = show(value), ""
        if spreads and key in spreads:
            text = f"{show(spreads[key].mean)} ± {show(spreads[key].deviation)}"
        if intervals and key in intervals:
            detail = f"[{show(intervals[key].low)}, {show(intervals[key].high)}]"
        groups.setdefault(metric.task, {}).setdefault(metric.language, {})[metric.name] = Cell(text, detail=detail)
    return [_table(rows, task_title(group, titles), NOTES.get(group, ""), trained) for group, rows in groups.items()]


def comparison_tables(
    comparison: Mapping[Metric, Difference],
    first: str,
    second: str,
    titles: Mapping[str, str] | None = None,
    trained: Collection[str] | None = None,
) -> list[Table]:
    """Second against first: both values and their difference for the means over languages, then differences by language.

    A difference has its interval in brackets, and a star where that leaves out zero.
    """
    tables = [_summary(comparison, first, second, titles)]
    by_language: dict[str, dict[str, dict[str, Cell]]] = {}
    for key, difference in comparison.items():
        metric = Metric.parse(key)
        shown = _difference(difference, measure(metric.name))
        by_language.setdefault(metric.task, {}).setdefault(metric.language, {})[metric.name] = shown
    return tables + [
        _table(rows, f"Difference, {_lower(task_title(group, titles))}", NOTES.get(group, ""), trained)
        for group, rows in by_language.items()
    ]


def _summary(
    comparison: Mapping[Metric, Difference], first: str, second: str, titles: Mapping[str, str] | None
) -> Table:
    """Rows are metrics: of their mean over the trained languages, or over all if they were not told apart."""
    metrics = {Metric.parse(key): difference for key, difference in comparison.items()}
    languages = list(dict.fromkeys(metric.language for metric in metrics))
    shown = next((group for group in (TRAINED, MEAN) if group in languages), languages[0])
    rows = []
    for metric in sorted((metric for metric in metrics if metric.language == shown), key=_order):
        difference, show = metrics[metric], measure(metric.name)
        texts = [show.show(difference.first), show.show(difference.second)]
        cells = [*map(Cell, texts), _difference(difference, show), Cell(f"{difference.p_value:.3f}")]
        rows.append([Cell(f"{task_title(metric.task, titles)}, {show.heading}", is_number=False), *cells])
    note = "Mean of the trained languages. " if UNSEEN in languages else "Mean of the languages. "
    return Table(
        "Difference",
        f"{note if len(languages) > 3 else ''}A star: the interval leaves out zero.",
        ["", first, second, "difference", "p"],
        [rows],
    )


def _difference(difference: Difference, show: Measure) -> Cell:
    star = " *" if difference.is_distinguishable else ""
    ends = f"{show.show(difference.low, signed=True)}, {show.show(difference.high, signed=True)}"
    return Cell(f"{show.show(difference.value, signed=True)}{star}", detail=f"[{ends}]")


def _order(metric: Metric) -> tuple[int, int]:
    return (
        list(TITLES).index(metric.task) if metric.task in TITLES else len(TITLES),
        list(MEASURES).index(metric.name) if metric.name in MEASURES else len(MEASURES),
    )


def task_title(task: str, titles: Mapping[str, str] | None = None) -> str:
    """What a task is called, if `titles` has no other name for it."""
    return {**TITLES, **(titles or {})}.get(task, task)


def in_words(metric: Metric) -> str:
    """A metric as a person says it, without its unit: `R@1, text to audio, trained languages`."""
    language = GROUPS.get(metric.language, metric.language)
    words = (measure(metric.name).heading.removesuffix(" %"), _lower(TITLES.get(metric.task, metric.task)), language)
    return ", ".join(word for word in words if word)


def _lower(title: str) -> str:
    return title[0].lower() + title[1:]


def _table(rows: dict[str, dict[str, Cell]], title: str, note: str, trained: Collection[str] | None) -> Table:
    """Rows by language: those that were trained on and their mean, apart the others and theirs, then the mean of all."""
    names = list(dict.fromkeys(name for cells in rows.values() for name in cells if name not in UNSHOWN))
    known = [name for name in MEASURES if name in names]
    names = known + [name for name in names if name not in MEASURES]
    languages = [language for language in rows if language not in MEANS]
    seen = [language for language in languages if trained is None or language in trained]
    others = [language for language in languages if language not in seen]
    parts = [[*seen, TRAINED], [*others, UNSEEN], [MEAN]] if others and seen else [[*languages, MEAN]]

    def row(language: str) -> list[Cell]:
        mark = " (no captions in training)" if language in others else ""
        label = Cell(GROUPS.get(language, language) + mark, is_number=False)
        return [label, *(rows[language].get(name, ABSENT) for name in names)]

    blocks = [[row(language) for language in part if language in rows] for part in parts]
    return Table(title, note, ["", *(measure(name).heading for name in names)], [block for block in blocks if block])
