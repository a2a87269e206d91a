"""The options of commands that run experiments. Nothing heavy is imported here: help reads this alone."""

from __future__ import annotations

from dataclasses import dataclass

from ray_atr.cli.parse import option
from ray_atr.recipes import RECIPES


@dataclass(frozen=True)
class ExperimentOptions:
    """Which experiment, and where its run folder is."""

    recipe: str | None = option(
        None,
        "experiment to start from: " + ", ".join(RECIPES),
        metavar="NAME",
        unset="quickstart; with a --data.source of your own from_scratch",
    )
    config: str | None = option(
        None,
        "settings on top of the recipe: a YAML or JSON file, such as a run folder's experiment.json",
        metavar="FILE",
        unset="none",
    )
    out: str | None = option(
        None, "run folder to make, or a URL such as s3://...", metavar="FOLDER", unset="runs/<command>-<time>"
    )
    resume: str | None = option(
        None, "continue this run folder; what is finished is kept", metavar="FOLDER", unset="a new run"
    )


@dataclass(frozen=True)
class SweepOptions(ExperimentOptions):
    """The options that every sweep has besides what it varies."""

    seeds: tuple[int, ...] = option((0,), "seeds, averaged in the report", metavar="INT ...")
    concurrency: int | None = option(None, "trials at a time", metavar="INT", unset="as many as fit")
    hours: float | None = option(
        None, "stop after this many hours; --resume continues what is unfinished", metavar="HOURS", unset="no limit"
    )
    retry_failed: bool = option(False, "with --resume: run failed trials again")
    same_code: bool = option(False, "with --resume: refuse another version of the code")


@dataclass(frozen=True)
class SpaceOptions(SweepOptions):
    """Search any space of settings."""

    space: tuple[str, ...] = option(
        (),
        "PATH=grid(VALUE,...), choice(VALUE,...), uniform(LOW,HIGH), loguniform(LOW,HIGH), "
        "quniform(LOW,HIGH,STEP) or randint(LOW,HIGH), ends included; a grid is run at every value",
        metavar="PATH=DIMENSION ...",
        unset="nothing varies",
    )
    search: str | None = option(
        None, "grid, random, optuna (TPE), or one that you registered", metavar="NAME", unset="grid"
    )
    trials: int | None = option(
        None,
        "points to run in all, each once per seed; with --resume, a larger number adds points",
        metavar="INT",
        unset="every point of a grid",
    )
    maximize: tuple[str, ...] = option(
        (), "validation metrics to raise", metavar="METRIC ...", unset="evaluation.select_by"
    )
    minimize: tuple[str, ...] = option((), "metrics to lower, e.g. seconds/train", metavar="METRIC ...", unset="none")
    scheduler: str | None = option(None, "none, asha, hyperband or pbt", metavar="NAME", unset="none")
    search_seed: int | None = option(None, "seed of random draws and of TPE", metavar="INT", unset="0")
    warm_start: str | None = option(
        None, "run folder of an earlier sweep, from whose finished points optuna learns", metavar="FOLDER", unset="none"
    )
