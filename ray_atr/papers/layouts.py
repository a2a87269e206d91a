"""The papers' tables in their layouts, with our numbers.

The printed numbers are below, greyed, if the runs use the paper's data set and split; both are named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from ray_atr.common.table import MISSING, Cell, Table, written
from ray_atr.evaluation.report.aggregate import aggregate
from ray_atr.evaluation.report.read import (
    ESTIMATED_SHARE,
    MEMORY,
    NOISE,
    OBJECTIVE,
    SECONDS,
    TRUE_SHARE,
    Runs,
)
from ray_atr.evaluation.report.tables import (
    ARROWS,
    Column,
    ablation_table,
    is_ablation,
    point_table,
    recall_columns,
    ticks,
)
from ray_atr.metrics.metric import Metric
from ray_atr.objectives import PRESETS
from ray_atr.papers.printed_tables import PaperTable, PrintedRow, printed_in
from ray_atr.training.run_folder import short_names

PAIR = "objective.pair"
MASS, EPSILON, METRIC = f"{PAIR}.transport_mass", f"{PAIR}.epsilon", f"{PAIR}.metric"
BASELINE = "ml_clap"
BOTH_DIRECTIONS = "both_directions/eng/recall_at_1"
"""The mean over both directions, drawn in m-LTM's Figure 2."""
LANGUAGE = "language"
LANGUAGE_OBJECTIVES = ("ml_clap", "cacl", "kcl")
(ABLATION,) = printed_in("ask", "Table 2 (its text)")
ENGLISH = tuple(recall_columns("eng", ("recall_at_1", "recall_at_5", "recall_at_10")))


def _less(metric: str, title: str, group: str) -> Column:
    """A column of numbers where lower is better."""
    return Column(metric, title, group, is_percent=False, is_higher_better=False)


@dataclass(frozen=True)
class Layout:
    """One of the papers' tables: the runs that can fill it, its columns, and the printed rows.

    `{}` in a column's name is replaced by each language: one column per language, or with `by_language` one row per point and
    language.
    """

    title: str
    applies: Callable[[Runs], bool]
    columns: tuple[Column, ...] = ENGLISH
    papers: tuple[PaperTable, ...] = ()
    by_language: bool = False


def paper_layouts(runs: Runs) -> list[Table]:
    """Every table of the papers that these runs can fill."""
    if runs.finished.empty:
        return []
    points = _with_ratios(aggregate(runs), runs)
    both = [f"{direction}/eng/recall_at_1" for direction in ARROWS]
    if set(both) <= set(points):
        points = points.assign(**{BOTH_DIRECTIONS: points[both].mean(axis=1)})
    tables = [_fill(layout, runs, points) for layout in LAYOUTS if layout.applies(runs)]
    if is_ablation(runs):
        table = ablation_table(
            runs, ENGLISH, "ASK without each of its parts, English (layout of Fu et al. 2025, Table 2)"
        )
        tables.append(_with_references(table, runs, ENGLISH, (ABLATION,)))
    return [table for table in tables if any(table.blocks)]


def _with_ratios(points: pd.DataFrame, runs: Runs) -> pd.DataFrame:
    """The points with memory and time also as ratios to those of `ml_clap` with otherwise equal settings."""
    others = [points[path] for path in runs.varied if path != OBJECTIVE] or [pd.Series(0, points.index)]
    is_baseline = points[OBJECTIVE] == BASELINE
    for metric in (MEMORY, SECONDS):
        if metric in points and is_baseline.any():
            of_baseline = points[metric].where(is_baseline).groupby(others, dropna=False, sort=False).transform("first")
            points = points.assign(**{f"{metric} ratio": points[metric] / of_baseline})
    return points


def _has(*objectives: str) -> Callable[[Runs], bool]:
    return lambda runs: bool(set(objectives) & set(runs.finished[OBJECTIVE]))


def _varies(*paths: str) -> Callable[[Runs], bool]:
    return lambda runs: any(path in runs.varied for path in paths)


def _compares_metrics(runs: Runs) -> bool:
    return METRIC in runs.varied or (_has("m_ltm")(runs) and _has("m_ltm_euclidean", "m_ltm_pot_euclidean")(runs))


