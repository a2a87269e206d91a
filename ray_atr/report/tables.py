"""Tables of a sweep: a row a point, a block a noise ratio, the languages that were trained first."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from ray_atr.metrics.measures import MEASURES, is_chance
from ray_atr.metrics.metric import MEAN, TRAINED, UNSEEN, Metric
from ray_atr.report import formatting
from ray_atr.report.aggregate import NUM_SEEDS, aggregate, differing, point_name
from ray_atr.report.read import NOISE, OBJECTIVE, TEST, TRAINED_LANGUAGES, VALIDATION, Runs, short_name
from ray_atr.table import Cell, Table

ARROWS = {"text_to_audio": "text→audio", "audio_to_text": "audio→text"}
"""What a table calls the directions."""
Kind = Literal["percent", "number"]
SEEN = "in training?"
AT_CHANCE = "°"


@dataclass(frozen=True)
class Column:
    """One column of numbers: the metric, what heads it, how it is written, and which end is better (None: neither)."""

    metric: str
    title: str
    group: str = ""
    kind: Kind = "percent"
    is_higher_better: bool | None = True


def recall_columns(
    language: str, measures: Sequence[str] = ("recall_at_1", "recall_at_10", "map_at_10")
) -> list[Column]:
    """These measures in both directions, of one language or of the mean over all."""
    return [
        Column(f"{direction}/{language}/{measure}", MEASURES[measure].heading.removesuffix(" %"), arrow)
        for direction, arrow in ARROWS.items()
        for measure in measures
    ]


def recall_table(runs: Runs, language: str) -> Table:
    """R@1, R@10, mAP10 in both directions, a row a point of the sweep, a block a noise ratio."""
    paths = differing(runs.finished, runs.varied) or [OBJECTIVE]
    return point_table(runs, f"Recall by {_listed(paths)}, {of_whom(language, runs)}", recall_columns(language))


def language_groups(runs: Runs) -> list[str]:
    """The groups of languages that a report shows, the trained ones first."""
    return [*([TRAINED] if runs.trained else []), *([UNSEEN] if runs.others else [])] or [MEAN]


def of_whom(language: str, runs: Runs) -> str:
    """What a title calls a language, or a mean over languages: those that were trained on, or those that were not."""
    if language == TRAINED:
        return _called(runs.trained, "trained ", "")
    if language == UNSEEN:
        return _called(
            runs.others,
            "",
            " without captions in training" if runs.is_unseen else " that not all trials were trained on",
        )
    return {"eng": "English", MEAN: "mean of languages"}.get(language, language)


def _called(languages: Sequence[str], before: str, after: str) -> str:
    if len(languages) == 1:
        name = {"eng": "English"}.get(languages[0], languages[0])
        return f"{name}{after}" if after else f"{name} ({before.strip()})"
    return f"mean of {len(languages)} {before}languages{after}"


def seen_in_training(row: Mapping[Any, Any], runs: Runs) -> str:
    """How many of the languages that not all trials were trained on a point was trained on, in words."""
    seen = len(set(row[TRAINED_LANGUAGES]) & set(runs.others))
    return "none" if not seen else "all" if seen == len(runs.others) else f"{seen} of {len(runs.others)}"


def _listed(paths: Sequence[str]) -> str:
    names = [short_name(path) for path in paths]
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def point_table(runs: Runs, title: str, columns: Sequence[Column], *, points: pd.DataFrame | None = None) -> Table:
    """A row a point of the sweep: what it varies, the columns that were measured, the number of seeds."""
    points = aggregate(runs) if points is None else points
    columns = [column for column in columns if column.metric in points]
    shows_unseen = any(Metric.parse(column.metric).language == UNSEEN for column in columns)
    if shows_unseen:
        points = points.assign(**{SEEN: [seen_in_training(row, runs) for row in points.to_dict("records")]})
    blocks_by = NOISE if NOISE in runs.varied else None
    lead = [path for path in (blocks_by, *runs.varied) if path is not None]
    # A column that says the same in every row says nothing.
    lead = differing(points, list(dict.fromkeys(lead))) or [OBJECTIVE]
    lead += [SEEN] if shows_unseen else []
    frames = [frame for _, frame in points.groupby(blocks_by, sort=True)] if blocks_by else [points]
    blocks = [_block(frame, lead, columns) for frame in frames]
    seeds = points[NUM_SEEDS] if len(points) else pd.Series(dtype=int)
    spread = "mean ± standard deviation over seeds" if len(seeds) and seeds.max() > 1 else ""
    unit = "Percent, " if all(column.kind == "percent" for column in columns) else ""
    when = {TEST: "test split at the epoch chosen on validation", VALIDATION: "validation split after the last epoch"}
    ranked = "best of each block marked" if any(column.is_higher_better is not None for column in columns) else ""
    on = " and ".join(when.get(split, split) for split in runs.measured_on) or "nothing yet"
    says_chance = any(cell.text.endswith(AT_CHANCE) for block in blocks for row in block for cell in row)
    chance = f"{AT_CHANCE.strip()} not told apart from chance" if says_chance else ""
    grouped = itertools.groupby(column.group for column in columns)
    return Table(
        title=title,
        note="; ".join(part for part in (f"{unit}{on}", spread, ranked, chance) if part) + ".",
        groups=[*(("", 1) for _ in lead), *((group, len(list(same))) for group, same in grouped), ("", 1)],
        columns=[*(short_name(path) for path in lead), *(column.title for column in columns), "seeds"],
        blocks=blocks,
    )


def _block(frame: pd.DataFrame, lead: Sequence[str], columns: Sequence[Column]) -> list[list[Cell]]:
    best = {column.metric: _best(frame[column.metric], column) for column in columns} if len(frame) > 1 else {}
    return [
        [
            *(Cell(formatting.value(row[path]), is_number=False) for path in lead),
            *(_number(row, column, best.get(column.metric)) for column in columns),
            Cell(str(row[NUM_SEEDS])),
        ]
        for row in frame.to_dict("records")
    ]


def _number(row: Mapping[str, float], column: Column, best: float | None) -> Cell:
    mean, deviation = row[column.metric], row.get(f"{column.metric} (sd)")
    write = formatting.percent if column.kind == "percent" else formatting.number
    mark = AT_CHANCE if is_at_chance(row, column.metric) else ""
    return Cell(write(mean, deviation) + mark, is_best=best is not None and mean == best)


def is_at_chance(row: Mapping[Any, Any], metric: str) -> bool:
    """Whether a point's R@1 is not told apart from that of a random order, over the queries of all its seeds."""
    named = Metric.parse(metric)
    chance, queries = (row.get(Metric(named.task, named.language, name)) for name in ("chance_at_1", "queries"))
    if named.name != "recall_at_1" or chance is None or queries is None or row[metric] != row[metric]:
        return False
    return is_chance(row[metric], chance, queries * row[NUM_SEEDS])


def learnt_nothing(runs: Runs) -> list[str]:
    """The points that no direction tells apart from chance in the languages they were trained on, by their names."""
    points = aggregate(runs)
    columns = [name for direction in ARROWS if (name := Metric(direction, TRAINED, "recall_at_1")) in points]
    paths = differing(points, runs.varied)
    rows = points.to_dict("records")
    found = [row for row in rows if columns and all(is_at_chance(row, name) for name in columns)]
    return [point_name(row, paths) for row in found]


def _best(values: pd.Series, column: Column) -> float | None:
    present = values.dropna()
    if present.empty or column.is_higher_better is None:
        return None
    return float(present.max() if column.is_higher_better else present.min())
