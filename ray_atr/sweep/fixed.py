"""Fixed settings of a sweep's points: set explicitly or by the recipe, below a setting that the sweep varies.

A point that chooses a variant (`objective = m_ltm`) starts from that variant's own settings. What was set below it
(`objective.pair.epsilon`) is applied to each point again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from ray_atr.common.override import flatten, override
from ray_atr.common.settings import refuse
from ray_atr.objectives import PRESETS, Objective
from ray_atr.sweep.space import Point, point_key
from ray_atr.training.experiment import Experiment
from ray_atr.training.run_folder import trial_name

OBJECTIVE = "objective"
Varied = Mapping[str, Collection[Any]]  # what a sweep varies: its listed values by path


def split_settings(settings: Mapping[str, Any], varied: Varied) -> tuple[dict[str, Any], dict[str, Any]]:
    """(settings of the experiment, settings that are applied to each point).

    ValueError for a setting that the sweep varies, unless it is one of the sweep's own values, given so that a setting below it
    is accepted (`objective.knowledge=ask` with `objective.knowledge.refresh=...`).
    """
    base: dict[str, Any] = {}
    fixed: dict[str, Any] = {}
    for path, value in settings.items():
        if path in varied:
            values = list(dict.fromkeys(map(str, varied[path])))
            if str(value) not in values or not any(_is_below(other, [path]) for other in settings):
                values_in_words = f" ({', '.join(values)})" if values else ""
                raise refuse(
                    path, value, f"nothing here: this sweep varies it{values_in_words}, by an option of its own"
                )
        elif _is_below(path, varied):
            fixed[path] = value
        else:
            base[path] = value
    return base, fixed


def set_by_recipe(recipe: Experiment, varied: Varied) -> dict[str, Any]:
    """The recipe's changes to the objective, below the settings that the sweep varies: compared with the nearest preset, or with
    the parts' defaults if the sweep varies parts of the objective.
    """
    objective, flat = recipe.objective, flatten(recipe.objective)
    parts = {field.name: type(getattr(objective, field.name))() for field in dataclasses.fields(objective)}
    origins = map(flatten, PRESETS.values() if OBJECTIVE in varied else [Objective(**parts)])
    changes = min(
        ({path: value for path, value in flat.items() if origin.get(path) != value} for origin in origins), key=len
    )
    overrides = {f"{OBJECTIVE}.{path}": value for path, value in changes.items()}
    return {path: value for path, value in overrides.items() if path not in varied and _is_below(path, varied)}


def overrides_of(base: Experiment, point: Mapping[str, Any], fixed: Mapping[str, Any]) -> Point:
    """A point with the fixed settings that exist in it, converted to the tree's types. ValueError for an invalid value."""
    overrides = dict(point)
    for path in sorted(fixed, key=lambda path: path.count(".")):
        if path not in overrides and path in flatten(override(base, overrides)):
            overrides[path] = flatten(override(base, {**overrides, path: fixed[path]}))[path]
    return overrides


def check_fixed(
    base: Experiment, points: Sequence[Mapping[str, Any]], fixed: Mapping[str, Any], explicit: Collection[str]
) -> None:
    """ValueError for an explicit setting that no point has, or if fixed settings make two points the same experiment."""
    if not fixed:
        return
    complete = [overrides_of(base, point, fixed) for point in points]
    for path in explicit:
        if points and not any(path in complete_point for complete_point in complete):
            try:
                override(override(base, points[0]), {path: fixed[path]})
            except ValueError as error:
                others = f" No other point of the sweep has it: {', '.join(_labels(points, fixed))}."
                raise ValueError(f"{error}.{others if points[1:] else ''}") from None
    checked: dict[str, Mapping[str, Any]] = {}
    for point, complete_point in zip(points, complete, strict=True):
        twin = checked.setdefault(repr(override(base, complete_point)), point)
        if point_key(twin) != point_key(point):
            changed = ", ".join(f"{path}={fixed[path]}" for path in fixed if path in complete_point)
            raise ValueError(f"{trial_name(twin)} and {trial_name(point)}: the same experiment with {changed}")


def lines_of_fixed(base: Experiment, points: Sequence[Mapping[str, Any]], fixed: Mapping[str, Any]) -> Iterator[str]:
    """A line for each fixed setting that not all points have."""
    complete = [overrides_of(base, point, fixed) for point in points]
    for path, value in fixed.items():
        having = [point for point, settings in zip(points, complete, strict=True) if path in settings]
        lacking = [point for point, settings in zip(points, complete, strict=True) if path not in settings]
        without = [name for name in _labels(lacking, [path]) if name not in _labels(having, [path])]
        if not having:
            yield f"{path}={value}, set by the recipe, is in no point of this sweep"
        elif lacking:
            has = "has" if len(without) == 1 else "have"
            yield f"{path}={value} holds for {', '.join(_labels(having, [path]))}; {', '.join(without)} {has} no such setting"


def _labels(points: Sequence[Mapping[str, Any]], paths: Collection[str]) -> list[str]:
    """The distinct choices of the points above the paths."""
    chosen = ({key: point[key] for key in point if any(_is_below(path, [key]) for path in paths)} for point in points)
    return list(dict.fromkeys(map(trial_name, chosen)))


def _is_below(path: str, parents: Collection[str]) -> bool:
    return any(path.startswith(f"{parent}.") for parent in parents)
