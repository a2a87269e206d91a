"""The options of commands that run experiments: training, a search, and comparisons, which are sweeps with different grids.
Imports no heavy library, since the help needs only this.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import tyro

from ray_atr.cli.parse import option, read_config
from ray_atr.common.progress import Echo, silent
from ray_atr.common.settings import nearest, refuse
from ray_atr.training.recipes import RECIPES

if TYPE_CHECKING:
    from ray_atr.sweep.space import Point

OWN_RECIPES = [name for name in RECIPES if not name.startswith(("audiocaps_", "clotho_"))]
NOISE_HELP = "noise ratios, each in [0, 1)"


@dataclass(frozen=True)
class ExperimentOptions:
    """The options that select an experiment and its run folder."""

    recipe: str | None = option(
        None,
        f"experiment to start from: {', '.join(OWN_RECIPES)}, or a paper's (--help-settings lists all)",
        "NAME",
        "quickstart; with data of your own (data.source) from_scratch",
    )
    config: str | None = option(
        None,
        "file of settings that replace the recipe's: YAML or JSON, such as a run folder's experiment.json",
        "FILE",
        "none",
    )
    out: str | None = option(None, "run folder to make, or a URL such as s3://...", "FOLDER", "runs/<command>-<time>")
    resume: str | None = option(None, "continue this run folder; what is finished is kept", "FOLDER", "a new run")
    ray: Literal["auto", "always", "never"] = option(
        "auto",
        "never: train in this process, one trial after the other, without Ray and without workers; "
        "auto: with --resume as the run was last run, else always",
    )
    figures: tyro.conf.DisallowNone[bool | None] = option(
        None, "draw the figures of the report at the end too", unset="true; with --resume as the run was last run"
    )
    estimate: bool = option(
        False, "measure some steps of each kind of trial, print the time, disk space and memory of all trials, and exit"
    )
    quiet: bool = option(False, "print results and problems, but no progress")

    @cached_property
    def config_values(self) -> Mapping[str, Any]:
        """The settings of the configuration file, by path; read only once, since it may be a named pipe."""
        return {} if self.config is None else read_config(self.config)

    def recipe_of(self, settings: Mapping[str, str]) -> str:
        """The named recipe, else the one for the data. ValueError for an unknown one.

        The quickstart's towers are trained on synthetic sounds only; other data get a recipe whose towers are trained.
        """
        is_synthetic = {**self.config_values, **settings}.get("data.source", "soundscapes") == "soundscapes"
        recipe = ("quickstart" if is_synthetic else "from_scratch") if self.recipe is None else self.recipe
        if recipe not in RECIPES:
            # Imported here because it imports torch, which only this mistake needs.
            from ray_atr.objectives import PRESETS

            is_preset = f" ({recipe} is an objective: --objective {recipe})" if recipe in PRESETS else ""
            raise refuse(
                "--recipe", recipe, "a recipe that --help-settings lists", is_preset or nearest(recipe, RECIPES)
            )
        return recipe

    def require_data(self, settings: Mapping[str, str]) -> None:
        """ValueError if a setting holds a secret, or the data set is none, before the imports that take seconds."""
        from ray_atr.common.redaction import refuse_secrets
        from ray_atr.data.shards import read_manifest

        values: Mapping[str, Any] = settings
        if self.resume is None:
            values = {**RECIPES[self.recipe_of(settings)].values, **self.config_values, **settings}
        refuse_secrets(values)
        source = values.get("data.source", "soundscapes")
        if isinstance(source, str) and source != "soundscapes":
            read_manifest(source)

    @property
    def write(self) -> Echo:
        """The function that prints a line of progress."""
        return silent if self.quiet else print


@dataclass(frozen=True)
class SweepOptions(ExperimentOptions):
    """The options of every sweep, besides the settings that it varies."""

    seeds: tuple[int, ...] = option((0,), "seeds, averaged in the report", "INT ...")
    concurrency: int | None = option(
        None, "trials at a time", "INT", "as many as fit; with --resume as the run was last run"
    )
    scheduler: str | None = option(
        None,
        "race: give no more seeds to points that cannot be the best; asha (searches only): end trials that are behind; none",
        "NAME",
        "none",
    )
    spend_spared: bool = option(
        False, "with --scheduler race: run the saved trials as further seeds of the remaining points"
    )
    hours: float | None = option(None, "stop after this many hours; --resume continues", "HOURS", "no limit")
    retry_failed: bool = option(False, "with --resume: run failed trials again")
    same_code: bool = option(False, "with --resume: refuse to continue if the code has changed")

    @property
    def gives_seeds(self) -> bool:
        """Whether seeds were given, if the default ones: an option that is not given has the very object of its default."""
        return self.seeds is not type(self).seeds


@dataclass(frozen=True)
class SpaceOptions(SweepOptions):
    """Search any space of settings."""

    space: tuple[str, ...] = option(
        (),
        "PATH=grid(VALUE,...), choice(VALUE,...), uniform(LOW,HIGH), loguniform(LOW,HIGH), "
        "quniform(LOW,HIGH,STEP) or randint(LOW,HIGH), with both ends; each value of a grid is run",
        "PATH=DIMENSION ...",
        "nothing varies",
    )
    search: str | None = option(None, "grid, random, optuna (TPE), or one that you registered", "NAME", "grid")
    trials: int | None = option(
        None,
        "points to run in all, each once per seed; with --resume, a larger number adds points",
        "INT",
        "every point of a grid",
    )
    maximize: tuple[str, ...] = option((), "validation metrics to raise", "METRIC ...", "evaluation.select_by")
    minimize: tuple[str, ...] = option((), "metrics to lower, e.g. seconds/train", "METRIC ...", "none")
    search_seed: int | None = option(None, "seed of what the search draws", "INT", "0")
    warm_start: str | None = option(
        None, "run folder of an earlier sweep, from whose finished points optuna learns", "FOLDER", "none"
    )

    @property
    def varies_data(self) -> bool:
        """Whether the space has data sets, which then take the place of the recipe's own."""
        return any(entry.lstrip(" -").startswith("data.source") for entry in self.space)

    def recipe_of(self, settings: Mapping[str, str]) -> str:
        # Any other data than the synthetic ones.
        return super().recipe_of({**settings, "data.source": "of the space"} if self.varies_data else settings)

    def require_data(self, settings: Mapping[str, str]) -> None:
        if not self.varies_data:
            super().require_data(settings)


