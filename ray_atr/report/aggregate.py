"""Mean, deviation and number of seeds of every metric, for each point of the sweep."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from ray_atr.report.read import OBJECTIVE, SEED, Runs

NUM_SEEDS = "num_seeds"
PRESET_ORDER = (
    "triplet", "contrastive", "contrastive_entropic", "m_ltm", "m_ltm_pot",
    "ml_clap", "cacl", "kcl", "moco", "nnclr", "ance", "ask",
)  # fmt: skip


def aggregate(runs: Runs, metrics: Sequence[str] | None = None) -> pd.DataFrame:
    """One row a point (every varied path but the seed), in reading order, over its finished trials.

    For each metric the columns `name`, `name (sd)` (sample standard deviation over the seeds; NaN for one seed); and
    `num_seeds`, the number of finished trials.
    """
    finished = runs.finished
    names = list(metrics) if metrics is not None else _metric_columns(finished)
    names = [name for name in names if name in finished]
    grouped = finished.groupby(runs.varied, dropna=False, sort=False)
    mean, deviation = grouped[names].mean(), grouped[names].std(ddof=1)
    table = mean.join(deviation.add_suffix(" (sd)"))
    table.insert(0, NUM_SEEDS, grouped[SEED].count())
    return in_reading_order(table.reset_index(), runs.varied)


def in_reading_order(table: pd.DataFrame, varied: Sequence[str]) -> pd.DataFrame:
    """Sorted by the objectives' order in the papers, then by the other varied paths."""
    order = {name: index for index, name in enumerate(PRESET_ORDER)}
    key = table[OBJECTIVE].map(lambda name: (order.get(name, len(order)), name))
    others = [path for path in varied if path != OBJECTIVE]
    keyed = table.assign(_order=key)
    for path in others:
        if keyed[path].map(type).nunique() > 1:
            keyed[path] = keyed[path].astype(str)
    positions = keyed.sort_values(["_order", *others], kind="stable").index
    return table.loc[positions].reset_index(drop=True)


def _metric_columns(trials: pd.DataFrame) -> list[str]:
    return [
        column
        for column in trials.columns
        if column == "train_seconds" or ("/" in column and pd.api.types.is_numeric_dtype(trials[column]))
    ]
