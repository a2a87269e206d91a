"""Reading a dimension as it is typed, `uniform(0.3,1)`."""

from __future__ import annotations

import math
import re
from typing import Any

from ray_atr.settings import nearest, refuse
from ray_atr.space.dimensions import DIMENSIONS, FORMS, Dimension, Grid, LogUniform, QUniform, RandInt, Uniform


def parse_dimension(path: str, text: str) -> Dimension:
    """`uniform(0.3,1)` as a dimension; nothing is evaluated. ValueError, naming the path, for what is not one of FORMS."""
    match = re.fullmatch(r"\s*(\w+)\s*\((.*)\)\s*", text, re.DOTALL)
    if match is None:
        raise refuse(path, text, FORMS)
    name, inside = match.groups()
    kind = DIMENSIONS.get(name)
    if kind is None:
        raise refuse(path, text, FORMS, nearest(name, DIMENSIONS))
    values = _values(path, text, inside)
    if issubclass(kind, Grid):
        if not values:
            raise refuse(path, text, f"{name}(VALUE,...) with at least one value")
        repeated = [value for number, value in enumerate(values) if value in values[:number]]
        if repeated:
            raise refuse(path, text, f"each value once; {repeated[0]} occurs twice")
        return kind(tuple(values))
    return _range(path, text, name, kind, values)


def _range(path: str, text: str, name: str, kind: type[Uniform], values: list[Any]) -> Uniform:
    wanted = "LOW,HIGH,STEP" if kind is QUniform else "LOW,HIGH"
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) != len(values) or len(values) != wanted.count(",") + 1 or not all(map(math.isfinite, numbers)):
        raise refuse(path, text, f"{name}({wanted}) with numbers")
    low, high = numbers[:2]
    if not low < high:
        raise refuse(path, text, f"{name}({wanted}) with LOW < HIGH")
    if kind is LogUniform and low <= 0:
        raise refuse(path, text, f"{name}({wanted}) with LOW > 0")
    if kind is RandInt and not all(isinstance(number, int) for number in numbers):
        raise refuse(path, text, f"{name}({wanted}) with whole numbers")
    if kind is QUniform:
        if not 0 < numbers[2] <= high - low:
            raise refuse(path, text, f"{name}({wanted}) with STEP between 0 and HIGH - LOW")
        return QUniform(float(low), float(high), float(numbers[2]))
    return kind(low, high) if kind is RandInt else kind(float(low), float(high))


_VALUE = re.compile(r"""\s*(?:"(?P<double>[^"]*)"|'(?P<single>[^']*)'|(?P<bare>[^,'"]*?))\s*(?:,|$)""")


def _values(path: str, text: str, inside: str) -> list[Any]:
    """What is between the brackets, split at commas outside quotes; numbers, true and false as such."""
    values: list[Any] = []
    position = 0
    while position < len(inside):
        match = _VALUE.match(inside, position)
        if match is None or (match["bare"] == "" and inside.strip()):
            raise refuse(path, text, "values with commas between them; quote one that has a comma of its own")
        quoted = match["double"] if match["double"] is not None else match["single"]
        values.append(quoted if quoted is not None else _plain(match["bare"]))
        position = match.end()
    if inside.strip() and inside.rstrip().endswith(","):
        raise refuse(path, text, "no comma after the last value")
    return [] if not inside.strip() else values


def _plain(word: str) -> Any:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(word.lower(), word)
