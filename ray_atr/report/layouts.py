"""The papers' tables in their layouts, filled with our numbers; the printed ones stand below, greyed and named."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from ray_atr.report import cells
from ray_atr.report.ablation import ablation_table, is_ablation
from ray_atr.report.aggregate import aggregate
from ray_atr.report.papers import KNOWLEDGE_TABLE, LANGUAGE_TABLE, NOISE_TABLE, PaperTable, Printed
from ray_atr.report.read import ESTIMATED_SHARE, NOISE, OBJECTIVE, TRUE_SHARE, Runs
from ray_atr.report.tables import DIRECTIONS, Cell, Column, Table, point_table

MASS = "objective.pair.transport_mass"
BASELINE = "ml_clap"
MEMORY, SECONDS = "cost/memory_mb", "cost/seconds_per_epoch"
LANGUAGE_OBJECTIVES = ("ml_clap", "cacl", "kcl")
KNOWLEDGE_OBJECTIVES = ("moco", "nnclr", "ance", "ask")

Printer = Callable[[Printed], float | None]


@dataclass(frozen=True)
class Layout:
    """One of the papers' tables: when a sweep can fill it, with which columns, and what the paper prints there."""

    title: str
    applies: Callable[[Runs], bool]
    columns: Callable[[Runs], list[Column]]
    paper: PaperTable | None = None
    printed: tuple[tuple[str, Printer], ...] = ()
    """Metric -> the printed number that belongs in its column."""


def paper_layouts(runs: Runs) -> list[Table]:
    """Every table of the papers that these runs can fill."""
    if runs.finished.empty:
        return []
    points = _with_ratios(aggregate(runs), runs)
    tables = [_fill(layout, runs, points) for layout in LAYOUTS if layout.applies(runs)]
    if is_ablation(runs):
        title = "ASK without each of its parts, English (layout of Fu et al. 2025, Table 2)"
        tables.append(ablation_table(runs, recalls("eng"), title))
    return tables


def recalls(language: str) -> list[Column]:
    """R@1, R@5, R@10 in both directions."""
    return [
        Column(f"{direction}/{language}/recall_at_{k}", f"R@{k}", DIRECTIONS[direction])
        for direction in DIRECTIONS
        for k in (1, 5, 10)
    ]


def _by_language(direction: str, metric: str, title: str) -> Callable[[Runs], list[Column]]:
    kind, is_higher_better = ("number", False) if metric == "mean_rank_variance" else ("percent", True)

    def columns(runs: Runs) -> list[Column]:
        return [
            Column(f"{direction}/{code}/{metric}", code, title, kind, is_higher_better)  # type: ignore[arg-type]
            for code in (*runs.languages, "mean")
        ]

    return columns