@dataclass(frozen=True)
class ComparisonSweep(SweepOptions, ABC):
    """A sweep over a grid of its own."""

    name: ClassVar[str]

    @abstractmethod
    def points(self) -> list[Point]:
        """The points to compare, without seeds. ValueError for an unknown table or figure."""

    def references(self) -> list[Point]:
        """Settings of the points with which the others are compared; a race never stops these."""
        return []

    def before(self, settings: Mapping[str, str]) -> ComparisonSweep:
        """Work before the points are made, given the command line's settings; returns the comparison to run."""
        return self

    def trials_before(self) -> list[Point]:
        """Points that cost as much as that work, for an estimate."""
        return []

    @property
    def own_options(self) -> dict[str, Any]:
        """The options that only this comparison has."""
        shared = {entry.name for entry in fields(SweepOptions)}
        return {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name not in shared}

    @property
    def given_options(self) -> dict[str, Any]:
        """The options that only this comparison has and that were given, if with their default values."""
        return {name: value for name, value in self.own_options.items() if value is not getattr(type(self), name)}

    def continuing(self, earlier: Mapping[str, Any]) -> Self:
        """This comparison with an earlier one's own options, as `added_to` described them, in the place of those not given."""
        given = self.given_options
        missing: dict[str, Any] = {
            name: tuple(earlier[name]) if isinstance(earlier[name], list) else earlier[name]
            for name in self.own_options
            if name in earlier and name not in given
        }
        return replace(self, **missing)

    def added_to(self, earlier: Mapping[str, Any]) -> dict[str, Any]:
        """The own options of an earlier comparison and of this one, which continues it: what either gives in a list."""
        return {
            name: list(dict.fromkeys((*earlier.get(name, ()), *value))) if isinstance(value, tuple) else value
            for name, value in {**self.own_options, **earlier, **self.given_options}.items()
        }
