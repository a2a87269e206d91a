"""The options of a sweep over any space: what is searched, how, for how long, and towards what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from ray_atr.experiment import Experiment
from ray_atr.run_folder import FINISHED, RunFolder
from ray_atr.runtime import home
from ray_atr.settings import nearest, refuse
from ray_atr.space import Space
from ray_atr.storage import locate
from ray_atr.sweep import SCHEDULERS, Goal, GridSearch, OptunaSearch, Plan, RandomSearch
from ray_atr.sweep.schedulers import check_perturbed, check_scheduler
from ray_atr.sweep.search import Known, Search
from ray_atr.sweep.warm_start import read_earlier
from ray_atr.sweep_script import SweepOptions

SEARCHES = ("grid", "random", "optuna")


@dataclass(frozen=True)
class SpaceOptions(SweepOptions):
    """Search any space of settings."""

    space: Annotated[
        tuple[str, ...],
        tyro.conf.arg(
            help="PATH=grid(VALUE,...), choice(VALUE,...), uniform(LOW,HIGH), loguniform(LOW,HIGH), "
            "quniform(LOW,HIGH,STEP) or randint(LOW,HIGH), ends included; a grid is run at every value"
        ),
    ] = ()
    search: Annotated[str | None, tyro.conf.arg(help="grid (default), random, or optuna (TPE)")] = None
    trials: Annotated[
        int | None, tyro.conf.arg(help="points to run in all, each once a seed; with --resume: more of them")
    ] = None
    maximize: Annotated[
        tuple[str, ...], tyro.conf.arg(help="validation metrics to raise (default: evaluation.select_by)")
    ] = ()
    minimize: Annotated[tuple[str, ...], tyro.conf.arg(help="metrics to lower, e.g. seconds/train")] = ()
    scheduler: Annotated[str | None, tyro.conf.arg(help="of " + ", ".join(SCHEDULERS) + " (default: none)")] = None
    search_seed: Annotated[int | None, tyro.conf.arg(help="seed of random draws and of TPE (default: 0)")] = None
    warm_start: Annotated[str | None, tyro.conf.arg(help="run folder of an earlier sweep that optuna is told of")] = (
        None
    )

    def run_space(self, name: str, settings: Mapping[str, str]) -> None:
        """Run the search that these options describe."""
        self.run_plan(name, settings, self.plan)

    def plan(self, experiment: Experiment, kept: RunFolder | None = None) -> Plan:
        """The plan for an experiment; what is not given is as in the run folder that it goes on with.

        Trials, hours and seeds may be more than the folder's. Raises ValueError for a mistake in the space, a budget that is
        missing, and for anything else that differs from the folder's.
        """
        info: Mapping[str, Any] = kept.info if kept is not None else {}
        space = self._space(experiment, info)
        goals = self._goals(experiment, info)
        method = _kept_or_given(info, "search", self.search, "grid", SEARCHES)
        scheduler = _kept_or_given(info, "scheduler", self.scheduler, "none", SCHEDULERS)
        seed = _kept_or_given(info, "search_seed", self.search_seed, 0)
        plan = Plan(
            search=self._search(method, space, goals, seed, self._earlier(method, space, goals, info)),
            seeds=self._seeds(info),
            num_points=info.get("trials") if self.trials is None else self.trials,
            hours=self.hours,
            goals=goals,
            scheduler=scheduler,
        )
        if method != "grid" and plan.num_points is None and plan.hours is None:
            raise refuse("--trials", None, f"a number of points, or --hours, with --search {method}")
        if plan.num_points is not None and plan.num_points < 1:
            raise refuse("--trials", plan.num_points, "at least 1")
        if scheduler == "pbt":
            check_perturbed(space)
        check_scheduler(plan, experiment, kept.path if kept is not None else locate(self.out or home()))
        return plan

    def _space(self, experiment: Experiment, info: Mapping[str, Any]) -> Space:
        entries = self.space or tuple(f"{path}={text}" for path, text in info.get("space", {}).items())
        if not entries:
            raise refuse("--space", None, "PATH=DIMENSION ..., e.g. 'data.noise.ratio=grid(0,0.2,0.4)'")
        space = Space.parse(entries, experiment)
        if info and space.describe() != info.get("space"):
            raise refuse(
                "--space", " ".join(self.space), f"the one of the run folder with --resume: {info.get('space')}"
            )
        return space

    def _seeds(self, info: Mapping[str, Any]) -> tuple[int, ...]:
        """The run folder's seeds and those given; the default is no wish for seed 0."""
        kept = info.get("seeds", ())
        given = () if kept and self.seeds == SweepOptions.seeds else self.seeds
        return tuple(sorted({*kept, *given}))

    def _goals(self, experiment: Experiment, info: Mapping[str, Any]) -> tuple[Goal, ...]:
        if not (self.maximize or self.minimize):
            raised, lowered = info.get("maximize", (experiment.evaluation.select_by,)), info.get("minimize", ())
        else:
            raised, lowered = self.maximize, self.minimize
        goals = (*(Goal(metric) for metric in raised), *(Goal(metric, is_maximised=False) for metric in lowered))
        if info and [list(raised), list(lowered)] != [info.get("maximize"), info.get("minimize")]:
            wanted = f"{info.get('maximize')} up and {info.get('minimize')} down, as in the run folder"
            raise refuse("--maximize/--minimize", [goal.metric for goal in goals], wanted)
        if len({goal.metric for goal in goals}) < len(goals):
            raise refuse("--maximize/--minimize", [goal.metric for goal in goals], "each metric once")
        return goals

    def _search(self, method: str, space: Space, goals: tuple[Goal, ...], seed: int, known: Sequence[Known]) -> Search:
        if method == "grid":
            return GridSearch(space)
        if method == "random":
            return RandomSearch(space, seed)
        return OptunaSearch(space, goals, seed, tuple(known))

    def _earlier(self, method: str, space: Space, goals: tuple[Goal, ...], info: Mapping[str, Any]) -> Sequence[Known]:
        if self.warm_start is None:
            return [Known(one["point"], FINISHED, tuple(one["scores"])) for one in info.get("earlier", ())]
        if info:
            raise refuse(
                "--warm-start", self.warm_start, "nothing with --resume: the run folder holds what it was told"
            )
        if method != "optuna":
            raise refuse(
                "--warm-start", self.warm_start, "--search optuna only; other searches learn nothing from points"
            )
        earlier = read_earlier(RunFolder.open(self.warm_start), space, goals)
        print(
            f"warm start: {len(earlier.known)} of the {earlier.num_points} finished points of {self.warm_start} lie in the space"
        )
        return earlier.known


def _kept_or_given(info: Mapping[str, Any], name: str, given: Any, default: Any, allowed: Sequence[str] = ()) -> Any:
    """An option as it is given, else as the run folder has it. ValueError where they differ, or it is not allowed."""
    option = "--" + name.replace("_", "-")
    if allowed and given is not None and given not in allowed:
        raise refuse(option, given, "one of " + ", ".join(allowed), nearest(given, allowed))
    kept = info.get(name, default)
    if info and given is not None and given != kept:
        raise refuse(option, given, f"{kept} with --resume, as in the run folder")
    return kept if given is None else given
