"""Pictures of a sweep: R@1 by language, recall against cost, and the parts of an epoch's time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure

from ray_atr.evaluation.report.aggregate import (
    aggregate,
    lowest_noise,
    of_other_queries,
    point_name,
    point_names,
    row_dicts,
    under_same_conditions,
)
from ray_atr.evaluation.report.read import MEMORY, OBJECTIVE, Runs
from ray_atr.evaluation.report.style import QUIET, RC, SPARE_COLOURS, label_ends, looks
from ray_atr.evaluation.report.tables import ARROWS, of_whom
from ray_atr.metrics.epoch_report import TIMED_PARTS
from ray_atr.metrics.measures import pareto_front
from ray_atr.metrics.metric import TRAINED, Metric

MOST_NAMED, MOST_TIMES = 20, 16
"""Most points that are named in a figure; most points in the figure of the times."""
FEWEST_GROUPED, MOST_BARS = 8, 128
"""The figure of the languages shows at least so many points, and more as long as all languages together have so many bars."""
HATCHES = ("", "////", "xxxx")
"""For the first, second and third bar of one colour."""
MOST_UPRIGHT = 20
"""Most languages whose codes fit side by side; of more languages the codes are written from bottom to top."""
UNTRAINED = "*"
RECALL = Metric("text_to_audio", TRAINED, "recall_at_1")
COSTS = (
    (MEMORY, "peak device memory", {"MiB": 1.0, "GiB": 2.0**-10}),
    ("train_seconds", "training time of a trial", {"seconds": 1.0, "minutes": 1 / 60, "hours": 1 / 3600}),
)
"""The costs that recall is drawn against: metric, label, and units with their factors, the smallest first."""
MOST_TICKS = 6
UNCUT = "tight"
"""Matplotlib's `bbox_inches`: a long name beside a panel widens the picture instead of being cut off."""
LABELLED = 4.0
"""The smallest share of an epoch, in percent, that is labelled with its number."""


