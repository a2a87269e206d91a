"""Where an epoch's time goes: a bar a point, divided by the parts of training that a run times."""

from __future__ import annotations

from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from ray_atr.metrics.epoch_report import TIMED_PARTS
from ray_atr.report.aggregate import aggregate, differing, point_name
from ray_atr.report.read import Runs
from ray_atr.report.style import RC, SPARE_COLOURS

MOST_BARS = 16
LABELLED = 0.04
"""The smallest share that has room for its number."""


def draw_time_shares(runs: Runs, path: Path) -> Path | None:
    """A figure of each part's share of the seconds of an epoch, saved as PNG; None if no trial timed its parts.

    Of more points than fit, the first; parts that took nothing anywhere are left out.
    """
    column_of = {part: column for part in TIMED_PARTS if (column := f"cost/{part}_seconds") in runs.finished}
    if not column_of:
        return None
    points = aggregate(runs, list(column_of.values()))
    seconds = points[list(column_of.values())].fillna(0.0)
    points, seconds = points[seconds.sum(axis=1) > 0].head(MOST_BARS), seconds[seconds.sum(axis=1) > 0].head(MOST_BARS)
    if points.empty:
        return None
    shares = seconds.div(seconds.sum(axis=1), axis=0)
    paths = differing(points, runs.varied)
    names = [point_name(row, paths) for row in points.to_dict("records")]
    with rc_context({**RC, "axes.grid.axis": "x"}):
        figure = Figure(figsize=(10.4, 1.1 + 0.34 * len(names)), layout="constrained")
        axes = figure.subplots()
        left = [0.0] * len(names)
        for colour, (part, column) in zip(SPARE_COLOURS, column_of.items(), strict=False):
            widths = [100 * share for share in shares[column]]
            if max(widths) == 0:
                continue
            bars = axes.barh(range(len(names)), widths, left=left, height=0.72, color=colour, label=part)
            axes.bar_label(
                bars, [f"{w:.0f}" if w >= 100 * LABELLED else "" for w in widths], label_type="center", fontsize=8
            )
            left = [start + width for start, width in zip(left, widths, strict=True)]
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.set(xlim=(0, 100), xlabel="share of an epoch (%)")
        axes.legend(loc="center left", bbox_to_anchor=(1.005, 0.5), frameon=False, fontsize=9, handlelength=1.0)
        figure.savefig(path)
    return path
