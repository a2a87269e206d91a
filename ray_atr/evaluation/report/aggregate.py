"""Mean, deviation and number of seeds of every metric, for each point of the sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from ray_atr.common.table import MISSING, written
from ray_atr.evaluation.report.read import (
    DATA,
    DATA_SOURCE,
    MEASURED,
    NOISE,
    OBJECTIVE,
    SEED,
    TEST_SPLIT,
    TRAINED_LANGUAGES,
    Runs,
)
from ray_atr.objectives import PRESETS
from ray_atr.training.run_folder import METRIC, includes_metric, short_names

NUM_SEEDS = "num_seeds"
QUERIES = (DATA, DATA_SOURCE, TEST_SPLIT, MEASURED)
CONDITIONS = (*QUERIES, NOISE)
"""What a comparison is made under, and none chooses among: the data, the queries, and their noise."""


def aggregate(runs: Runs) -> pd.DataFrame:
    """One row a point (every varied path but the seed), in reading order, over its finished trials.

    For each metric the columns `name`, `name (sd)` (sample standard deviation over the seeds; NaN for one seed); and
    `num_seeds`, the number of finished trials.
    """
    if not runs.points:
        # A trial that is in two folders counts once.
        finished = runs.finished.drop_duplicates(subset=[*runs.varied, SEED])
        numbers = finished.select_dtypes("number").columns
        names = [name for name in finished if ("/" in name and name in numbers) or name == "train_seconds"]
        grouped = finished.groupby(runs.varied, dropna=False, sort=False)
        mean, deviation = grouped[names].mean(), grouped[names].std(ddof=1)
        first = pd.DataFrame({NUM_SEEDS: grouped[SEED].count(), TRAINED_LANGUAGES: grouped[TRAINED_LANGUAGES].first()})
        # Copied into one block: pandas warns about frames to which hundreds of columns were added.
        table = pd.concat([first, mean, deviation.add_suffix(" (sd)")], axis=1).copy()
        runs.points.append(in_reading_order(table.reset_index(), runs.varied))
    return runs.points[0].copy()


def under_same_conditions(points: pd.DataFrame, runs: Runs) -> list[pd.DataFrame]:
    """The points in groups that have the data, the split and the noise ratio in common."""
    varied = [path for path in CONDITIONS if path in runs.varied]
    return [group for _, group in points.groupby(varied, dropna=False)] if varied else [points]


def of_other_queries(points: pd.DataFrame, runs: Runs) -> list[str]:
    """The paths by which the points are measured on other data or another split."""
    return differing(points, [path for path in QUERIES if path in runs.varied])


def lowest_noise(points: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """(the points at the lowest noise ratio, words about it for a title); (all points, "") if they have no noise."""
    if NOISE not in points:
        return points, ""
    lowest = points[NOISE].min()
    return points[points[NOISE] == lowest], f"noise {100 * lowest:g}%"


def differing(points: pd.DataFrame, paths: Sequence[str]) -> list[str]:
    """Those of the paths in which the points differ."""
    return [path for path in paths if points[path].nunique(dropna=False) > 1]


def row_dicts(table: pd.DataFrame) -> list[dict[Any, Any]]:
    """Each row as a dict, as `to_dict("records")`, but ten times as fast for hundreds of columns."""
    return [dict(zip(table.columns, row, strict=True)) for row in table.astype(object).to_numpy()]


def point_name(row: Mapping[Any, Any], paths: Sequence[str], *, names_objective: bool = True) -> str:
    """A point's name in figures: its objective, then the value of each path in which points differ. Beside the objective's name
    a setting that the point has not is left out.
    """
    words = [str(row[OBJECTIVE])] if names_objective else []
    named = {OBJECTIVE, METRIC} if words and includes_metric(words[0], row) else {OBJECTIVE}
    values = [(name, written(row[path])) for path, name in short_names(paths).items() if path not in named]
    return " ".join(words + [f"{name}={value}" for name, value in values if value != MISSING or not words])


def point_names(points: pd.DataFrame, runs: Runs) -> list[str]:
    """The points' names in figures, with everything in which they differ."""
    paths = differing(points, runs.varied)
    return [point_name(row, paths) for row in row_dicts(points)]


def in_reading_order(table: pd.DataFrame, varied: Sequence[str]) -> pd.DataFrame:
    """Sorted by the objectives' order in the papers, then by the other varied paths."""
    order = {name: index for index, name in enumerate(PRESETS)}
    keyed = table.assign(_order=table[OBJECTIVE].map(lambda name: (order.get(name, len(order)), name)))
    others = [path for path in varied if path != OBJECTIVE]
    for path in others:
        if keyed[path].map(type).nunique() > 1:
            keyed[path] = keyed[path].astype(str)
    return table.loc[keyed.sort_values(["_order", *others], kind="stable").index].reset_index(drop=True)
