"""How figures look: one colour and one marker an objective, told apart without colour sight, and a quiet frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ray_atr.objectives.presets import PRESET_TABLE

COLOURS = {one.name: one.colour for one in PRESET_TABLE}
MARKERS = {one.name: one.marker for one in PRESET_TABLE}
SPARE_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#7f7f7f", "#882255")
SPARE_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

DPI = 160
INK, QUIET, GRID = "#1b1b1b", "#6b6b6b", "#e4e4e4"

RC: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.edgecolor": "#9a9a9a",
    "axes.linewidth": 0.8,
    "axes.labelcolor": INK,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "lines.linewidth": 1.8,
    "lines.markersize": 5.5,
    "figure.facecolor": "white",
    "savefig.dpi": DPI,
}


def looks(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Colour and marker of each line; a name that begins with an objective's takes that one's while it is free.

    A colour comes twice only when all have been used, and then with another marker.
    """
    result: dict[str, dict[str, Any]] = {}
    own = {COLOURS[name] for name in names if name in COLOURS}
    for name in names:
        objective = name.split(" ")[0]
        colour, marker = COLOURS.get(objective), MARKERS.get(objective, "o")
        used = [look["color"] for look in result.values()]
        if colour is None or colour in used:
            spare = [shade for shade in SPARE_COLOURS if shade not in used and shade not in own]
            colour = spare[0] if spare else SPARE_COLOURS[len(used) % len(SPARE_COLOURS)]
            marker = SPARE_MARKERS[len(used) % len(SPARE_MARKERS)]
            if (colour, marker) in [(look["color"], look["marker"]) for look in result.values()]:
                marker = SPARE_MARKERS[(len(used) // len(SPARE_COLOURS) + len(used)) % len(SPARE_MARKERS)]
        result[name] = {"color": colour, "marker": marker}
    return result
