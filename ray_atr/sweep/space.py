"""Spaces of a search: dimensions such as `objective.pair.transport_mass=uniform(0.3,1)`, parsed, checked and drawn from.

A dimension says what one setting may be: all or one of some values, or a number of a range. A space has dimensions by
dotted path, checked together against the settings tree that they vary: every path must be a setting, and every value must be
valid for `override`. If one dimension chooses a variant
(`objective=choice(contrastive,m_ltm)`), another may be a setting that only some variants have
(`objective.pair.epsilon=...`): it is left out of the points of the others, and `conditions` says which; a path that no
variant has is refused.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from ray_atr.common.override import as_typed, combinations, describe, flatten, override
from ray_atr.common.settings import nearest, refuse

Point = dict[str, Any]
"""Overrides of the experiment: values by dotted path."""
SIGNIFICANT_DIGITS = 6
"""Digits of a drawn number: enough for any setting, and short enough to type."""


def name_of(kind: type) -> str:
    """The name of a dimension in a space: its class name in lower case."""
    return kind.__name__.lower()


@dataclass(frozen=True)
class Grid:
    """All of these values."""

    values: tuple[Any, ...]

    def draw(self, random_numbers: random.Random) -> Any:
        return random_numbers.choice(self.values)

    @property
    def test_values(self) -> tuple[Any, ...]:
        """Values that are valid only if all values of the dimension are."""
        return self.values

    def __str__(self) -> str:
        return f"{name_of(type(self))}({','.join(map(_written, self.values))})"


@dataclass(frozen=True)
class Choice(Grid):
    """One of these values, without an order."""


@dataclass(frozen=True)
class Uniform:
    """A number between two, ends included, uniformly distributed."""

    low: float
    high: float

    @property
    def values(self) -> tuple[Any, ...]:
        """Empty: the values of a range are not listed."""
        return ()

    def draw(self, random_numbers: random.Random) -> Any:
        return self.fit(random_numbers.uniform(self.low, self.high))

    def fit(self, number: float) -> Any:
        """The nearest number of this dimension."""
        return min(max(_rounded(number), self.low), self.high)

    @property
    def test_values(self) -> tuple[Any, ...]:
        # A number between the ends is invalid for a setting that takes only integers.
        return self.low, self.high, self.low + (self.high - self.low) / math.pi

    def __str__(self) -> str:
        return f"{name_of(type(self))}({_number(self.low)},{_number(self.high)})"


@dataclass(frozen=True)
class LogUniform(Uniform):
    """A positive number between two, with a uniformly distributed logarithm."""

    def draw(self, random_numbers: random.Random) -> Any:
        return self.fit(math.exp(random_numbers.uniform(math.log(self.low), math.log(self.high))))


@dataclass(frozen=True)
class RandInt(Uniform):
    """A whole number between two, both included."""

    def draw(self, random_numbers: random.Random) -> Any:
        return random_numbers.randint(int(self.low), int(self.high))

    def fit(self, number: float) -> Any:
        return int(min(max(round(number), self.low), self.high))

    @property
    def test_values(self) -> tuple[Any, ...]:
        return int(self.low), int(self.high)


@dataclass(frozen=True)
class QUniform(Uniform):
    """A number between two in steps from the lower: low, low + step, ..., at most high."""

    step: float

    def draw(self, random_numbers: random.Random) -> Any:
        return self._at(random_numbers.randint(0, self.num_steps))

    def fit(self, number: float) -> Any:
        return self._at(min(max(round((number - self.low) / self.step), 0), self.num_steps))

    @property
    def num_steps(self) -> int:
        return math.floor((self.high - self.low) / self.step + 1e-9)

    @property
    def test_values(self) -> tuple[Any, ...]:
        return tuple(self._at(number) for number in sorted({0, 1, self.num_steps}))

    def _at(self, number: int) -> float:
        return _rounded(self.low + number * self.step)

    def __str__(self) -> str:
        return f"{name_of(type(self))}({_number(self.low)},{_number(self.high)},{_number(self.step)})"


Dimension = Grid | Uniform
KINDS: tuple[type[Grid] | type[Uniform], ...] = (Grid, Choice, Uniform, LogUniform, QUniform, RandInt)
DIMENSIONS = {name_of(kind): kind for kind in KINDS}
FORMS = (
    "grid(VALUE,...), choice(VALUE,...), uniform(LOW,HIGH), loguniform(LOW,HIGH), quniform(LOW,HIGH,STEP) "
    "or randint(LOW,HIGH)"
)


def _written(value: Any) -> str:
    """A value of a grid as `_values` reads it."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str) or (
        value and value == value.strip() == _plain(value) and not set(value) & set(",'\"")
    ):
        return str(value)
    return f'"{value}"' if "'" in value else f"'{value}'"


