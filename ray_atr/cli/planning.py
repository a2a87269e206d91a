"""The plan that a command's options describe, for an experiment and the run folder that it continues, if any."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ray_atr.cli.experiment_options import ComparisonSweep, SpaceOptions, SweepOptions
from ray_atr.experiment import Experiment
from ray_atr.metrics.epoch_report import GROUPS
from ray_atr.run_folder import FINISHED, RunFolder
from ray_atr.runtime import home
from ray_atr.settings import refuse, require_known
from ray_atr.space import Space, path_of
from ray_atr.storage import locate
from ray_atr.sweep import SCHEDULERS, SEARCHES, FixedPoints, Goal, SweepPlan
from ray_atr.sweep.describe import values_by_path
from ray_atr.sweep.schedulers import check_perturbed, check_scheduler
from ray_atr.sweep.search import Known
from ray_atr.sweep.trial_queue import read_earlier, recorded_points
from ray_atr.training.checks import check_metric
from ray_atr.training.languages import with_languages


def plan_points(options: ComparisonSweep, kept: RunFolder | None) -> SweepPlan:
    """A comparison's points, each with each seed; those of the run folder if the options name none.

    ValueError if an option has no value.
    """
    options.require_values()
    if kept is None or options.varies_anything:
        points = [{**point, "seed": seed} for point in options.points() for seed in options.seeds]
    else:
        points = recorded_points(kept, without_seed=False)
    return SweepPlan(FixedPoints(points), hours=options.hours)


def values_of(options: ComparisonSweep) -> dict[str, list[Any]]:
    """What a comparison varies: path -> values."""
    return values_by_path([*options.points(), *({"seed": seed} for seed in options.seeds)])


def varied_by(options: SpaceOptions) -> dict[str, tuple[Any, ...]]:
    """The paths that a space varies. A seed is given with --seeds, so a setting would not be used."""
    return dict.fromkeys((*(path_of(entry) for entry in options.space), "seed"), ())


def plan_search(options: SpaceOptions, experiment: Experiment, kept: RunFolder | None = None) -> SweepPlan:
    """The plan for an experiment; what is not given is as in the run folder that it resumes.

    Trials, hours and seeds may be more than the folder's. Raises ValueError for a mistake in the space, a budget that is
    missing, and for anything else that differs from the folder's.
    """
    info: Mapping[str, Any] = kept.info if kept is not None else {}
    space, goals = _space(options, experiment, info), _goals(options, experiment, info)
    method = _kept_or_given(info, "search", options.search, "grid", SEARCHES)
    scheduler = _kept_or_given(info, "scheduler", options.scheduler, "none", SCHEDULERS)
    seed = _kept_or_given(info, "search_seed", options.search_seed, 0)
    # Those given are added to the run folder's; the default is no wish for seed 0.
    seeds = info.get("seeds", ())
    if not seeds or options.seeds != SweepOptions.seeds:
        seeds = {*seeds, *options.seeds}
    plan = SweepPlan(
        search=SEARCHES[method](space, goals, seed, tuple(_earlier(options, method, space, goals, info))),
        seeds=tuple(sorted(seeds)),
        num_points=info.get("trials") if options.trials is None else options.trials,
        hours=options.hours,
        goals=goals,
        scheduler=scheduler,
    )
    if not SEARCHES[method].is_finite and plan.num_points is None and plan.hours is None:
        raise refuse("--trials", None, f"a number of points, or --hours, with --search {method}")
    if plan.num_points is not None and plan.num_points < 1:
        raise refuse("--trials", plan.num_points, "at least 1")
    if scheduler == "pbt":
        check_perturbed(space)
    check_scheduler(plan, experiment, kept.path if kept is not None else locate(options.out or home()))
    for goal in goals:
        if goal.metric.partition("/")[0] not in GROUPS:
            known = with_languages(experiment)
            check_metric(goal.metric, "--maximize/--minimize", known.data.languages, known.trained_languages)
    return plan


def _space(options: SpaceOptions, experiment: Experiment, info: Mapping[str, Any]) -> Space:
    entries = options.space or tuple(f"{path}={text}" for path, text in info.get("space", {}).items())
    if not entries:
        raise refuse("--space", None, "PATH=DIMENSION ..., e.g. 'data.noise.ratio=grid(0,0.2,0.4)'")
    space = Space.parse(entries, experiment)
    if info and space.describe() != info.get("space"):
        kept = f"the one of the run folder with --resume: {info.get('space')}"
        raise refuse("--space", " ".join(options.space), kept)
    return space


def _goals(options: SpaceOptions, experiment: Experiment, info: Mapping[str, Any]) -> tuple[Goal, ...]:
    raised, lowered = options.maximize, options.minimize
    if not (raised or lowered):
        raised, lowered = info.get("maximize", (experiment.evaluation.select_by,)), info.get("minimize", ())
    goals = (*(Goal(metric) for metric in raised), *(Goal(metric, is_maximised=False) for metric in lowered))
    if info and [list(raised), list(lowered)] != [info.get("maximize"), info.get("minimize")]:
        wanted = f"{info.get('maximize')} up and {info.get('minimize')} down, as in the run folder"
        raise refuse("--maximize/--minimize", [goal.metric for goal in goals], wanted)
    if len({goal.metric for goal in goals}) < len(goals):
        raise refuse("--maximize/--minimize", [goal.metric for goal in goals], "each metric once")
    return goals


def _earlier(
    options: SpaceOptions, method: str, space: Space, goals: tuple[Goal, ...], info: Mapping[str, Any]
) -> Sequence[Known]:
    if options.warm_start is None:
        return [Known(one["point"], FINISHED, tuple(one["scores"])) for one in info.get("earlier", ())]
    if info:
        raise refuse("--warm-start", options.warm_start, "nothing with --resume: the run folder already holds it")
    if not SEARCHES[method].is_adaptive:
        learning = " or ".join(name for name, search in SEARCHES.items() if search.is_adaptive)
        allowed = f"--search {learning} only; other searches learn nothing from points"
        raise refuse("--warm-start", options.warm_start, allowed)
    known, num_points = read_earlier(RunFolder.open(options.warm_start), space, goals)
    found = f"{len(known)} of the {num_points} finished points of {options.warm_start} are in the space"
    print(f"warm start: {found}")
    return known


def _kept_or_given(info: Mapping[str, Any], name: str, given: Any, default: Any, allowed: Collection[str] = ()) -> Any:
    """An option as it is given, else as the run folder has it. ValueError if they differ, or it is not allowed."""
    option = "--" + name.replace("_", "-")
    if allowed and given is not None:
        require_known(option, given, allowed)
    kept = info.get(name, default)
    if info and given is not None and given != kept:
        raise refuse(option, given, f"{kept} with --resume, as in the run folder")
    return kept if given is None else given
