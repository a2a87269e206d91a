"""The best point of a sweep, chosen on the validation split, as a command that runs it again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ray_atr.override import as_typed, flatten
from ray_atr.recipes import RECIPES
from ray_atr.report.aggregate import NUM_SEEDS, aggregate
from ray_atr.report.read import NOISE, OBJECTIVE, SEED, Runs
from ray_atr.run_folder import metric_chosen_by


@dataclass(frozen=True)
class Best:
    """The point with the highest validation metric, averaged over seeds, under one noise ratio."""

    noise_ratio: float | None
    objective: str
    metric: str
    mean: float
    deviation: float
    num_seeds: int
    command: str
    """Runs its best seed again."""

    @property
    def command_parts(self) -> list[str]:
        """The command, cut before each option, so that a page can break its lines there."""
        first, *options = self.command.split(" --")
        return [first, *("--" + option for option in options)]


def best_points(runs: Runs) -> list[Best]:
    """The best point at each noise ratio: noise is a condition of the comparison, not a choice to optimise."""
    metric = metric_chosen_by(runs.experiments[0])
    column = f"val/{metric}"
    if column not in runs.finished or runs.finished[column].dropna().empty:
        return []
    points = aggregate(runs, [column]).dropna(subset=[column])
    frames = [frame for _, frame in points.groupby(NOISE)] if NOISE in runs.varied else [points]
    return [_best(runs, frame.loc[frame[column].idxmax()], metric) for frame in frames]


def _best(runs: Runs, point: pd.Series, metric: str) -> Best:
    column = f"val/{metric}"
    trials = runs.finished
    for path in runs.varied:
        value = point[path]
        trials = trials[trials[path].isna() if pd.isna(value) else trials[path] == value]
    trial = trials.loc[trials[column].idxmax()]
    return Best(
        noise_ratio=float(point[NOISE]) if NOISE in runs.varied else None,
        objective=str(point[OBJECTIVE]),
        metric=metric,
        mean=float(point[column]),
        deviation=float(point[f"{column} (sd)"]),
        num_seeds=int(point[NUM_SEEDS]),
        command=rerun_command(runs, str(trial["run"]), str(trial["trial_id"])),
    )


def rerun_command(runs: Runs, run: str, trial_id: str) -> str:
    """The shell command that trains one trial again: its recipe, what the base changed in it, what the trial varied."""
    index = runs.names.index(run)
    overrides = runs.overrides[trial_id]
    recipe, changed = _nearest_recipe(runs.experiments[index])
    if OBJECTIVE in overrides:
        changed = {path: value for path, value in changed.items() if not path.startswith("objective")}
    settings = {**changed, **overrides}
    settings.setdefault(SEED, runs.experiments[index].get(SEED, 0))
    words = ["uv", "run", "python", "pipelines/train.py", "--recipe", recipe]
    for path in sorted(settings, key=lambda path: (path.count("."), path == SEED)):
        words += [f"--{path}", _as_argument(settings[path])]
    return shlex.join(words)


def _nearest_recipe(experiment: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The recipe that a base experiment differs least from, and where it differs."""

    def differences(name: str) -> dict[str, Any]:
        recipe = flatten(RECIPES[name]())
        return {
            path: value
            for path, value in experiment.items()
            if recipe.get(path, value) != value and not path.startswith(("tracking.", "scaling."))
        }

    nearest = min(RECIPES, key=lambda name: len(differences(name)))
    return nearest, differences(nearest)


def _as_argument(value: Any) -> str:
    value = as_typed(value)
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