def _number(value: float) -> str:
    """An end of a range with all of its digits, and no more."""
    return f"{value:g}" if not isinstance(value, int) and float(f"{value:g}") == value else str(value)


def _rounded(number: float) -> float:
    return float(f"{number:.{SIGNIFICANT_DIGITS}g}")


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
    if not issubclass(kind, Grid):
        return _range(path, text, name, kind, values)
    if not values:
        raise refuse(path, text, f"{name}(VALUE,...) with at least one value")
    repeated = [value for number, value in enumerate(values) if value in values[:number]]
    if repeated:
        raise refuse(path, text, f"each value once; {repeated[0]} occurs twice")
    return kind(tuple(values))


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
    """The values between the brackets, split at commas outside of quotes, converted to numbers and booleans."""
    values: list[Any] = []
    position = 0 if inside.strip() else len(inside)
    while position < len(inside):
        match = _VALUE.match(inside, position)
        if match is None or match["bare"] == "":
            raise refuse(path, text, "values with commas between them; quote one that has a comma of its own")
        quoted = match["double"] if match["double"] is not None else match["single"]
        values.append(quoted if quoted is not None else _plain(match["bare"]))
        position = match.end()
    if inside.rstrip().endswith(","):
        raise refuse(path, text, "no comma after the last value")
    return values


def _plain(word: str) -> Any:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(word)
    return {"true": True, "false": False}.get(word.lower(), word)


