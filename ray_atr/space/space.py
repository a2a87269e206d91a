"""Dimensions by dotted path, checked as a whole against the settings tree that they vary.

Every path must be a setting, and every value that can come out one that `override` takes.

Conditional spaces: where one dimension chooses a variant (`objective=choice(contrastive,m_ltm)`), another may be a setting
that only some variants have (`objective.pair.epsilon=...`). It is then left out of the points of the others, and `conditions`
says which; a path that no variant has is refused.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ray_atr.override import as_typed, describe, flatten, override
from ray_atr.settings import refuse
from ray_atr.space.dimensions import FORMS, Dimension, Grid, RandInt, Uniform
from ray_atr.space.parsing import parse_dimension

Point = dict[str, Any]
"""Dotted path -> value: overrides of the experiment."""


@dataclass(frozen=True)
class Space:
    """Dimensions by dotted path, checked against the settings tree that they vary."""

    dimensions: Mapping[str, Dimension]
    tree: Any

    @staticmethod
    def parse(entries: Sequence[str], tree: Any) -> Space:
        """The space of `PATH=DIMENSION` entries. ValueError for a form, path or value that the tree does not take."""
        dimensions: dict[str, Dimension] = {}
        for entry in entries:
            path, (_, equals, text) = path_of(entry), entry.partition("=")
            if not equals or not path:
                raise refuse("--space", entry, "PATH=" + FORMS)
            if path in dimensions:
                raise ValueError(f"{path}: given twice in the space")
            dimensions[path] = parse_dimension(path, text)
        return Space.of(dimensions, tree)

    @staticmethod
    def of(dimensions: Mapping[str, Dimension], tree: Any) -> Space:
        """A checked space, its values as the tree holds them (`0` of a float setting as `0.0`)."""
        if "seed" in dimensions:
            raise ValueError("seed: seeds are averaged, not searched; give them with --seeds")
        raw = Space(dimensions, tree)
        checked: dict[str, Dimension] = {}
        for path, dimension in dimensions.items():
            cases = [case for case in raw._cases if path in case.paths] or raw._cases[:1]
            found = {_check(path, dimension, override(tree, case.without(path))) for case in cases}
            checked[path] = found.pop() if len(found) == 1 else dimension
        return Space(checked, tree)

    def build(self, choose: Callable[[str], Any], only: Container[str] | None = None) -> Point:
        """A point whose values are chosen path by path, of the paths (`only` these) that exist; variants are chosen first."""
        point: Point = {}
        for path in self._ordered:
            if (only is None or path in only) and self._applies(path, point):
                point[path] = choose(path)
        return {path: point[path] for path in self.dimensions if path in point}

    def draw(self, random_numbers: random.Random, fixed: Mapping[str, Any] | None = None) -> Point:
        """A random point, with the `fixed` values if they are given."""
        given = fixed or {}
        return self.build(lambda path: given[path] if path in given else self.dimensions[path].draw(random_numbers))

    def grid(self) -> Iterator[Point]:
        """Every point of the grid and choice dimensions, each once. ValueError for a range, which has no such points."""
        self.require_grid()
        return self.points_of(self.dimensions)

    def require_grid(self) -> None:
        """ValueError, naming the path, if a dimension is a range."""
        for path, dimension in self.dimensions.items():
            if not isinstance(dimension, Grid):
                raise refuse(path, str(dimension), "grid(VALUE,...) here; a range needs --search random or optuna")

    def cells(self) -> list[Point]:
        """The points of the grid dimensions alone: a search runs within each of them separately."""
        return list(self.points_of(path for path, dimension in self.dimensions.items() if type(dimension) is Grid))

    def points_of(self, paths: Iterable[str]) -> Iterator[Point]:
        """The points of some grid and choice dimensions alone, each once."""
        points = combinations({path: self.dimensions[path].values for path in paths})
        yield from _each_once(self.build(given.__getitem__, only=given) for given in points)

    def holds(self, point: Mapping[str, Any]) -> bool:
        """Whether a point has exactly the paths that it should, each with a value of its dimension."""
        try:
            rebuilt = self.build(point.__getitem__)
        except KeyError:
            return False
        return rebuilt == dict(point) and all(_is_in(self.dimensions[path], value) for path, value in point.items())

    @property
    def trees(self) -> list[Any]:
        """The settings tree with each combination of the variants that the space chooses among."""
        return [override(self.tree, case.point) for case in self._cases]

    @property
    def conditions(self) -> list[str]:
        """In words, which settings are left out of which points, because no such setting exists there."""
        lines = []
        for path in self.dimensions:
            without = [case.point for case in self._cases if path not in case.paths]
            if without:
                lines.append(f"{path} is left out if {self._where(path, without)}: no such setting there")
        return lines

    def _where(self, path: str, without: Sequence[Point]) -> str:
        """The single choices that leave a path out, if they explain all; else every combination that does."""
        single = {}
        for key in self._choosers:
            for value in self.dimensions[key].values:
                if not any(path in case.paths for case in self._cases if case.point[key] == value):
                    single[f"{key}={value}"] = [point for point in without if point[key] == value]
        if all(any(point in points for points in single.values()) for point in without):
            return " or ".join(single)
        return " or ".join(" with ".join(f"{key}={value}" for key, value in point.items()) for point in without)

    def describe(self) -> dict[str, str]:
        """Path -> dimension as it is written, JSON-ready; `parse` reads it again."""
        return {path: str(dimension) for path, dimension in self.dimensions.items()}

    def _applies(self, path: str, point: Mapping[str, Any]) -> bool:
        """Whether the setting exists with the variants that are chosen so far."""
        if path in self._choosers:
            return True
        return any(path in case.paths for case in self._cases if case.agrees_with(point))

    @cached_property
    def _ordered(self) -> list[str]:
        return [*self._choosers, *(path for path in self.dimensions if path not in self._choosers)]

    @cached_property
    def _choosers(self) -> list[str]:
        """Paths that choose a variant, the shorter first."""
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
                    # The override says what is wrong with the path, and which is nearest.
                    override(override(self.tree, cases[0].point), {path: self.dimensions[path].probes[0]})
        return cases


@dataclass(frozen=True)
class _Case:
    point: Point
    paths: frozenset[str]

    def agrees_with(self, point: Mapping[str, Any]) -> bool:
        return all(point.get(path, value) == value for path, value in self.point.items())

    def without(self, path: str) -> Point:
        return {key: value for key, value in self.point.items() if key != path}


def combinations(values: Mapping[str, Sequence[Any]]) -> Iterator[Point]:
    """Every combination of the values of the paths, the last changing fastest."""
    return (dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values()))


def path_of(entry: str) -> str:
    """The path of a `PATH=DIMENSION`."""
    return entry.partition("=")[0].strip().lstrip("-").replace("-", "_")


def _each_once(points: Iterable[Point]) -> Iterator[Point]:
    seen = set()
    for point in points:
        key = point_key(point)
        if key not in seen:
            seen.add(key)
            yield point


def point_key(point: Mapping[str, Any]) -> str:
    """The same text for the same point, whichever order its paths are in."""
    return json.dumps(dict(point), sort_keys=True, default=str)


def _check(path: str, dimension: Dimension, tree: Any) -> Dimension:
    """The dimension with its values as the tree holds them. ValueError if the tree refuses one of them."""
    held = []
    for value in dimension.probes:
        try:
            # The name itself of what is chosen by name.
            held.append(as_typed(flatten(override(tree, {path: value})).get(path, value)))
        except ValueError as error:
            whole = (
                isinstance(dimension, Uniform) and not isinstance(dimension, RandInt) and "allowed int" in str(error)
            )
            hint = "; write randint(LOW,HIGH)" if whole else ""
            raise ValueError(f"{error} (in {dimension}{hint})") from None
    return type(dimension)(tuple(held)) if isinstance(dimension, Grid) else dimension


def _is_in(dimension: Dimension, value: Any) -> bool:
    if isinstance(dimension, Grid):
        return value in dimension.values
    return isinstance(value, int | float) and not isinstance(value, bool) and dimension.low <= value <= dimension.high
