"""R@1 against one setting of the sweep: noise, transport mass, neighbours, ...: a panel a direction, a line an objective."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from ray_atr.common.table import written
from ray_atr.evaluation.report.aggregate import (
    NUM_SEEDS,
    QUERIES,
    aggregate,
    differing,
    in_reading_order,
    point_name,
)
from ray_atr.evaluation.report.read import NOISE, OBJECTIVE, Runs
from ray_atr.evaluation.report.style import QUIET, RC, label_ends, looks
from ray_atr.evaluation.report.tables import ARROWS, language_groups, of_whom
from ray_atr.training.run_folder import short_names

UNIT, KIND = "data.noise.unit", "data.noise.kind"
MOST_LINES = 16
MOST_VALUES = 25
MOST_TICKS, LONGEST_TICK = 8, 6


@dataclass(frozen=True)
class Curve:
    """A setting with a figure of its own: its axis label, and whether the axis is logarithmic."""

    path: str
    label: str
    file: str
    is_log: bool = False


CURVES = (
    Curve(NOISE, "noise ratio", "noise"),
    Curve("objective.pair.transport_mass", "transport mass s", "transport_mass"),
    Curve("objective.pair.epsilon", "entropic regularisation ε", "epsilon", is_log=True),
    Curve("objective.knowledge.neighbours", "retrieved neighbours K", "neighbours", is_log=True),
    Curve("objective.knowledge.injection_ratio", "injection ratio λ", "injection_ratio"),
    Curve("objective.knowledge.lambda_fine", "weight λ of the single clips' reliability", "lambda_fine"),
    Curve("objective.knowledge.lambda_coarse", "weight λ of the prototypes' reliability", "lambda_coarse"),
    Curve("objective.knowledge.prototypes", "prototypes of the knowledge base P", "prototypes", is_log=True),
    Curve("objective.knowledge.refresh_every_epochs", "epochs between refreshes of the knowledge base", "refresh"),
    Curve("objective.knowledge.refresh_lag", "steps from publishing a knowledge base to searching it", "refresh_lag"),
    Curve("train.learning_rate", "peak learning rate", "learning_rate", is_log=True),
    Curve("train.batch_size", "batch size", "batch_size", is_log=True),
)


def curves_of(runs: Runs) -> list[Curve]:
    """The settings with a line over at least two numbers, the known ones first.

    A search that proposes each of its points once, at one noise ratio say, has no line over noise: points beside each other
    would be all that is to be seen.
    """
    points, found = aggregate(runs), dict[str, str]()
    for path, name in short_names(runs.varied).items():
        lines = _lines(points[_are_numbers(points[path])], runs.varied, path)
        if any(frame[path].nunique() >= 2 for frame in lines.values()):
            found[path] = name
    known = [curve for curve in CURVES if curve.path in found]
    others = found.keys() - {curve.path for curve in CURVES}
    curves = known + [Curve(path, path, name) for path, name in found.items() if path in others]
    return [replace(drawn, label=noise_label(runs)) if drawn.path == NOISE else drawn for drawn in curves]


def noise_label(runs: Runs) -> str:
    """The axis label of the noise ratio in these runs."""

    def values_of(path: str, default: str) -> set[str]:
        if path in runs.trials:
            return set(runs.trials[path].dropna())
        # One of another version lacks the setting and has its default.
        return {str(experiment.get(path, default)) for experiment in runs.experiments}

    units, kinds = values_of(UNIT, "clip"), values_of(KIND, "pair")
    if len({kind == "language" for kind in kinds}) > 1 or len(units) > 1:
        return "noise ratio (its meaning: data.noise.kind and data.noise.unit)"
    where = " in one language" if kinds == {"language"} else ""
    if units == {"caption"}:
        return f"noise: share of training captions that are swapped{where}"
    return f"noise: share of training clips with swapped captions{where}"


def draw_curve(runs: Runs, curve: Curve, path: Path) -> Path:
    """A figure of R@1 against the curve's setting, saved as PNG.

    Columns are the directions; rows are the trained languages and, if there are such, the others. Bands are standard deviations
    over seeds (bars, for points that form no line). A setting sampled at many values is drawn as points; a point that has no
    number for the setting (another objective, `auto`) as a dashed level.
    """
    languages = language_groups(runs)
    points = aggregate(runs)
    is_on_axis = _are_numbers(points[curve.path])
    on_axis = points[is_on_axis].assign(**{curve.path: points.loc[is_on_axis, curve.path].astype(float)})
    lines = _lines(on_axis, runs.varied, curve.path)
    levels = _levels(points[~is_on_axis], runs.varied, curve.path)
    look = looks([*lines, *(name for name, (line, _) in levels.items() if line not in lines)])
    look |= {name: look[line] for name, (line, _) in levels.items() if line in lines}
    # The names of levels are at the right end too.
    right = max(float(frame[curve.path].max()) for frame in lines.values())
    named = {**lines, **{name: frame.assign(**{curve.path: right}) for name, (_, frame) in levels.items()}}
    with rc_context(RC):
        size = 9 if len(lines) <= 6 else 7.5
        # Inches: left margin, panel, and right margin for the longest name.
        left, panel, names = 0.75, 3.5, 0.3 + 0.0088 * size * max(map(len, [*lines, *levels]))
        width, height = 2 * (left + panel + names), 0.95 + 2.9 * len(languages)
        figure = Figure(figsize=(width, height))
        grid = figure.subplots(len(languages), len(ARROWS), squeeze=False, sharex=True, sharey="row")
        figure.subplots_adjust(
            left=left / width, right=1 - names / width, wspace=(left + names) / panel,
            top=1 - 0.4 / height, bottom=0.65 / height, hspace=0.26,
        )  # fmt: skip
        panels = [
            (axes, f"{direction}/{code}/recall_at_1", f"{title}, {of_whom(code, runs)}")
            for row, code in zip(grid, languages, strict=True)
            for axes, (direction, title) in zip(row, ARROWS.items(), strict=True)
        ]
        for axes, metric, title in panels:
            # Some 12 characters an inch.
            axes.set_title(textwrap.fill(title, int(12 * (panel + names))))
            axes.tick_params(labelleft=True)
            _draw_lines(axes, lines, look, curve, metric)
            for name, (_, frame) in levels.items():
                if metric in frame:
                    level = 100 * float(frame[metric].iloc[0])
                    axes.axhline(level, color=look[name]["color"], linestyle="--", linewidth=1.1)
        for row in grid:
            row[0].set_ylabel("R@1 (%)")
            row[0].set_ylim(bottom=0, top=row[0].get_ylim()[1] * 1.03)
        figure.text((left + panel + names / 2) / width, 0.13 / height, curve.label, ha="center", fontsize=10)
        figure.draw_without_rendering()
        for axes, metric, _ in panels:
            present = {name: frame.dropna(subset=[metric]) for name, frame in named.items() if metric in frame}
            last = {name: frame.iloc[-1] for name, frame in present.items() if len(frame)}
            ends = [(row[curve.path], 100 * row[metric], name, look[name]["color"]) for name, row in last.items()]
            label_ends(axes, ends, size=size)
        if points[NUM_SEEDS].max() > 1:
            figure.text(0.995, 0.13 / height, "bands: ±1 sd over seeds", ha="right", fontsize=8, color=QUIET)
        figure.savefig(path)
    return path


def _lines(points: pd.DataFrame, varied: Sequence[str], x: str) -> dict[str, pd.DataFrame]:
    """The points of each line by name: those that share all other varied settings."""
    others = [path for path in varied if path != x]
    points = in_reading_order(points, varied)
    if points[x].nunique() > MOST_VALUES or points.groupby(others, dropna=False).ngroups > MOST_LINES:
        # Points sampled at random hardly share their other settings.
        others = [OBJECTIVE, *(path for path in QUERIES if path in others)]
    names_objective = points[OBJECTIVE].nunique() > 1 or others == [OBJECTIVE]
    return {
        point_name(frame.iloc[0], others, names_objective=names_objective) or "R@1": frame.sort_values(x)
        for _, frame in points.groupby(others, dropna=False, sort=False)
    }


def _levels(points: pd.DataFrame, varied: Sequence[str], x: str) -> dict[str, tuple[str, pd.DataFrame]]:
    """By name, (the name of the line with the same other settings, the single point to compare it with)."""
    others = differing(points, [path for path in varied if path not in (x, OBJECTIVE)])
    levels, name = {}, short_names((x, *others))[x]
    for position, row in points.iterrows():
        first = str(row[OBJECTIVE]) if pd.isna(row[x]) else f"{name}={row[x]}"
        line = point_name(row, [path for path in others if not pd.isna(row[path])], names_objective=False)
        levels[f"{first} {line}".strip()] = (line, points.loc[[position]])
    return dict(list(levels.items())[:MOST_LINES])


def _are_numbers(values: pd.Series) -> pd.Series:
    return values.map(lambda value: isinstance(value, int | float) and not isinstance(value, bool) and value == value)


def _draw_lines(axes: Any, lines: dict[str, pd.DataFrame], look: dict[str, Any], curve: Curve, metric: str) -> None:
    values = sorted({value for frame in lines.values() for value in frame[curve.path].dropna()})
    is_log = curve.is_log and bool(values) and values[0] > 0
    # Each line is shifted a little, so that error bars do not overlap.
    step = 0.0 if is_log or len(values) < 2 else 0.006 * (values[-1] - values[0])
    for index, (name, frame) in enumerate(lines.items()):
        if metric not in frame:
            continue
        recall, deviation = 100 * frame[metric], 100 * frame[f"{metric} (sd)"].fillna(0.0)
        is_line, has_bars = frame[curve.path].is_unique, bool(deviation.any())
        if is_line and has_bars:
            band = (recall - deviation, recall + deviation)
            axes.fill_between(frame[curve.path], *band, color=look[name]["color"], alpha=0.16, linewidth=0)
        is_moved = not is_line and frame[f"{metric} (sd)"].notna().any()
        axes.errorbar(
            frame[curve.path] + (step * (index - (len(lines) - 1) / 2) if is_moved else 0.0), recall,
            yerr=deviation if has_bars and not is_line else None, capsize=2.5, elinewidth=1,
            linestyle="-" if is_line else "none", markeredgecolor="white", markeredgewidth=0.8, **look[name],
        )  # fmt: skip
    if is_log:
        axes.set_xscale("log")
    names = [f"{100 * value:g}%" if curve.path == NOISE else written(value) for value in values]
    # Chosen values name their own ticks; drawn ones have too many digits to be side by side.
    if 0 < len(values) <= MOST_TICKS and max(map(len, names)) <= LONGEST_TICK:
        axes.set_xticks(values, names)
        axes.minorticks_off()
    elif is_log:
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(lambda value, _: written(value))
        axes.minorticks_off()