@dataclass(frozen=True)
class Space:
    """Dimensions by dotted path, and the settings tree that they vary."""

    dimensions: Mapping[str, Dimension]
    tree: Any

    @staticmethod
    def parse(entries: Sequence[str], tree: Any) -> Space:
        """The space of `PATH=DIMENSION` entries, with values of the tree's types (`0` of a float setting as `0.0`).

        ValueError for a form, path or value that the tree does not take.
        """
        dimensions: dict[str, Dimension] = {}
        for entry in entries:
            path, (_, equals, text) = path_of(entry), entry.partition("=")
            if not equals or not path:
                raise refuse("--space", entry, "PATH=" + FORMS)
            if path in dimensions:
                raise ValueError(f"{path}: given twice in the space")
            dimensions[path] = parse_dimension(path, text)
        if "seed" in dimensions:
            raise ValueError("seed: seeds are averaged, not searched; give them with --seeds")
        raw = Space(dimensions, tree)
        checked: dict[str, Dimension] = {}
        for path, dimension in dimensions.items():
            cases = [case for case in raw._cases if path in case.paths] or raw._cases[:1]
            others = ({key: value for key, value in case.point.items() if key != path} for case in cases)
            allowed = {_check(path, dimension, override(tree, point)) for point in others}
            checked[path] = allowed.pop() if len(allowed) == 1 else dimension
        return Space(checked, tree)

    def build(self, choose: Callable[[str], Any], only: Container[str] | None = None) -> Point:
        """A point with a value for each path that exists in it (`only` these); variants are chosen first."""
        point: Point = {}
        for path in [*self._choosers, *(path for path in self.dimensions if path not in self._choosers)]:
            if (only is None or path in only) and self._applies(path, point):
                point[path] = choose(path)
        return {path: point[path] for path in self.dimensions if path in point}

    def draw(self, random_numbers: random.Random, fixed: Mapping[str, Any] | None = None) -> Point:
        """A random point with the `fixed` values."""
        values = fixed or {}
        return self.build(lambda path: values[path] if path in values else self.dimensions[path].draw(random_numbers))

    def grid(self) -> Iterator[Point]:
        """Every point of the grid and choice dimensions, each once. ValueError for a range, which has no such points."""
        self.require_grid()
        return self.points_of(self.dimensions)

    def require_grid(self) -> None:
        """ValueError, naming the path, if a dimension is a range."""
        for path, dimension in self.dimensions.items():
            if not isinstance(dimension, Grid):
                raise refuse(
                    path, str(dimension), "grid(VALUE,...) here; a range needs another search than --search grid"
                )

    def grid_points(self) -> list[Point]:
        """The points of the grid dimensions: a search runs within each of them separately."""
        return list(self.points_of(path for path, dimension in self.dimensions.items() if type(dimension) is Grid))

    def points_of(self, paths: Iterable[str]) -> Iterator[Point]:
        """The points of some grid and choice dimensions, each once."""
        keys = set()
        for values in combinations({path: self.dimensions[path].values for path in paths}):
            point = self.build(values.__getitem__, only=values)
            if point_key(point) not in keys:
                keys.add(point_key(point))
                yield point

    def holds(self, point: Mapping[str, Any]) -> bool:
        """Whether a point has exactly the paths that it should, each with a value of its dimension."""
        try:
            rebuilt = self.build(point.__getitem__)
        except KeyError:
            return False
        return rebuilt == dict(point) and all(_is_in(self.dimensions[path], value) for path, value in point.items())

    @property
    def conditions(self) -> list[str]:
        """Lines about settings that some points lack, because their variants do not have them."""
        lines = []
        for path in self.dimensions:
            without = [case.point for case in self._cases if path not in case.paths]
            if without:
                lines.append(f"{path} is left out if {self._where(path, without)}: no such setting there")
        return lines

    def _where(self, path: str, without: Sequence[Point]) -> str:
        """The single choices without a path, if they explain all; else every such combination."""
        single = {}
        for key in self._choosers:
            for value in self.dimensions[key].values:
                if not any(path in case.paths for case in self._cases if case.point[key] == value):
                    single[f"{key}={value}"] = [point for point in without if point[key] == value]
        if all(any(point in points for points in single.values()) for point in without):
            return " or ".join(single)
        return " or ".join(" with ".join(f"{key}={value}" for key, value in point.items()) for point in without)

    def describe(self) -> dict[str, str]:
        """The text of each dimension by path, which `parse` reads."""
        return {path: str(dimension) for path, dimension in self.dimensions.items()}

    def _applies(self, path: str, point: Mapping[str, Any]) -> bool:
        """Whether the setting exists with the chosen variants."""
        if path in self._choosers:
            return True
        return any(path in case.paths for case in self._cases if case.agrees_with(point))

    @cached_property
    def _choosers(self) -> list[str]:
        """Paths that choose a variant, shorter ones first."""
        names = {entry.path for entry in describe(self.tree) if entry.type == "name"}
        chosen = [path for path in self.dimensions if path in names]
        for path in chosen:
            if not isinstance(self.dimensions[path], Grid):
                raise refuse(path, str(self.dimensions[path]), "grid(...) or choice(...) of names")
        return sorted(chosen, key=lambda path: path.count("."))

    @cached_property
    def _cases(self) -> list[_Case]:
        """Every combination of chosen variants, with the paths of this space that exist in it."""
        cases = []
        for point in combinations({path: self.dimensions[path].values for path in self._choosers}):
            existing = {entry.path for entry in describe(override(self.tree, point))}
            cases.append(_Case(point, frozenset(existing & set(self.dimensions))))
        if any(cases):
            for path in self.dimensions:
                if not any(path in case.paths for case in cases):
                    # `override` raises an error with the nearest path.
                    override(override(self.tree, cases[0].point), {path: self.dimensions[path].test_values[0]})
        return cases


class _Case(NamedTuple):
    point: Point
    paths: frozenset[str]

    def agrees_with(self, point: Mapping[str, Any]) -> bool:
        return all(point.get(path, value) == value for path, value in self.point.items())


def path_of(entry: str) -> str:
    """The path of a `PATH=DIMENSION`."""
    return entry.partition("=")[0].strip().lstrip("-").replace("-", "_")


def point_key(point: Mapping[str, Any]) -> str:
    """A key of a point that does not depend on the order of its paths."""
    return json.dumps(dict(point), sort_keys=True, default=str)


def _check(path: str, dimension: Dimension, tree: Any) -> Dimension:
    """The dimension with values of the tree's types. ValueError if one is invalid."""
    accepted = []
    for value in dimension.test_values:
        try:
            # A variant is its name.
            accepted.append(as_typed(flatten(override(tree, {path: value})).get(path, value)))
        except ValueError as error:
            is_real = isinstance(dimension, Uniform) and not isinstance(dimension, RandInt)
            hint = "; write randint(LOW,HIGH)" if is_real and "allowed int" in str(error) else ""
            raise ValueError(f"{error} (in {dimension}{hint})") from None
    return type(dimension)(tuple(accepted)) if isinstance(dimension, Grid) else dimension


def _is_in(dimension: Dimension, value: Any) -> bool:
    if isinstance(dimension, Grid):
        return value in dimension.values
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    has_steps = isinstance(dimension, RandInt | QUniform)
    return is_number and dimension.low <= value <= dimension.high and (not has_steps or dimension.fit(value) == value)