LAYOUTS = (
    Layout(
        "Noisy correspondence, English (layout of Luong et al. 2024, Table 5)",
        _varies(NOISE),
        papers=printed_in("m_ltm", "Table 5"),
    ),
    Layout(
        "Retrieval, English (layout of Luong et al. 2024, Tables 1 and 2)",
        lambda runs: not _varies(NOISE, MASS, EPSILON, METRIC)(runs) and not is_ablation(runs),
        papers=printed_in("m_ltm", "Table 1", "Table 2"),
    ),
    Layout(
        "Modality gap, English (layout of Luong et al. 2024, Table 4)",
        lambda runs: "embedding/eng/modality_gap" in runs.finished,
        (_less("embedding/eng/modality_gap", "gap", "less is better"),),
        printed_in("m_ltm", "Table 4"),
    ),
    Layout(
        "Ground metric and epsilon, English (layout of Luong et al. 2024, Table 6)",
        _compares_metrics,
        papers=printed_in("m_ltm", "Table 6"),
    ),
    Layout(
        "Entropic term of the contrastive loss, English (layout of Luong et al. 2024, Table 7)",
        _has("contrastive_entropic"),
        papers=printed_in("m_ltm", "Table 7"),
    ),
    Layout(
        "Epsilon, English (layout of Luong et al. 2024, Table 8)",
        lambda runs: _varies(EPSILON)(runs) and not _compares_metrics(runs) and not _has("contrastive_entropic")(runs),
        papers=printed_in("m_ltm", "Table 8"),
    ),
    Layout(
        "Transport mass, English, R@1 of both directions averaged (as in Luong et al. 2024, Figure 2)",
        # Two values or more: a missing one does not count.
        lambda runs: _varies(MASS)(runs) and runs.finished[MASS].nunique() > 1,
        (Column(BOTH_DIRECTIONS, "mean", "R@1"), *ENGLISH),
    ),
    Layout(
        "Transport mass by itself: the share of clean pairs, and what the loss took it for",
        lambda runs: ESTIMATED_SHARE in runs.finished and runs.finished[ESTIMATED_SHARE].notna().any(),
        (
            Column(TRUE_SHARE, "true", "clean share", is_higher_better=None),
            Column(ESTIMATED_SHARE, "estimated", "clean share", is_higher_better=None),
            Column("train/transport_mass", "mass", "transported", is_higher_better=None),
        ),
    ),
    Layout(
        "Languages (layout of Yin et al. 2025, Table 1)",
        _has(*LANGUAGE_OBJECTIVES),
        tuple(recall_columns("{}", ("recall_at_1", "recall_at_5", "map_at_10"))),
        printed_in("atri", "Table 1", "Tables 6 and 7"),
        by_language=True,
    ),
    Layout(
        "Languages against English in the embedding space (layout of Yin et al. 2025, Table 2)",
        _has(*LANGUAGE_OBJECTIVES),
        (
            _less("embedding/{}/language_gap", "gap", "from English, less is better"),
            _less("embedding/{}/language_distance", "distance", "from English, less is better"),
        ),
        printed_in("atri", "Table 2"),
        by_language=True,
    ),
    Layout(
        "Consistency of ranks across languages (layout of Yin et al. 2025, Table 3)",
        _has(*LANGUAGE_OBJECTIVES),
        (_less("text_to_audio/{}/mean_rank_variance", "{}", "mean rank variance, less is better"),),
        printed_in("atri", "Table 3", "Table 8"),
    ),
    Layout(
        "What a language scheme costs (layout of Yin et al. 2025, Table 4)",
        _has(*LANGUAGE_OBJECTIVES),
        (
            Column("text_to_audio/mean/recall_at_1", "R@1", "text→audio, mean"),
            _less(MEMORY, "MB", "peak memory"),
            _less(f"{MEMORY} ratio", f"× {BASELINE}", "peak memory"),
            _less(SECONDS, "s", "an epoch"),
            _less(f"{SECONDS} ratio", f"× {BASELINE}", "an epoch"),
        ),
        printed_in("atri", "Table 4"),
    ),
    Layout(
        "External knowledge, English (layout of Fu et al. 2025, Tables 1 and 5)",
        lambda runs: _has("moco", "nnclr", "ance", "ask")(runs) and not is_ablation(runs),
        papers=printed_in("ask", "Table 1 (its text)", "Table 5 (its text)"),
    ),
)


