"""How figures look: one colour and one marker an objective, told apart without colour sight, and a quiet frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# Okabe and Ito's palette, without its yellow (too light for a line on white); each objective keeps its colour in every figure.
COLOURS = {
    "triplet": "#7f7f7f",
    "contrastive": "#0072B2",
    "contrastive_entropic": "#56B4E9",
    "m_ltm": "#E69F00",
    "m_ltm_pot": "#D55E00",
    "ml_clap": "#0072B2",
    "cacl": "#56B4E9",
    "kcl": "#009E73",
    "ask": "#CC79A7",
    "moco": "#7f7f7f",
    "nnclr": "#8c6d31",
    "ance": "#393b79",
}
MARKERS = {
    "triplet": "v",
    "contrastive": "o",
    "contrastive_entropic": "D",
    "m_ltm": "s",
    "m_ltm_pot": "^",
    "ml_clap": "o",
    "cacl": "D",
    "kcl": "P",
    "ask": "X",
}
SPARE_COLOURS = ("#009E73", "#CC79A7", "#0072B2", "#D55E00", "#56B4E9", "#E69F00", "#7f7f7f", "#000000")
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
    """Colour and marker of each line; a name that begins with an objective's takes that one's while it is free."""
    result: dict[str, dict[str, Any]] = {}
    taken: set[tuple[str, str]] = set()
    for name in names:
        objective = name.split(" ")[0]
        look = (COLOURS.get(objective, ""), MARKERS.get(objective, "o"))
        if not look[0] or look in taken:
            free = [
                (colour, marker)
                for shift in range(len(SPARE_MARKERS))
                for colour, marker in zip(SPARE_COLOURS, SPARE_MARKERS[shift:] + SPARE_MARKERS[:shift], strict=True)
                if (colour, marker) not in taken
            ]
            look = free[0]
        taken.add(look)
        result[name] = {"color": look[0], "marker": look[1]}
    return result
