"""The papers' tables in their layouts, filled with our numbers.

The printed ones are below, greyed, if the runs are of the data set and split that the paper's are of; both are named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from ray_atr.objectives import PRESETS
from ray_atr.report import formatting as cells
from ray_atr.report.ablation import PERIOD, SWITCHES, TICK, ablation_table, is_ablation
from ray_atr.report.aggregate import aggregate
from ray_atr.report.paper_tables import PaperTable, PrintedRow, printed_in
from ray_atr.report.read import ESTIMATED_SHARE, MEMORY, NOISE, OBJECTIVE, SECONDS, TRUE_SHARE, Runs, short_name
from ray_atr.report.tables import ARROWS, Column, point_table, recall_columns
from ray_atr.table import Cell, Table

PAIR = "objective.pair"
MASS, EPSILON, METRIC = f"{PAIR}.transport_mass", f"{PAIR}.epsilon", f"{PAIR}.metric"
BASELINE = "ml_clap"
BOTH_DIRECTIONS = "both_directions/eng/recall_at_1"
LANGUAGE = "language"
LANGUAGE_OBJECTIVES = ("ml_clap", "cacl", "kcl")
KNOWLEDGE_OBJECTIVES = ("moco", "nnclr", "ance", "ask")
EUCLIDEAN = ("m_ltm_euclidean", "m_ltm_pot_euclidean")
(ABLATION,) = printed_in("ask", "Table 2 (its text)")


def _english_recalls(runs: Runs) -> list[Column]:
    return recall_columns("eng", ("recall_at_1", "recall_at_5", "recall_at_10"))


@dataclass(frozen=True)
class Layout:
    """One of the papers' tables: which runs can fill it, with which columns, and what is printed there."""

    title: str
    applies: Callable[[Runs], bool]
    columns: Callable[[Runs], list[Column]] = _english_recalls
    papers: tuple[PaperTable, ...] = ()
    by_language: bool = False
    """A row a point and language, its columns named with `{}` for the language, instead of a row a point."""


def paper_layouts(runs: Runs) -> list[Table]:
    """Every table of the papers that these runs can fill."""
    if runs.finished.empty:
        return []
    points = _with_both_directions(_with_ratios(aggregate(runs), runs))
    tables = [_fill(layout, runs, points) for layout in LAYOUTS if layout.applies(runs)]
    if is_ablation(runs):
        title = "ASK without each of its parts, English (layout of Fu et al. 2025, Table 2)"
        table = ablation_table(runs, _english_recalls(runs), title)
        tables.append(_with_references(table, runs, _english_recalls(runs), (ABLATION,)))
    return [table for table in tables if any(block for block in table.blocks)]


def _precisions(runs: Runs) -> list[Column]:
    return recall_columns("{}", ("recall_at_1", "recall_at_5", "map_at_10"))


def _less(metric: str, title: str, group: str) -> Column:
    """A column of numbers of which less is better."""
    return Column(metric, title, group, "number", is_higher_better=False)


def _distances(runs: Runs) -> list[Column]:
    group = "from English, less is better"
    return [_less(f"embedding/{{}}/language_{name}", name, group) for name in ("gap", "distance")]


def _rank_variances(runs: Runs) -> list[Column]:
    group = "mean rank variance, less is better"
    return [_less(f"text_to_audio/{code}/mean_rank_variance", code, group) for code in (*runs.languages, "mean")]


def _cost_columns(runs: Runs) -> list[Column]:
    return [
        Column("text_to_audio/mean/recall_at_1", "R@1", "text→audio, mean"),
        _less(MEMORY, "MB", "peak memory"),
        _less(f"{MEMORY} ratio", f"× {BASELINE}", "peak memory"),
        _less(SECONDS, "s", "an epoch"),
        _less(f"{SECONDS} ratio", f"× {BASELINE}", "an epoch"),
    ]


def _share_columns(runs: Runs) -> list[Column]:
    return [
        Column(TRUE_SHARE, "true", "clean share", is_higher_better=None),
        Column(ESTIMATED_SHARE, "estimated", "clean share", is_higher_better=None),
        Column("train/transport_mass", "mass", "transported", is_higher_better=None),
    ]


