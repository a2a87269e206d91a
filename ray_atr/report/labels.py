"""Names written at the ends of lines instead of in a legend, moved apart where they would overlap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Positions at least `gap` apart, in the order of `heights`, with the least total movement.

    Labels that touch are merged into a pile that is centred on its members' mean; piles that then touch are merged too.
    """
    order = sorted(range(len(heights)), key=lambda index: heights[index])
    piles: list[tuple[float, list[int]]] = []
    for index in order:
        centre, members = heights[index], [index]
        while piles and centre - gap * (len(members) - 1) / 2 < piles[-1][0] + gap * (len(piles[-1][1]) - 1) / 2 + gap:
            before, those = piles.pop()
            centre = (before * len(those) + centre * len(members)) / (len(those) + len(members))
            members = those + members
        piles.append((centre, members))
    placed = [0.0] * len(heights)
    for centre, members in piles:
        for position, index in enumerate(members):
            placed[index] = centre + gap * (position - (len(members) - 1) / 2)
    return placed


def within(places: Sequence[float], low: float, high: float, gap: float) -> list[float]:
    """The places moved as little as keeps them at least `gap` apart and, if there is room for all, between low and high."""
    order = sorted(range(len(places)), key=lambda index: places[index])
    placed = list(places)
    least = low
    for index in order:
        placed[index] = max(placed[index], least)
        least = placed[index] + gap
    most = max(high, low + gap * (len(places) - 1))
    for index in reversed(order):
        placed[index] = min(placed[index], most)
        most = placed[index] - gap
    return placed


def label_ends(axes: Any, ends: Sequence[tuple[float, float, str, str]], *, size: float = 9) -> None:
    """Write (x, y, text, colour) beside the right edge of the axes, joined to its line by a thin rule where it was moved."""
    if not ends:
        return
    low, high = axes.get_ylim()
    pixels = axes.get_window_extent().height / axes.figure.dpi * 72
    gap = (high - low) * size * 1.35 / pixels
    right = axes.get_xlim()[1]
    places = spread([y for _, y, _, _ in ends], gap)
    places = within(places, low + gap / 2, high - gap / 2, gap)
    for (x, y, text, colour), place in zip(ends, places, strict=True):
        axes.annotate(
            text,
            xy=(x, y),
            xytext=(right, place),
            va="center",
            ha="left",
            fontsize=size,
            color=colour,
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-", "color": colour, "lw": 0.6, "alpha": 0.6, "shrinkA": 1, "shrinkB": 4, "relpos": (0, 0.5)
            },
        )  # fmt: skip
