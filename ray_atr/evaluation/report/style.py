"""The style of figures: a colour and a marker for each objective, safe for colour blindness, and names at the ends of lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.optimize import isotonic_regression

from ray_atr.objectives.presets import PRESET_TABLE

COLOURS = {preset.name: preset.colour for preset in PRESET_TABLE}
MARKERS = {preset.name: preset.marker for preset in PRESET_TABLE}
SPARE_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7f7f7f", "#882255")
SPARE_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

DPI = 160
INK, QUIET, GRID = "#1b1b1b", "#6b6b6b", "#e4e4e4"

RC: dict[Any, Any] = {
    "font.family": "DejaVu Sans", "font.size": 10, "lines.linewidth": 1.8, "lines.markersize": 5.5,
    "axes.edgecolor": "#9a9a9a", "axes.linewidth": 0.8, "axes.labelcolor": INK, "axes.axisbelow": True,
    "axes.titlesize": 10.5, "axes.titlelocation": "left", "axes.titlecolor": INK,
    "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "axes.grid.axis": "y", "grid.color": GRID, "grid.linewidth": 0.8,
    "xtick.color": QUIET, "ytick.color": QUIET, "xtick.labelcolor": INK, "ytick.labelcolor": INK,
    "figure.facecolor": "white", "savefig.dpi": DPI,
    # A name with two dollar signs is no formula.
    "text.parse_math": False,
}  # fmt: skip


def looks(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Colour and marker of each line; a name that begins with an objective's has that objective's, if it is still free.

    A colour comes twice only when all have been used, and then with another marker.
    """
    result: dict[str, dict[str, Any]] = {}
    reserved = {COLOURS[name] for name in names if name in COLOURS}
    for name in names:
        objective = name.split(" ")[0]
        colour, marker = COLOURS.get(objective), MARKERS.get(objective, "o")
        used = [look["color"] for look in result.values()]
        if colour is None or colour in used:
            spare = [shade for shade in SPARE_COLOURS if shade not in used and shade not in reserved]
            colour = spare[0] if spare else SPARE_COLOURS[len(used) % len(SPARE_COLOURS)]
            marker = SPARE_MARKERS[len(used) % len(SPARE_MARKERS)]
            if (colour, marker) in [(look["color"], look["marker"]) for look in result.values()]:
                marker = SPARE_MARKERS[(len(used) // len(SPARE_COLOURS) + len(used)) % len(SPARE_MARKERS)]
        result[name] = {"color": colour, "marker": marker}
    return result


def label_ends(axes: Any, ends: Sequence[tuple[float, float, str, str]], *, size: float = 9) -> None:
    """Write (x, y, text, colour) beside the right edge of the axes, joined to its line by a thin rule if it was moved."""
    if not ends:
        return
    low, high = axes.get_ylim()
    gap = (high - low) * size * 1.35 / (axes.get_window_extent().height / axes.figure.dpi * 72)
    positions = spread([y for _, y, _, _ in ends], gap, low + gap / 2, high - gap / 2)
    for (x, y, text, colour), place in zip(ends, positions, strict=True):
        rule = {"arrowstyle": "-", "lw": 0.6, "alpha": 0.6, "shrinkA": 1, "shrinkB": 4, "relpos": (0, 0.5)}
        axes.annotate(
            text, xy=(x, y), xytext=(axes.get_xlim()[1], place), va="center", ha="left",
            fontsize=size, color=colour, annotation_clip=False, arrowprops={**rule, "color": colour},
        )  # fmt: skip


def spread(heights: Sequence[float], gap: float, low: float = -np.inf, high: float = np.inf) -> list[float]:
    """Positions at least `gap` apart, in the order of `heights` and, if they fit, within [low, high], with the least squared
    movement: an isotonic regression, which bounds only clip.
    """
    order, steps = np.argsort(heights, kind="stable"), gap * np.arange(len(heights))
    placed = np.empty(len(heights))
    moved = isotonic_regression(np.asarray(heights)[order] - steps).x
    placed[order] = np.clip(moved, low, max(high - steps[-1], low)) + steps
    return placed.tolist()