def _with_ratios(points: pd.DataFrame, runs: Runs) -> pd.DataFrame:
    """Memory and time also as ratios to `ml_clap` at the same other settings of the same runs."""
    others = [path for path in runs.varied if path != OBJECTIVE]
    for metric in (MEMORY, SECONDS):
        baseline = points[points[OBJECTIVE] == BASELINE]
        if metric not in points or baseline.empty:
            continue
        if others:
            costs = points[others].merge(baseline[[*others, metric]], on=others, how="left")[metric].to_numpy()
        else:
            costs = baseline[metric].iloc[0]
        points = points.assign(**{f"{metric} ratio": points[metric] / costs})
    return points


def _with_both_directions(points: pd.DataFrame) -> pd.DataFrame:
    """English R@1 also as the mean of both directions, which m-LTM's Figure 2 draws."""
    both = [f"{direction}/eng/recall_at_1" for direction in ARROWS]
    if not set(both) <= set(points):
        return points
    return points.assign(**{BOTH_DIRECTIONS: points[both].mean(axis=1)})


def _has(*objectives: str) -> Callable[[Runs], bool]:
    return lambda runs: bool(set(objectives) & set(runs.finished[OBJECTIVE]))


def _varies(*paths: str) -> Callable[[Runs], bool]:
    return lambda runs: any(path in runs.varied for path in paths)


def _compares_metrics(runs: Runs) -> bool:
    return METRIC in runs.varied or (_has("m_ltm")(runs) and _has(*EUCLIDEAN)(runs))


def _compares_losses(runs: Runs) -> bool:
    return not _varies(NOISE, MASS, EPSILON, METRIC)(runs) and not is_ablation(runs)


LAYOUTS = (
    Layout(
        "Noisy correspondence, English (layout of Luong et al. 2024, Table 5)",
        _varies(NOISE),
        papers=printed_in("m_ltm", "Table 5"),
    ),
    Layout(
        "Retrieval, English (layout of Luong et al. 2024, Tables 1 and 2)",
        _compares_losses,
        papers=printed_in("m_ltm", "Table 1", "Table 2"),
    ),
    Layout(
        "Modality gap, English (layout of Luong et al. 2024, Table 4)",
        lambda runs: "embedding/eng/modality_gap" in runs.finished,
        lambda runs: [_less("embedding/eng/modality_gap", "gap", "less is better")],
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
        _varies(MASS),
        lambda runs: [Column(BOTH_DIRECTIONS, "mean", "R@1"), *_english_recalls(runs)],
    ),
    Layout(
        "Transport mass by itself: the share of clean pairs, and what the loss took it for",
        lambda runs: ESTIMATED_SHARE in runs.finished and runs.finished[ESTIMATED_SHARE].notna().any(),
        _share_columns,
    ),
    Layout(
        "Languages (layout of Yin et al. 2025, Table 1)",
        _has(*LANGUAGE_OBJECTIVES),
        _precisions,
        printed_in("atri", "Table 1", "Tables 6 and 7"),
        by_language=True,
    ),
    Layout(
        "Languages against English in the embedding space (layout of Yin et al. 2025, Table 2)",
        _has(*LANGUAGE_OBJECTIVES),
        _distances,
        printed_in("atri", "Table 2"),
        by_language=True,
    ),
    Layout(
        "Consistency of ranks across languages (layout of Yin et al. 2025, Table 3)",
        _has(*LANGUAGE_OBJECTIVES),
        _rank_variances,
        printed_in("atri", "Table 3", "Table 8"),
    ),
    Layout(
        "What a language scheme costs (layout of Yin et al. 2025, Table 4)",
        _has(*LANGUAGE_OBJECTIVES),
        _cost_columns,
        printed_in("atri", "Table 4"),
    ),
    Layout(
        "External knowledge, English (layout of Fu et al. 2025, Tables 1 and 5)",
        lambda runs: _has(*KNOWLEDGE_OBJECTIVES)(runs) and not is_ablation(runs),
        papers=printed_in("ask", "Table 1 (its text)", "Table 5 (its text)"),
    ),
)