def draw_languages(runs: Runs, path: Path) -> Path | None:
    """A figure of R@1 by language at the lowest noise ratio, saved as PNG; None if there is one language only.

    A bar is one point, named by everything in which points differ. If there are more points than fit, the figure has the best of
    each objective on each data set, and says so. A language that some trials were not trained on is marked.
    """
    languages = runs.languages
    if len(languages) < 2:
        return None
    points, noise = lowest_noise(aggregate(runs))
    most = min(max(MOST_BARS // len(languages), FEWEST_GROUPED), MOST_NAMED)
    first = f"text_to_audio/{languages[0]}/recall_at_1"
    shown = points if len(points) <= most else _best_of_each(points, first, runs).head(most)
    names = point_names(shown, runs)
    look = looks(names)
    colours = [look[name]["color"] for name in names]
    hatches = [HATCHES[colours[:index].count(colour) % len(HATCHES)] for index, colour in enumerate(colours)]
    width = 0.82 / len(names)
    with rc_context(RC):
        figure = Figure(figsize=(10.4, 5.4))
        grid = figure.subplots(len(ARROWS), 1, sharex=True)
        figure.subplots_adjust(left=0.075, right=0.865, top=0.93, bottom=0.08, hspace=0.24)
        for axes, (direction, title) in zip(grid, ARROWS.items(), strict=True):
            axes.set_title(", ".join(filter(None, [title, noise, _left_out(shown, points, runs)])))
            axes.set_ylabel("R@1 (%)")
            for index, (name, row) in enumerate(zip(names, row_dicts(shown), strict=True)):
                positions = [position + (index - (len(names) - 1) / 2) * width for position in range(len(languages))]
                heights = [100 * row[f"{direction}/{code}/recall_at_1"] for code in languages]
                errors = [100 * row[f"{direction}/{code}/recall_at_1 (sd)"] for code in languages]
                axes.bar(
                    positions, heights, width * 0.92, color=look[name]["color"], label=name, hatch=hatches[index],
                    edgecolor="white", linewidth=0, yerr=errors,
                    error_kw={"elinewidth": 0.9, "capsize": 1.5, "ecolor": "#333333"},
                )  # fmt: skip
            axes.set_xticks(
                range(len(languages)), [code if code in runs.trained else f"{code}{UNTRAINED}" for code in languages]
            )
            axes.tick_params(axis="x", length=0, rotation=90 if len(languages) > MOST_UPRIGHT else 0)
            axes.set_ylim(bottom=0)
        grid[0].legend(loc="upper left", bbox_to_anchor=(1.005, 1.0), frameon=False, fontsize=9, handlelength=1.0)
        if runs.others:
            note = f"{UNTRAINED} {'no trial' if runs.is_unseen else 'not every trial'} was trained on its captions"
            # As a label of the axis it is below the codes, however long these are.
            grid[-1].set_xlabel(note, loc="right", fontsize=8, color=QUIET)
        figure.savefig(path, bbox_inches=UNCUT)
    return path


def draw_pareto(runs: Runs, path: Path) -> Path | None:
    """A figure of R@1 against peak memory (if it was measured) and training time, saved as PNG; None without either.

    It has every point of the sweep and, for each data set, the front of those that nothing beats in both. The legend names the
    points, the best first. If there are more than can be named, it names the best of each objective on each data set; points of
    one objective on one data set then look alike.
    """
    points, noise = lowest_noise(aggregate(runs))
    if RECALL not in points:
        return None
    # A trial may lack a language that the others are tested in.
    points = points.dropna(subset=[RECALL])
    costs = [
        (metric, *_in_units(label, units, float(points[metric].max())))
        for metric, label, units in COSTS
        if metric in points and points[metric].notna().sum() >= 2
    ]
    if not costs:
        return None
    best = _best_of_each(points, RECALL, runs)
    named = points if len(points) <= MOST_NAMED else best
    paths = of_other_queries(points, runs)
    called = point_names(points, runs) if named is points else [point_name(row, paths) for row in row_dicts(points)]
    names = pd.Series(called, points.index)
    look = looks(list(dict.fromkeys(names)))
    with rc_context(RC):
        figure = Figure(figsize=(5.2 * len(costs) + 1.2, 3.9))
        (grid,) = figure.subplots(1, len(costs), squeeze=False, sharey=True)
        figure.subplots_adjust(left=0.13 / len(costs) + 0.01, right=0.86 if len(costs) > 1 else 0.8,
                               top=0.9, bottom=0.15, wspace=0.3)  # fmt: skip
        for axes, (metric, label, scale) in zip(grid, costs, strict=True):
            shown = points.dropna(subset=[metric])
            axes.set_xlabel(label)
            axes.set_title(", ".join(filter(None, [noise, _left_out(named, points, runs, "named: ")])))
            for group in under_same_conditions(shown, runs):
                on_front = group.iloc[pareto_front(list(zip(-group[metric], group[RECALL], strict=True)))]
                axes.step(scale * on_front[metric], 100 * on_front[RECALL], where="post", color=QUIET, lw=1, zorder=1)
            for name, (_, row) in zip(names, points.iterrows(), strict=True):
                axes.plot(
                    scale * row[metric], 100 * row[RECALL], linestyle="none", markeredgecolor="white",
                    markeredgewidth=0.8, markersize=8, label=name, **look[name],
                )  # fmt: skip
            axes.set_xlim(left=0, right=1.08 * scale * shown[metric].max())
            axes.locator_params(axis="x", nbins=MOST_TICKS)
        grid[0].set_ylabel(f"R@1 text→audio, {of_whom(TRAINED, runs)} (%)", fontsize=9)
        grid[0].set_ylim(bottom=0, top=1.06 * 100 * points[RECALL].max())
        if len(named) > len(best):
            handles = dict(zip(names, axes.lines[-len(names) :], strict=True))
            ordered = names[points.sort_values(RECALL, ascending=False, kind="stable").index]
            axes.legend(
                [handles[name] for name in ordered], ordered, loc="upper left", bbox_to_anchor=(1.02, 1.0),
                frameon=False, fontsize=8, borderaxespad=0, handlelength=1.0,
            )  # fmt: skip
        else:
            figure.draw_without_rendering()
            # The best points of the last panel have their names beside them.
            last = _best_of_each(shown, RECALL, runs)
            ends = [
                (scale * row[metric], 100 * row[RECALL], name, look[name]["color"])
                for name, row in zip(names[last.index], row_dicts(last), strict=True)
            ]
            label_ends(axes, ends)
        figure.savefig(path, bbox_inches=UNCUT)
    return path


def _best_of_each(points: pd.DataFrame, metric: str, runs: Runs) -> pd.DataFrame:
    """The best point of each objective on each data set by a metric, in reading order."""
    best_first = points.sort_values(metric, ascending=False, kind="stable")
    return best_first.drop_duplicates([OBJECTIVE, *of_other_queries(points, runs)]).sort_index()


def _left_out(shown: pd.DataFrame, points: pd.DataFrame, runs: Runs, what: str = "") -> str:
    """Words of a title about the points that a figure does not show, or name; empty if there are none."""
    if len(shown) == len(points):
        return ""
    paths = of_other_queries(points, runs)
    best = f"the best of each objective{' on each data set' if paths else ''}"
    if len(shown) < len(points.drop_duplicates([OBJECTIVE, *paths])):
        best = f"some of {best}"
    return f"{what}{len(shown)} of {len(points)} points, {best}"


def _in_units(label: str, units: Mapping[str, float], largest: float) -> tuple[str, float]:
    """(label of an axis, its scale) in the largest unit of which the largest value is at least two."""
    fitting = [(unit, scale) for unit, scale in units.items() if scale * largest >= 2] or list(units.items())[:1]
    unit, scale = fitting[-1]
    return f"{label} ({unit})", scale


def draw_time_shares(runs: Runs, path: Path) -> Path | None:
    """A figure of each part's share of the seconds of an epoch, a bar a point, saved as PNG; None if no trial timed its parts.

    If there are more points than fit, it has as many of each objective, and says so. Parts that took no time are left out.
    """
    column_of = {part: column for part in TIMED_PARTS if (column := f"cost/{part}_seconds") in runs.finished}
    columns = list(column_of.values())
    if not columns:
        return None
    points = aggregate(runs)
    points = points[points[columns].sum(axis=1) > 0]
    timed = len(points)
    if timed > MOST_TIMES:
        turn = points.groupby(OBJECTIVE, sort=False).cumcount().sort_values(kind="stable")
        points = points.loc[sorted(turn.index[:MOST_TIMES])]
    if points.empty:
        return None
    shares = 100 * points[columns].fillna(0.0).div(points[columns].sum(axis=1), axis=0)
    names = point_names(points, runs)
    with rc_context({**RC, "axes.grid.axis": "x"}):
        figure = Figure(figsize=(10.4, 1.1 + 0.34 * len(names)), layout="constrained")
        axes = figure.subplots()
        starts = [0.0] * len(names)
        for colour, (part, column) in zip(SPARE_COLOURS, column_of.items(), strict=False):
            widths = list(shares[column])
            if max(widths) == 0:
                continue
            bars = axes.barh(range(len(names)), widths, left=starts, height=0.72, color=colour, label=part)
            texts = [f"{width:.0f}" if width >= LABELLED else "" for width in widths]
            axes.bar_label(bars, texts, label_type="center", fontsize=8)
            starts = [start + width for start, width in zip(starts, widths, strict=True)]
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.set(xlim=(0, 100), xlabel="share of an epoch (%)")
        if timed > MOST_TIMES:
            axes.set_title(f"{len(names)} of {timed} points, as many of each objective")
        axes.legend(loc="center left", bbox_to_anchor=(1.03, 0.5), frameon=False, fontsize=9, handlelength=1.0)
        figure.savefig(path, bbox_inches=UNCUT)
    return path
