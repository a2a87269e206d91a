"""Search spaces as a user writes them: `data.noise.ratio=grid(0,0.2,0.4)`, `objective.pair.transport_mass=uniform(0.3,1)`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from ray_atr.settings import nearest, refuse

KINDS = ("grid", "choice", "uniform", "loguniform", "integers")


@dataclass(frozen=True)
class Dimension:
    """One setting that a sweep varies: `grid` tries every value, the others are drawn from.

    `values` are the values of `grid` and `choice`, or the lower and upper end of a range (upper end included in
    `integers`).
    """

    path: str
    kind: str
    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise refuse(self.path, self.kind, "one of " + ", ".join(KINDS), nearest(self.kind, KINDS))
        if not self.values:
            raise ValueError(f"{self.path}: an empty {self.kind}(); give at least one value")
        if self.kind in ("uniform", "loguniform", "integers"):
            low, high = self._ends()
            if self.kind == "loguniform" and low <= 0:
                raise refuse(self.path, self.text(), "loguniform of two positive numbers")
            if low >= high:
                raise refuse(self.path, self.text(), "a lower end below the upper end")

    def _ends(self) -> tuple[float, float]:
        if len(self.values) != 2 or not all(isinstance(value, int | float) for value in self.values):
            raise refuse(self.path, self.text(), f"{self.kind}(lower, upper)")
        return self.values[0], self.values[1]

    @property
    def is_grid(self) -> bool:
        return self.kind == "grid"

    def text(self) -> str:
        return f"{self.kind}({','.join(str(value) for value in self.values)})"


def parse_space(specifications: Sequence[str]) -> list[Dimension]:
    """Dimensions from `path=kind(values)` texts. ValueError names the text that is not understood."""
    dimensions = [_parse(specification) for specification in specifications]
    for index, dimension in enumerate(dimensions):
        if dimension.path in [other.path for other in dimensions[:index]]:
            raise ValueError(f"{dimension.path}: stands twice in the space")
    return dimensions


def _parse(specification: str) -> Dimension:
    match = re.fullmatch(r"\s*([A-Za-z_][\w.]*)\s*=\s*(\w+)\((.*)\)\s*", specification, re.DOTALL)
    if match is None:
        raise ValueError(
            f"{specification}: not a dimension; write path=grid(a,b,...), choice(...), uniform(low,high), "
            "loguniform(low,high) or integers(low,high)"
        )
    path, kind, inside = match.groups()
    return Dimension(path, kind, tuple(_value(part) for part in inside.split(",") if part.strip()))


def _value(text: str) -> Any:
    text = text.strip()
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.lower(), text.strip("'\""))


def grid_points(dimensions: Sequence[Dimension]) -> Iterator[dict[str, Any]]:
    """Every combination of the grid dimensions' values, the first dimension slowest."""
    grids = [dimension for dimension in dimensions if dimension.is_grid]
    for values in product(*(dimension.values for dimension in grids)):
        yield {dimension.path: value for dimension, value in zip(grids, values, strict=True)}


def as_text(dimensions: Sequence[Dimension]) -> Mapping[str, str]:
    """The space as `{path: "grid(...)"}`, for the run folder."""
    return {dimension.path: dimension.text() for dimension in dimensions}