def _fill(layout: Layout, runs: Runs, points: pd.DataFrame) -> Table:
    columns = layout.columns(runs)
    papers = layout.papers
    if layout.by_language:
        points = _a_row_a_language(points, columns, (*runs.languages, "mean"))
        runs = replace(runs, varied=[*runs.varied, LANGUAGE])
        papers = tuple(_printed_by_language(paper, columns) for paper in papers)
    columns = [column for column in columns if column.metric in points]
    points = points.dropna(subset=[column.metric for column in columns], how="all")
    return _with_references(point_table(runs, layout.title, columns, points=points), runs, columns, papers)


def _a_row_a_language(points: pd.DataFrame, columns: Sequence[Column], languages: Sequence[str]) -> pd.DataFrame:
    """Each point's row once a language: its metrics of that language under the columns' names, with `{}` in them."""
    parts = []
    for language in languages:
        named = {
            f"{column.metric.format(language)}{end}": f"{column.metric}{end}"
            for column in columns
            for end in ("", " (sd)")
        }
        kept = [name for name in points if name in named or "/" not in name]
        parts.append(points[kept].rename(columns=named).assign(**{LANGUAGE: language}))
    return pd.concat(parts).sort_index(kind="stable").reset_index(drop=True)


def _printed_by_language(paper: PaperTable, columns: Sequence[Column]) -> PaperTable:
    """The same numbers with a row an objective and language."""
    languages = dict.fromkeys(metric.split("/")[1] for row in paper.rows for metric in row.numbers)
    split = [
        PrintedRow(
            row.objective,
            {**row.settings, LANGUAGE: language},
            {
                column.metric: row.numbers[name]
                for column in columns
                if (name := column.metric.format(language)) in row.numbers
            },
        )
        for row in paper.rows
        for language in languages
    ]
    return replace(paper, rows=tuple(split))


def _with_references(table: Table, runs: Runs, columns: Sequence[Column], papers: Sequence[PaperTable]) -> Table:
    """The table with the printed rows of those papers' tables that are of these runs' data set and split."""
    fitting = [paper for paper in papers if _is_of_the_same_data(paper, runs)]
    lead = table.columns[: len(table.columns) - len(columns) - 1]
    references = [
        [
            *_lead_cells(lead, row, paper),
            *(Cell(_printed(row, column, paper)) for column in columns),
            Cell(cells.MISSING),
        ]
        for paper in fitting
        for row in paper.rows
        if _is_comparable(row, runs) and any(_printed(row, column, paper) != cells.MISSING for column in columns)
    ]
    if not references:
        return table
    note = f"printed in {'; '.join(paper.source for paper in fitting)}."
    return replace(table, references=references, reference_note=note)


def _is_of_the_same_data(paper: PaperTable, runs: Runs) -> bool:
    """Whether these runs trained, and were measured, on the paper's own data set and split."""
    return not paper.trained_on and runs.measured_sets == [(paper.data, paper.split)]


def _is_comparable(row: PrintedRow, runs: Runs) -> bool:
    """Whether the row's objective ran, or another setting of it did, or it is a system of others."""
    ran = set(runs.finished[OBJECTIVE])
    return row.objective not in PRESETS or any(
        name == row.objective or name.startswith(f"{row.objective}_") for name in ran
    )


def _lead_cells(lead: Sequence[str], row: PrintedRow, paper: PaperTable) -> list[Cell]:
    """What names a printed row, in the order of the table's first columns."""
    known = {short_name(path): cells.value(value) for path, value in row.settings.items()}
    if paper is ABLATION:
        known = _ticks(row)
    known[OBJECTIVE] = f"{row.objective} (paper, {paper.towers})"
    return [Cell(known.get(title, cells.MISSING), is_number=False) for title in lead]


def _ticks(row: PrintedRow) -> dict[str, str]:
    parts = {path: row.settings.get(path, True) for path in SWITCHES}
    parts["refresh"] = row.settings.get(PERIOD, True)
    return {short_name(path): TICK if is_on else cells.MISSING for path, is_on in parts.items()}


def _printed(row: PrintedRow, column: Column, paper: PaperTable) -> str:
    """A number as it is printed; costs also as a ratio to the printed baseline's."""
    cost, _, is_ratio = column.metric.partition(" ")
    if is_ratio:
        (baseline,) = (other for other in paper.rows if other.objective == BASELINE)
        return cells.value(round(float(row.numbers[cost] / baseline.numbers[cost]), 2))
    return cells.value(row.numbers.get(column.metric))
