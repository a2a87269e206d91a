"""Recall against what it costs: every point of the sweep, and the front of those that nothing beats in both."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure

from ray_atr.metrics.metric import TRAINED, Metric
from ray_atr.report.aggregate import aggregate, lowest_noise
from ray_atr.report.labels import label_ends
from ray_atr.report.read import MEMORY, OBJECTIVE, Runs
from ray_atr.report.style import QUIET, RC, looks
from ray_atr.report.tables import of_whom
from ray_atr.sweep.search import pareto_front

RECALL = Metric("text_to_audio", TRAINED, "recall_at_1")
COSTS = (
    (MEMORY, "peak device memory", {"MiB": 1.0, "GiB": 2.0**-10}),
    ("train_seconds", "training time of a trial", {"seconds": 1.0, "minutes": 1 / 60, "hours": 1 / 3600}),
)
"""What is drawn: metric, its name, and its units with what a value is multiplied by, the smallest first."""
MOST_TICKS = 6


def draw_pareto(runs: Runs, path: Path) -> Path | None:
    """A figure of R@1 against peak memory (if it was measured) and training time, saved as PNG; None without either."""
    points, noise = lowest_noise(aggregate(runs))
    if RECALL not in points:
        return None
    costs = [
        (metric, *_in_units(label, units, float(points[metric].max())))
        for metric, label, units in COSTS
        if metric in points and points[metric].notna().sum() >= 2
    ]
    if not costs:
        return None
    look = looks(list(dict.fromkeys(points[OBJECTIVE])))
    with rc_context(RC):
        figure = Figure(figsize=(5.2 * len(costs) + 1.2, 3.9))
        grid = figure.subplots(1, len(costs), squeeze=False, sharey=True)
        figure.subplots_adjust(left=0.13 / len(costs) + 0.01, right=0.86 if len(costs) > 1 else 0.8,
                               top=0.9, bottom=0.15, wspace=0.3)  # fmt: skip
        for axes, (metric, label, scale) in zip(grid[0], costs, strict=True):
            shown = points.dropna(subset=[metric, RECALL])
            axes.set_xlabel(label)
            axes.set_title(noise)
            on_front = shown.iloc[pareto_front(list(zip(-shown[metric], shown[RECALL], strict=True)))]
            axes.step(scale * on_front[metric], 100 * on_front[RECALL], where="post", color=QUIET, lw=1, zorder=1)
            for objective, frame in shown.groupby(OBJECTIVE, sort=False):
                axes.plot(
                    scale * frame[metric], 100 * frame[RECALL], linestyle="none", markeredgecolor="white",
                    markeredgewidth=0.8, markersize=8, **look[str(objective)],
                )  # fmt: skip
            axes.set_xlim(left=0, right=1.08 * scale * shown[metric].max())
            axes.locator_params(axis="x", nbins=MOST_TICKS)
        grid[0][0].set_ylabel(f"R@1 text→audio, {of_whom(TRAINED, runs)} (%)", fontsize=9)
        grid[0][0].set_ylim(bottom=0, top=1.06 * 100 * points[RECALL].max())
        figure.draw_without_rendering()
        metric, _, scale = costs[-1]
        _label(grid[0][-1], points.dropna(subset=[metric, RECALL]), metric, scale, look)
        figure.savefig(path)
    return path


def _in_units(label: str, units: Mapping[str, float], largest: float) -> tuple[str, float]:
    """(what an axis is called, its scale) in the largest unit of which the largest value is at least two."""
    fitting = [(unit, scale) for unit, scale in units.items() if scale * largest >= 2] or list(units.items())[:1]
    unit, scale = fitting[-1]
    return f"{label} ({unit})", scale


def _label(axes: object, points: pd.DataFrame, metric: str, scale: float, look: dict[str, dict[str, str]]) -> None:
    best = points.loc[points.groupby(OBJECTIVE, sort=False)[RECALL].idxmax()]
    label_ends(
        axes,
        [
            (scale * row[metric], 100 * row[RECALL], row[OBJECTIVE], look[row[OBJECTIVE]]["color"])
            for row in best.to_dict("records")
        ],
    )
