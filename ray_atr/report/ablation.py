"""ASK without each of its parts: a row a combination, a tick for each part that is on (layout of Fu et al. 2025, Table 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from ray_atr.report.aggregate import aggregate
from ray_atr.report.formatting import MISSING
from ray_atr.report.read import OBJECTIVE, Runs
from ray_atr.report.tables import Column, point_table
from ray_atr.table import Table

KNOWLEDGE = "objective.knowledge."
SWITCHES = tuple(KNOWLEDGE + part for part in ("fine", "coarse", "injection", "transport", "reliability"))
PERIOD = KNOWLEDGE + "refresh_every_epochs"
REFRESH = KNOWLEDGE + "refresh"
TICK = "✓"


def is_ablation(runs: Runs) -> bool:
    """Whether the runs switch a part of ASK on and off."""
    return any(path in runs.varied for path in SWITCHES)


def ablation_table(runs: Runs, columns: Sequence[Column], title: str) -> Table:
    """The points by which of ASK's parts they use; ASK's own defaults count where neither sweep nor experiment sets a part."""
    points = aggregate(runs)
    rows = points.to_dict("records")
    parts = {path: [_is_on(row, path, runs) for row in rows] for path in (*SWITCHES, PERIOD)}
    parts[REFRESH] = parts.pop(PERIOD)
    others = [path for path in runs.varied if path not in (OBJECTIVE, *SWITCHES, PERIOD)]
    shown = points.assign(**{path: [TICK if is_on else MISSING for is_on in on] for path, on in parts.items()})
    # No knowledge, then all of ASK, then what is left of it.
    num_on = [sum(on) for on in zip(*parts.values(), strict=True)]
    order = sorted(range(len(rows)), key=lambda row: (num_on[row] > 0, -num_on[row]))
    return point_table(replace(runs, varied=[OBJECTIVE, *parts, *others]), title, columns, points=shown.iloc[order])


def _is_on(row: Mapping[Any, Any], path: str, runs: Runs) -> bool:
    if "ask" not in str(row[OBJECTIVE]).split("+"):
        return False
    value = row.get(path)
    if value is None or pd.isna(value):
        value = runs.experiments[0].get(path, True)
    return bool(value)
