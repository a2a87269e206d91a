"""Tables of metrics: one for each direction, with a row for each language and a column for each metric."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from ray_atr.common.table import DISTINGUISHED, MISSING, Cell, Table
from ray_atr.metrics.bootstrap import Difference, Interval, Spread
from ray_atr.metrics.measures import MEASURES, measure
from ray_atr.metrics.metric import MEAN, MEANS, TRAINED, UNSEEN, Metric, task_name
from ray_atr.metrics.zero_shot import CLASSIFICATION

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
ABSENT = Cell(MISSING)
UNSHOWN = ("queries",)
"""Measures that do not depend on the model."""
GROUPS = {TRAINED: "trained languages", UNSEEN: "not trained on", MEAN: "mean"}
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
    cells = {}
    for metric, value in metrics.items():
        show = measure(Metric.parse(metric).name).show
        text, detail = show(value), ""
        if spreads and metric in spreads:
            text = f"{show(spreads[metric].mean)} ± {show(spreads[metric].deviation)}"
        if intervals and metric in intervals:
            detail = f"[{show(intervals[metric].low)}, {show(intervals[metric].high)}]"
        cells[metric] = Cell(text, detail=detail)
    return _by_task(cells, lambda task: task_title(task, titles), trained)


def comparison_tables(
    comparison: Mapping[Metric, Difference],
    first: str,
    second: str,
    titles: Mapping[str, str] | None = None,
    trained: tuple[Collection[str] | None, Collection[str] | None] = (None, None),
) -> list[Table]:
    """Second against first: both values and their difference for the means over languages, then differences by language.

    A difference has its interval in brackets, and † where that leaves out zero. `trained` are the languages that the
    first and the second were trained on (None: not known, or all): the means are over those of both.
    """
    cells = {metric: _difference(metric, difference) for metric, difference in comparison.items()}
    labels = GROUPS | {TRAINED: "languages both trained on", UNSEEN: "languages not both trained on"}
    for language in {metric.language for metric in map(Metric.parse, comparison)} - {*MEANS, ""}:
        if without := [
            name for name, learned in zip((first, second), trained, strict=True) if lacks(learned, language)
        ]:
            labels[language] = f"{language} (not in the training of {' and '.join(dict.fromkeys(without))})"
    shared = trained_by_both(*trained)
    differences = _by_task(cells, lambda task: f"Difference, {_lower(task_title(task, titles))}", shared, labels)
    return [_summary(comparison, first, second, titles), *differences]


def lacks(trained: Collection[str] | None, language: str) -> bool:
    """Whether it is known that a model was not trained on the language."""
    return trained is not None and language not in trained


def trained_by_both(first: Collection[str] | None, second: Collection[str] | None) -> Collection[str] | None:
    """The languages that both were trained on; None (unknown, or all) is no restriction."""
    if first is None or second is None:
        return second if first is None else first
    return [language for language in first if language in second]


def _summary(
    comparison: Mapping[Metric, Difference], first: str, second: str, titles: Mapping[str, str] | None
) -> Table:
    """Rows are metrics: their means over the trained languages, or over all if these are unknown."""
    metrics = {Metric.parse(key): difference for key, difference in comparison.items()}
    languages = list(dict.fromkeys(metric.language for metric in metrics))
    shown = next((group for group in (TRAINED, MEAN) if group in languages), languages[0])
    order = {name: place for place, name in enumerate((*TITLES, *MEASURES))}
    rows = []
    for metric in sorted(metrics, key=lambda key: [order.get(part, len(order)) for part in (key.task, key.name)]):
        if metric.language == shown:
            difference, as_measured = metrics[metric], measure(metric.name)
            label = Cell(f"{task_title(metric.task, titles)}, {as_measured.heading}", is_number=False)
            both = [Cell(as_measured.show(value)) for value in (difference.first, difference.second)]
            rows.append([label, *both, _difference(metric, difference), Cell(f"{difference.p_value:.3f}")])
    note = "Mean of the languages. "
    if UNSEEN in languages:
        note = "Mean of the languages that both were trained on. "
        if TRAINED not in languages:
            note = "No language that both were trained on: mean of all languages. "
    return Table(
        "Difference",
        f"{note if len(languages) > 3 else ''}{DISTINGUISHED}: the interval leaves out zero.",
        ["", first, second, "difference", "p"],
        [rows],
    )


def _difference(metric: Metric, difference: Difference) -> Cell:
    value, low, high = (
        measure(Metric.parse(metric).name).show(number, signed=True)
        for number in (difference.value, difference.low, difference.high)
    )
    return Cell(value + f" {DISTINGUISHED}" * difference.is_distinguishable, detail=f"[{low}, {high}]")


def task_title(task: str, titles: Mapping[str, str] | None = None) -> str:
    """A task's title: that in `titles`, or the usual one, within a part of a joined data set too (`of_part`)."""
    known, (whole, _, part) = {**TITLES, **(titles or {})}, task.partition("_in_")
    return known.get(task) or (f"{known[whole]}, within {part}" if whole in known else task)


def in_words(metric: Metric) -> str:
    """A metric in words, without its unit: `R@1, text to audio, trained languages`."""
    language = GROUPS.get(metric.language, metric.language)
    words = (measure(metric.name).heading.removesuffix(" %"), _lower(task_title(metric.task)), language)
    return ", ".join(word for word in words if word)


def _lower(title: str) -> str:
    return title[0].lower() + title[1:]


def _by_task(
    cells: Mapping[Metric, Cell],
    title: Callable[[str], str],
    trained: Collection[str] | None,
    labels: Mapping[str, str] | None = None,
) -> list[Table]:
    """A table a task, rows by language: those that were trained on and their mean, the others and theirs, the mean of all."""
    groups: dict[str, dict[str, dict[str, Cell]]] = {}
    for metric, cell in cells.items():
        named = Metric.parse(metric)
        groups.setdefault(named.task, {}).setdefault(named.language, {})[named.name] = cell
    tables = []
    for task, rows in groups.items():
        measured = dict.fromkeys(name for row in rows.values() for name in row if name not in UNSHOWN)
        names = [name for name in MEASURES if name in measured] + [name for name in measured if name not in MEASURES]
        languages = [language for language in rows if language not in MEANS]
        seen = [language for language in languages if trained is None or language in trained]
        others = [language for language in languages if language not in seen]
        parts = [[*seen, TRAINED], [*others, UNSEEN], [MEAN]] if others and seen else [[*languages, MEAN]]
        unseen = {language: f"{language} (not trained on)" for language in others}
        row_names = labels or GROUPS | unseen
        blocks = [
            [
                [Cell(row_names.get(row, row), is_number=False), *(rows[row].get(name, ABSENT) for name in names)]
                for row in part
                if row in rows
            ]
            for part in parts
        ]
        headings = ["", *(measure(name).heading for name in names)]
        tables.append(Table(title(task), NOTES.get(task, ""), headings, [block for block in blocks if block]))
    return tables