def _cost_columns(runs: Runs) -> list[Column]:
    return [
        Column("text_to_audio/mean/recall_at_1", "R@1", "text→audio, mean"),
        Column(MEMORY, "MB", "peak memory", "number", is_higher_better=False),
        Column(f"{MEMORY} ratio", f"× {BASELINE}", "peak memory", "number", is_higher_better=False),
        Column(SECONDS, "s", "an epoch", "number", is_higher_better=False),
        Column(f"{SECONDS} ratio", f"× {BASELINE}", "an epoch", "number", is_higher_better=False),
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


def _has(*objectives: str) -> Callable[[Runs], bool]:
    return lambda runs: bool(set(objectives) & set(runs.finished[OBJECTIVE]))


def _varies(path: str) -> Callable[[Runs], bool]:
    return lambda runs: path in runs.varied


def _t2a(row: Printed) -> float | None:
    return row.text_to_audio


def _a2t(row: Printed) -> float | None:
    return row.audio_to_text


def _over_baseline(row: Printed, cost: str) -> float | None:
    """A printed cost as a ratio to the printed one of the baseline."""
    (baseline,) = (other for other in LANGUAGE_TABLE.rows if other.objective == BASELINE)
    return round(getattr(row, cost) / getattr(baseline, cost), 2)


R1_OF_BOTH = (("text_to_audio/eng/recall_at_1", _t2a), ("audio_to_text/eng/recall_at_1", _a2t))

LAYOUTS = (
    Layout(
        "Noisy correspondence, English (layout of Luong et al. 2024, Table 5)",
        _varies(NOISE),
        lambda runs: recalls("eng"),
        NOISE_TABLE,
        R1_OF_BOTH,
    ),
    Layout(
        "Retrieval, English (layout of Luong et al. 2024, Table 2)",
        lambda runs: NOISE not in runs.varied and MASS not in runs.varied and not is_ablation(runs),
        lambda runs: recalls("eng"),
    ),
    Layout(
        "Transport mass, English (layout of Luong et al. 2024, Table 6)",
        _varies(MASS),
        lambda runs: recalls("eng"),
    ),
    Layout(
        "Transport mass by itself: the share of clean pairs, and what the loss took it for",
        lambda runs: ESTIMATED_SHARE in runs.finished and runs.finished[ESTIMATED_SHARE].notna().any(),
        lambda runs: [
            Column(TRUE_SHARE, "true", "clean share", is_higher_better=None),
            Column(ESTIMATED_SHARE, "estimated", "clean share", is_higher_better=None),
            Column("train/transport_mass", "mass", "transported", is_higher_better=None),
        ],
    ),
    Layout(
        "Languages, text→audio (layout of Yin et al. 2025, Table 1)",
        _has(*LANGUAGE_OBJECTIVES),
        _by_language("text_to_audio", "recall_at_1", "R@1"),
        LANGUAGE_TABLE,
        (("text_to_audio/mean/recall_at_1", _t2a),),
    ),
    Layout(
        "Languages, audio→text (layout of Yin et al. 2025, Table 2)",
        _has(*LANGUAGE_OBJECTIVES),
        _by_language("audio_to_text", "recall_at_1", "R@1"),
        LANGUAGE_TABLE,
        (("audio_to_text/mean/recall_at_1", _a2t),),
    ),
    Layout(
        "Consistency of ranks across languages (layout of Yin et al. 2025, Table 3)",
        _has(*LANGUAGE_OBJECTIVES),
        _by_language("text_to_audio", "mean_rank_variance", "mean rank variance, less is better"),
        LANGUAGE_TABLE,
        (("text_to_audio/mean/mean_rank_variance", lambda row: row.rank_variance),),
    ),
    Layout(
        "What a language scheme costs (layout of Yin et al. 2025, Table 4)",
        _has(*LANGUAGE_OBJECTIVES),
        _cost_columns,
        LANGUAGE_TABLE,
        (
            ("text_to_audio/mean/recall_at_1", _t2a),
            (MEMORY, lambda row: row.memory_mb),
            (SECONDS, lambda row: row.seconds_per_epoch),
            (f"{MEMORY} ratio", lambda row: _over_baseline(row, "memory_mb")),
            (f"{SECONDS} ratio", lambda row: _over_baseline(row, "seconds_per_epoch")),
        ),
    ),
    Layout(
        "External knowledge, English (against Fu et al. 2025)",
        lambda runs: _has(*KNOWLEDGE_OBJECTIVES)(runs) and not is_ablation(runs),
        lambda runs: recalls("eng"),
        KNOWLEDGE_TABLE,
        R1_OF_BOTH,
    ),
)


def _fill(layout: Layout, runs: Runs, points: pd.DataFrame) -> Table:
    columns = [column for column in layout.columns(runs) if column.metric in points]
    points = points.dropna(subset=[column.metric for column in columns], how="all")
    table = point_table(runs, layout.title, columns, points=points)
    if layout.paper is None:
        return table
    printers = dict(layout.printed)
    lead = len(table.columns) - len(columns) - 1
    rows = [
        row
        for row in _printed_rows(layout.paper, runs, table.columns[:lead], columns, printers)
        if any(cell.text != cells.MISSING for cell in row[lead:])
    ]
    return replace(
        table,
        references=rows,
        reference_note=f"printed in {_place(layout.paper)}; {layout.paper.setting}.",
    )


def _place(paper: PaperTable) -> str:
    return ", ".join(filter(None, (paper.paper, paper.table)))


def _printed_rows(
    paper: PaperTable, runs: Runs, lead: Sequence[str], columns: Sequence[Column], printers: dict[str, Printer]
) -> list[list[Cell]]:
    ran = set(runs.finished[OBJECTIVE])
    rows = []
    for row in paper.rows:
        if row.objective not in ran:
            continue
        names = {"noise": cells.value(row.noise_ratio), OBJECTIVE: f"{row.objective} (paper)"}
        texts = [
            cells.value(printers[column.metric](row)) if column.metric in printers else cells.MISSING
            for column in columns
        ]
        rows.append(
            [
                *(Cell(names.get(title, cells.MISSING), is_number=False) for title in lead),
                *(Cell(text) for text in texts),
                Cell(cells.MISSING),
            ]
        )
    return rows
