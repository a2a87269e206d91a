"""The options of commands that run experiments. Nothing heavy is imported here: help reads this alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ray_atr.cli.parse import option
from ray_atr.recipes import RECIPES


@dataclass(frozen=True)
class ExperimentOptions:
    """Which experiment, and where its run folder is."""

    recipe: Annotated[
        str | None,
        option(
            "experiment to start from: " + ", ".join(RECIPES),
            metavar="NAME",
            unset="quickstart; with a --data.source of your own from_scratch",
        ),
    ] = None
    config: Annotated[
        str | None,
        option(
            "settings on top of the recipe: a YAML or JSON file, such as a run folder's experiment.json",
            metavar="FILE",
            unset="none",
        ),
    ] = None
    out: Annotated[
        str | None,
        option("run folder to make, or a URL such as s3://...", metavar="FOLDER", unset="runs/<command>-<time>"),
    ] = None
    resume: Annotated[
        str | None,
        option("continue this run folder; what is finished is kept", metavar="FOLDER", unset="a new run"),
    ] = None


@dataclass(frozen=True)
class SweepOptions(ExperimentOptions):
    """The options that every sweep has besides what it varies."""

    seeds: Annotated[tuple[int, ...], option("seeds, averaged in the report", metavar="INT ...")] = (0,)
    concurrency: Annotated[int | None, option("trials at a time", metavar="INT", unset="as many as fit")] = None
    hours: Annotated[
        float | None,
        option("stop after this many hours; --resume continues what is unfinished", metavar="HOURS", unset="no limit"),
    ] = None
    retry_failed: Annotated[bool, option("with --resume: run failed trials again")] = False
    same_code: Annotated[bool, option("with --resume: refuse another version of the code")] = False


@dataclass(frozen=True)
class SpaceOptions(SweepOptions):
    """Search any space of settings."""

    space: Annotated[
        tuple[str, ...],
        option(
            "PATH=grid(VALUE,...), choice(VALUE,...), uniform(LOW,HIGH), loguniform(LOW,HIGH), "
            "quniform(LOW,HIGH,STEP) or randint(LOW,HIGH), ends included; a grid is run at every value",
            metavar="PATH=DIMENSION ...",
            unset="nothing varies",
        ),
    ] = ()
    search: Annotated[
        str | None, option("grid, random, optuna (TPE), or one that you registered", metavar="NAME", unset="grid")
    ] = None
    trials: Annotated[
        int | None,
        option(
            "points to run in all, each once per seed; with --resume: more of them",
            metavar="INT",
            unset="every point of a grid",
        ),
    ] = None
    maximize: Annotated[
        tuple[str, ...], option("validation metrics to raise", metavar="METRIC ...", unset="evaluation.select_by")
    ] = ()
    minimize: Annotated[
        tuple[str, ...], option("metrics to lower, e.g. seconds/train", metavar="METRIC ...", unset="none")
    ] = ()
    scheduler: Annotated[str | None, option("none, asha, hyperband or pbt", metavar="NAME", unset="none")] = None
    search_seed: Annotated[int | None, option("seed of random draws and of TPE", metavar="INT", unset="0")] = None
    warm_start: Annotated[
        str | None,
        option(
            "run folder of an earlier sweep, from whose finished points optuna learns", metavar="FOLDER", unset="none"
        ),
    ] = None