def _fill(layout: Layout, runs: Runs, points: pd.DataFrame) -> Table:
    papers, languages = layout.papers, (*runs.languages, "mean")
    columns = list(layout.columns)
    if layout.by_language:
        points = _a_row_a_language(points, columns, languages)
        runs = replace(runs, varied=[*runs.varied, LANGUAGE])
        papers = tuple(_printed_by_language(paper, columns) for paper in papers)
    else:
        columns = [
            replace(column, metric=column.metric.format(language), title=column.title.format(language))
            for column in columns
            for language in (languages if "{}" in column.metric else ("",))
        ]
    columns = [column for column in columns if column.metric in points]
    points = points.dropna(subset=[column.metric for column in columns], how="all")
    return _with_references(point_table(runs, layout.title, columns, points=points), runs, columns, papers)


def _a_row_a_language(points: pd.DataFrame, columns: Sequence[Column], languages: Sequence[str]) -> pd.DataFrame:
    """Each point's row once per language, with the metrics of that language under the columns' names, with `{}` in them."""
    parts = []
    for language in languages:
        named = {
            f"{column.metric.format(language)}{end}": f"{column.metric}{end}"
            for column in columns
            for end in ("", " (sd)")
        }
        names = [name for name in points if name in named or "/" not in name]
        parts.append(points[names].rename(columns=named).assign(**{LANGUAGE: language}))
    return pd.concat(parts).sort_index(kind="stable").reset_index(drop=True)


def _printed_by_language(paper: PaperTable, columns: Sequence[Column]) -> PaperTable:
    """The same numbers with one row per objective and language."""
    languages = dict.fromkeys(metric.language for row in paper.rows for metric in row.numbers)
    rows = []
    for row in paper.rows:
        for language in languages:
            named = {Metric.parse(column.metric): Metric.parse(column.metric.format(language)) for column in columns}
            numbers = {metric: row.numbers[name] for metric, name in named.items() if name in row.numbers}
            rows.append(PrintedRow(row.objective, {**row.settings, LANGUAGE: language}, numbers))
    return replace(paper, rows=tuple(rows))


def _with_references(table: Table, runs: Runs, columns: Sequence[Column], papers: Sequence[PaperTable]) -> Table:
    """The table with the printed rows of papers' tables of the same data set and split.

    A row is shown if its objective ran, with any settings, or if it is another system.
    """
    fitting = [paper for paper in papers if not paper.trained_on and runs.measured_sets == [(paper.data, paper.split)]]
    lead = table.columns[: len(table.columns) - len(columns) - 1]
    ran = set(runs.finished[OBJECTIVE])
    references = []
    for paper in fitting:
        for row in paper.rows:
            is_comparable = row.objective not in PRESETS or any(
                name == row.objective or name.startswith(f"{row.objective}_") for name in ran
            )
            numbers = [_printed(row, column, paper) for column in columns]
            if is_comparable and any(number != MISSING for number in numbers):
                references.append([*_lead_cells(lead, row, paper), *map(Cell, numbers), Cell(MISSING)])
    if not references:
        return table
    note = f"printed in {'; '.join(paper.source for paper in fitting)}."
    return replace(table, references=references, reference_note=note)


def _lead_cells(lead: Sequence[str], row: PrintedRow, paper: PaperTable) -> list[Cell]:
    """The cells that name a printed row, in the order of the table's first columns."""
    texts = {path: written(value) for path, value in row.settings.items()}
    if paper is ABLATION:
        texts = ticks(lambda path: row.settings.get(path, True))
    texts_by_name = {name: texts[path] for path, name in short_names(texts).items()}
    texts_by_name[OBJECTIVE] = f"{row.objective} (paper, {paper.towers})"
    return [Cell(texts_by_name.get(title, MISSING), is_number=False) for title in lead]


def _printed(row: PrintedRow, column: Column, paper: PaperTable) -> str:
    """A number as it is printed; costs also as a ratio to the printed baseline's."""
    name, _, is_ratio = column.metric.partition(" ")
    metric = Metric.parse(name)
    if is_ratio:
        (baseline,) = (other for other in paper.rows if other.objective == BASELINE)
        return written(round(float(row.numbers[metric] / baseline.numbers[metric]), 2))
    return written(row.numbers.get(metric))
