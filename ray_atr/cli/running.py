"""Running a command line: the plan that options describe, the run folder, the run, the report."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from ray_atr.cli.experiment_options import ComparisonSweep, ExperimentOptions, SpaceOptions, SweepOptions
from ray_atr.cli.live import shown_progress
from ray_atr.common.override import flatten, override
from ray_atr.common.progress import Echo
from ray_atr.common.redaction import redact_command
from ray_atr.common.runtime import RayStartError, advising, code_version, differences_of_code, home
from ray_atr.common.settings import counted, refuse, require_known, shortened
from ray_atr.common.storage import DamagedFileError, locate
from ray_atr.data.shards import read_manifest
from ray_atr.evaluation.report import write_report
from ray_atr.metrics.epoch_report import is_measured
from ray_atr.sweep import SEARCHES, SweepResult, sweep
from ray_atr.sweep.describe import best_lines, check_plan, conditions_of, describe_plan, values_by_path
from ray_atr.sweep.estimate import estimate
from ray_atr.sweep.fixed import Varied, set_by_recipe, split_settings
from ray_atr.sweep.recording import FirstEpoch, FirstEstimate
from ray_atr.sweep.schedulers import NONE, RACE, SCHEDULERS, check_scheduler
from ray_atr.sweep.search import FixedPoints, Goal, Observation, SweepPlan
from ray_atr.sweep.space import Point, Space, path_of, point_key
from ray_atr.sweep.tracking import Tracker, mlflow_command
from ray_atr.sweep.trial_queue import read_earlier
from ray_atr.training.checks import check_metric
from ray_atr.training.experiment import AUTO, Experiment
from ray_atr.training.languages import with_languages
from ray_atr.training.listener import SweepListener
from ray_atr.training.recipes import RECIPES
from ray_atr.training.run_folder import FINISHED, RunFolder, hashes_of

EXIT_FAILED_TRIALS = 1
NEVER: Literal["never"] = "never"
MakePlan = Callable[[Experiment, RunFolder | None], SweepPlan]
"""Makes the plan for an experiment, and for the run folder that it continues, if any."""


def run_plan(
    name: str,
    options: ExperimentOptions,
    settings: Mapping[str, str],
    make_plan: MakePlan,
    varied: Varied,
    *,
    echo: Echo,
) -> None:
    """Run a plan from the command line and end with its tables and the commands that continue it. Raises ValueError for
    a mistake in the settings or points, before anything is written; KeyboardInterrupt, carrying the command that
    resumes, when it was interrupted. Exits with 1 if a trial failed.
    """
    check_options(options)
    # A failed single trial is always run again.
    how = (
        options
        if isinstance(options, SweepOptions)
        else SweepOptions(retry_failed=True, quiet=options.quiet, figures=options.figures)
    )
    resumed = None if options.resume is None else open_run(options.resume, name, same_code=how.same_code)
    experiment, plan = planned(options, settings, make_plan, varied, resumed)
    if options.estimate:
        cost = estimate(experiment, plan, home(), locate(_folder_of(name, options)), echo=echo)
        print(*cost.lines(experiment), sep="\n")
        return
    last = resumed.info if resumed is not None else {}
    how = replace(
        how,
        ray=ray_of(options, resumed),
        concurrency=last.get("concurrency") if how.concurrency is None else how.concurrency,
        figures=last.get("figures", True) if how.figures is None else how.figures,
    )
    run = resumed or _create(name, experiment, plan, options, how, options.recipe_of(settings))
    with advising(f"resume it with {run.resuming}"), run.locked():
        if resumed is not None:
            forget_decided(run, settings)
        _run(run, experiment, plan, how, is_new=resumed is None, echo=echo)


def check_options(options: ExperimentOptions) -> None:
    """ValueError for options of a run that are not allowed, or not together."""
    for option in ("retry_failed", "same_code"):
        if options.resume is None and getattr(options, option, False):
            raise refuse(f"--{option.replace('_', '-')}", "true", "only with --resume")
    if options.estimate and options.resume is not None:
        raise refuse("--estimate", "true", "only without --resume: a sweep is estimated before it starts")
    if isinstance(options, SweepOptions) and options.concurrency is not None and options.concurrency < 1:
        raise refuse("--concurrency", options.concurrency, "at least 1")
    if options.resume is not None and options.out is not None and locate(options.out) != locate(options.resume):
        raise refuse("--out", options.out, f"nothing but {options.resume} with --resume: the run goes on in its folder")
    if options.out is not None and str(options.out).startswith("memory:"):
        raise refuse("--out", options.out, "a folder or a store: this one is gone when the command ends")


def planned(
    options: ExperimentOptions,
    settings: Mapping[str, str],
    make_plan: MakePlan,
    varied: Varied,
    resumed: RunFolder | None = None,
) -> tuple[Experiment, SweepPlan]:
    """The experiment and the plan of a command line, checked; ValueError for a mistake. Nothing is written."""
    if resumed is None:
        start = start_of(options, settings)
        of_run, explicit = split_settings(settings, varied)
        experiment = with_languages(override(start, of_run))
        fixed = {**set_by_recipe(start, varied), **explicit}
    else:
        if options.config is not None:
            raise refuse("--config", options.config, "nothing with --resume: the run folder holds its settings")
        # One fetched from MLflow does not say it: its settings may be the recipe's or another's.
        if options.recipe is not None and options.recipe != (was := resumed.info.get("recipe")):
            allowed = f"{was} with --resume" if was else "nothing with --resume"
            raise refuse("--recipe", options.recipe, f"{allowed}: {resumed.path} holds its settings")
        of_run, explicit = split_settings(settings, varied_in(resumed))
        experiment = resumed_experiment(resumed, of_run)
        fixed = resumed_settings(resumed, explicit)
    plan = replace(make_plan(experiment, resumed), fixed=fixed)
    check_scheduler(plan, experiment)
    if ray_of(options, resumed) == NEVER:
        if isinstance(options, SweepOptions) and (options.concurrency or 1) > 1:
            raise refuse("--concurrency", options.concurrency, "1 with --ray never: trials run one after the other")
        experiment = without_ray(experiment, settings)
    check_plan(plan, experiment, explicit)
    return experiment, plan


def _run(
    run: RunFolder, experiment: Experiment, plan: SweepPlan, how: SweepOptions, *, is_new: bool, echo: Echo
) -> None:
    # What was added to a sweep, and the resources that it resumes with.
    now = {**describe_plan(plan), **kept_options(how, run.info)}
    if not is_new and {**run.info, **now} != run.info:
        run.update_info(**now)
    if not is_new:
        run.update_experiment(experiment)
    print(f"run folder: {run.path}")
    for condition in conditions_of(plan, experiment):
        print(condition)
    if how.ray == NEVER and experiment.scaling.gpus_per_worker and not torch.cuda.is_available():
        print("trained on the CPU: scaling.gpus_per_worker asks for a GPU, and this machine has none")
    listeners: list[SweepListener] = [FirstEpoch(echo), FirstEstimate(experiment, echo)]
    tracker = Tracker(run.path) if experiment.tracking.mlflow else None
    if tracker is not None:
        tracker.start_sweep()
        listeners.append(tracker)
    started = time.monotonic()
    choices: dict[str, Any] = {"concurrency": how.concurrency, "retry_failed": how.retry_failed}
    try:
        with shown_progress(experiment.train.epochs, echo, is_quiet=how.quiet) as progress:
            listeners = [progress, *listeners]
            result = sweep(run, plan, home(), listeners=listeners, use_ray=how.ray != NEVER, echo=echo, **choices)
    except RayStartError:
        if is_new:
            # Nothing has run, so the folder is removed for the next attempt.
            run.remove()
        if tracker is not None:
            tracker.abandon(is_removed=is_new)
        raise
    except Exception:
        # Also what only a look at the cluster or the data could tell, a disk that fails, and an error of Ray or of ours.
        if tracker is not None:
            tracker.abandon(is_removed=False)
        raise
    except KeyboardInterrupt:
        if tracker is not None:
            end_tracking(tracker, is_complete=False)
        raise
    _finish(run, plan, result, time.monotonic() - started, tracker, figures=bool(how.figures))


def forget_decided(run: RunFolder, settings: Collection[str]) -> None:
    """Note that settings which are typed now are not those that an earlier start decided for `auto`: this one would decide them
    again.
    """
    decided = run.info.get("scaling", {})
    open_still = {path: value for path, value in decided.get("settings", {}).items() if path not in settings}
    if open_still != decided.get("settings", {}):
        run.update_info(scaling={**decided, "settings": open_still})


def kept_options(how: SweepOptions, last: Mapping[str, Any]) -> dict[str, Any]:
    """The options that the run folder keeps for a `--resume` that does not give them; `last`: what it has kept so far."""
    own = {"options": how.added_to(last.get("options", {}))} if isinstance(how, ComparisonSweep) else {}
    return {"ray": how.ray, "concurrency": how.concurrency, "figures": how.figures, **own}


def start_of(options: ExperimentOptions, settings: Mapping[str, str] | None = None) -> Experiment:
    """The recipe of the options, changed by their configuration file. ValueError names the file or the recipe."""
    recipe = RECIPES[options.recipe_of(settings or {})]
    try:
        return override(recipe(), options.config_values)
    except ValueError as error:
        raise ValueError(f"--config: {options.config}: {error}") from None


def ray_of(options: ExperimentOptions, resumed: RunFolder | None) -> Literal["always", "never"]:
    """Whether to use Ray: as the command line says, else as the run folder was last run, else always."""
    if options.ray != AUTO:
        return options.ray
    # A folder fetched from MLflow does not say it.
    return NEVER if resumed is not None and resumed.info.get("ray") == NEVER else "always"


def without_ray(experiment: Experiment, settings: Mapping[str, str]) -> Experiment:
    """The experiment trained in this process. ValueError if workers or streams were requested."""
    for path, wanted in (("scaling.workers", "0"), ("scaling.ray_data", "false")):
        if settings.get(path, wanted).lower() not in (wanted, AUTO):
            raise refuse(path, settings[path], f"{wanted} with --ray never")
    return replace(experiment, scaling=replace(experiment.scaling, workers=0, ray_data=False))


def end_tracking(tracker: Tracker, *, is_complete: bool) -> bool:
    """Send what MLflow lacks and mark the sweep as ended; if MLflow does not answer, print how to send it later.
    Returns whether MLflow has everything.
    """
    if tracker.finish_sweep(is_complete=is_complete):
        return True
    later = shlex.join(["ray-atr", "report", str(tracker.run_folder), "--upload"])
    print(f"MLflow at {tracker.store} lacks results ({tracker.problem}); send them later with {later}", file=sys.stderr)
    return False


def open_run(place: str, name: str, *, same_code: bool = False) -> RunFolder:
    """The run folder to resume. ValueError if it is of another script, or, with `same_code`, of other code."""
    run = RunFolder.open(place)
    if run.info["name"] != name:
        begun = f"; it was begun by {shortened(command)}" if (command := run.info.get("command")) else ""
        raise ValueError(f"{place}: a run of {run.info['name']}, not of {name}{begun}")
    try:
        problems = run.problems()
    except DamagedFileError:
        raise  # it says the remedy
    except ValueError as error:  # a record that cannot be read
        problems = [str(error)]
    if problems:
        is_of_trial = problems[0].startswith(str(run.path / "trials"))
        remedy = "restore it from a copy" + (", or remove the trial's folder: it is then trained anew" * is_of_trial)
        raise ValueError(f"{problems[0]}; {remedy}" + (f" (and {len(problems) - 1} more)" if problems[1:] else ""))
    differences = differences_of_code(run.info, code_version())
    if differences and same_code:
        raise ValueError(f"{place}: run by other code ({'; '.join(differences)}), and --same-code was given")
    if differences:
        warning = f"warning: this sweep resumes with a different version of the code: {'; '.join(differences)}"
        print(warning, file=sys.stderr)
    return run


def resumed_experiment(run: RunFolder, settings: Mapping[str, str]) -> Experiment:
    """The experiment of a run folder; `settings` may change its resources (`scaling.*`) and say where its data set is now; all
    others must agree with it.
    """
    before = run.experiment
    experiment = override(before, settings)
    if (source := experiment.data.source) != before.data.source and _holds_data_of(run, source):
        # The folder of vectors is the data set's too.
        paths = [path for path, value in flatten(before).items() if value == before.data.source]
        before = override(before, dict.fromkeys(paths, source))
        experiment = override(before, settings)
    require_same(run, before, experiment)
    return experiment


def require_same(run: RunFolder, before: Experiment, experiment: Experiment) -> None:
    """ValueError if an experiment differs from that of a run folder in more than its resources."""
    stored, wanted = flatten(before), flatten(experiment)
    different = sorted(path for path in wanted if stored.get(path) != wanted[path] and not path.startswith("scaling."))
    if different:
        path, more = different[0], f" (and {len(different) - 1} more)" if different[1:] else ""
        was = f"{path} is {stored.get(path)!r} there and {wanted[path]!r} here{more}"
        raise ValueError(f"{run.path}: the run of another experiment; {was}")


def _holds_data_of(run: RunFolder, source: str) -> bool:
    """Whether a folder or URL is the data set that a run was trained on. ValueError if there is none, or another one."""
    recorded = hashes_of(run.info).values()
    if not recorded or "soundscapes" in (source, run.experiment.data.source):
        return False
    if (own_hash := read_manifest(source).hash) not in recorded:
        names = ", ".join(digest[:16] for digest in recorded)
        raise refuse("data.source", f"{source} (hash {own_hash[:16]})", f"the data set of {run.path} (hash {names})")
    return True


def varied_in(run: RunFolder) -> Varied:
    """The paths and values that a run folder's sweep varies."""
    space, varied = run.info.get("space") or {}, run.info.get("varied", ())
    return {path: space[path] if isinstance(space.get(path), list) else () for path in varied}


def resumed_settings(run: RunFolder, settings: Mapping[str, str]) -> dict[str, Any]:
    """The settings that all points of a run folder share. ValueError if a given one differs."""
    fixed: dict[str, Any] = dict(run.info.get("fixed", {}))
    for path, value in settings.items():
        if str(fixed.get(path)) != str(value):
            was = repr(fixed[path]) if path in fixed else "not set"
            raise ValueError(f"{run.path}: the run of another experiment; {path} is {was} there and {value!r} here")
    return fixed


def _create(
    name: str, experiment: Experiment, plan: SweepPlan, options: ExperimentOptions, how: SweepOptions, recipe: str
) -> RunFolder:
    started = {**kept_options(how, {}), "code": code_version(), "command": command_line(sys.argv)}
    info = {"name": name, "recipe": recipe, **describe_plan(plan), **started}
    return RunFolder.create(_folder_of(name, options), experiment, info)


def command_line(arguments: Sequence[str]) -> str:
    """The command to type for `sys.argv`."""
    program = Path(arguments[0])
    if program.name == "ray-atr":
        words = [program.name]
    else:
        script = ["-m", "ray_atr"] if program.match("ray_atr/__main__.py") else [str(program)]
        words = [Path(sys.executable).name, *script]
    return redact_command([*words, *arguments[1:]])


def _folder_of(name: str, options: ExperimentOptions) -> str | Path:
    """Where a new run writes."""
    return options.out or home() / "runs" / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"


def _finish(
    run: RunFolder, plan: SweepPlan, result: SweepResult, seconds: float, tracker: Tracker | None, *, figures: bool
) -> None:
    """Write the report, then print all paths; exit with 1 if a trial failed. KeyboardInterrupt if trials are left to do."""
    try:
        if result.finished:
            print(f"\n{write_report(run.path, figures=figures).summary}")
    finally:
        # Also if the report cannot be written: the sweep would stay running in MLflow.
        is_tracked = tracker is not None and end_tracking(tracker, is_complete=not result.num_left)
    others = {"stopped early": len(result.stopped), "failed": len(result.failed), "to do": result.num_left}
    ended = [f"{number} {fate}" for fate, number in others.items() if number or fate == "failed"]
    ended.insert(0, f"{counted(len(result.finished), 'trial')} finished")
    print(f"\n{', '.join(ended)}, in {seconds / 60:.1f} minutes", *best_lines(run, plan), sep="\n")
    for trial_id in result.failed:
        described = run.trial(trial_id).describe()
        print(f"failed: {described['name']}: {described['error']}", file=sys.stderr)
    print(f"run folder:  {run.path}")
    if result.finished:
        print(f"report:      {run.path / 'report' / 'report.html'}")
        if tracker is not None and is_tracked:
            print(f"compare:     {mlflow_command(run.path)}")
            if (page := tracker.sweep_url()) is not None:
                print(f"             {page}")
    trials_left = counted(result.num_left, "trial")
    if result.common_failure is not None:
        tried = "stopped: every trial so far" if result.num_left else "every trial"
        print(f"{tried} failed for the same reason: {result.common_failure}", file=sys.stderr)
        left = f"not run to the end: {trials_left}; " if result.num_left else ""
        print(f"{left}continue with {run.resuming} --retry-failed", file=sys.stderr)
        raise SystemExit(EXIT_FAILED_TRIALS)
    if result.num_left:
        if not result.is_out_of_time:
            raise KeyboardInterrupt
        print(f"out of time: {trials_left} to do; continue with {run.resuming}")
    if result.failed:
        # A single trial that failed is run again without the option, which `train` lacks.
        again = run.resuming if run.info["name"] == "train" else f"{run.resuming} --retry-failed"
        print(f"run what failed again with {again}", file=sys.stderr)
        raise SystemExit(EXIT_FAILED_TRIALS)


def plan_points(options: ComparisonSweep, resumed: RunFolder | None) -> SweepPlan:
    """A comparison's points, each with each seed, after those of the run folder that it resumes. Seeds alone are added to the
    folder's points, and values of other options with the seeds and the other values of the folder. ValueError if the run folder
    has no list of points.
    """
    info: Mapping[str, Any] = resumed.info if resumed is not None else {}
    points = [] if resumed is None else planned_points(resumed)
    seeds = options.seeds if options.gives_seeds else info.get("seeds") or options.seeds
    if resumed is None or options.given_options:
        continued = options.continuing(info.get("options", {}))
        points += [{**point, "seed": seed} for point in continued.points() for seed in seeds]
        points += options.trials_before() if options.estimate else []
    elif options.gives_seeds:
        points += [{**point, "seed": seed} for point in points for seed in seeds]
    distinct = {point_key(point): point for point in points}
    return SweepPlan(
        FixedPoints(list(distinct.values())),
        hours=options.hours,
        scheduler=_resumed_or_given(info, "scheduler", options.scheduler, NONE, (NONE, RACE)),
        spends_spared=_spends_spared(options, info),
        references=tuple(options.references()),
    )


def planned_points(run: RunFolder) -> list[Point]:
    """The points of a list that a run folder was made for, whether or not their trials exist yet. ValueError if there is none."""
    points = run.info.get("points")
    if not isinstance(points, list) or not points or not all(isinstance(point, dict) for point in points):
        raise refuse(
            f"{run.path}/sweep.json: points", points, "the points of the sweep; start a new one with another --out"
        )
    return [dict(point) for point in points]


def values_of(options: ComparisonSweep) -> dict[str, list[Any]]:
    """The values that a comparison varies: path -> values."""
    return values_by_path([*options.points(), *({"seed": seed} for seed in options.seeds)])


def varied_by(options: SpaceOptions) -> dict[str, tuple[Any, ...]]:
    """The paths that a space varies, with `seed`: seeds are given by --seeds, so a setting would have no effect."""
    return dict.fromkeys((*(path_of(entry) for entry in options.space), "seed"), ())


def plan_search(options: SpaceOptions, experiment: Experiment, resumed: RunFolder | None = None) -> SweepPlan:
    """The plan for an experiment; options that are not given are those of the run folder that it resumes. Trials, hours and seeds
    may be more than the folder's. Raises ValueError for a mistake in the space, a budget that is missing, and for
    anything else that differs from the folder's.
    """
    info: Mapping[str, Any] = resumed.info if resumed is not None else {}
    space, goals = _space(options, experiment, info), _goals(options, experiment, info)
    method = _resumed_or_given(info, "search", options.search, "grid", SEARCHES)
    scheduler = _resumed_or_given(info, "scheduler", options.scheduler, NONE, SCHEDULERS)
    seed = _resumed_or_given(info, "search_seed", options.search_seed, 0)
    # Given seeds are added to the run folder's; the default does not add seed 0.
    seeds = info.get("seeds", ())
    if not seeds or options.gives_seeds:
        seeds = {*seeds, *options.seeds}
    plan = SweepPlan(
        search=SEARCHES[method](space, goals, seed, tuple(_earlier(options, method, space, goals, info))),
        seeds=tuple(sorted(seeds)),
        num_points=info.get("trials") if options.trials is None else options.trials,
        hours=options.hours,
        scheduler=scheduler,
        spends_spared=_spends_spared(options, info),
    )
    if not SEARCHES[method].is_finite and plan.num_points is None and plan.hours is None:
        raise refuse("--trials", None, f"a number of points, or --hours, with --search {method}")
    if plan.num_points is not None and plan.num_points < 1:
        raise refuse("--trials", plan.num_points, "at least 1")
    # Before the goals, so that several goals are refused first.
    check_scheduler(plan, experiment)
    for goal in goals:
        if is_measured(goal.metric):
            complete = with_languages(experiment)
            check_metric(goal.metric, "--maximize/--minimize", complete.data.languages, complete.trained_languages)
    return plan


def _spends_spared(options: SweepOptions, info: Mapping[str, Any]) -> bool:
    if options.spend_spared and (options.scheduler or info.get("scheduler")) != RACE:
        raise refuse("--spend-spared", "true", "only with --scheduler race")
    return options.spend_spared or bool(info.get("spend_spared", False))


def _space(options: SpaceOptions, experiment: Experiment, info: Mapping[str, Any]) -> Space:
    entries = options.space or tuple(f"{path}={text}" for path, text in info.get("space", {}).items())
    if not entries:
        raise refuse("--space", None, "PATH=DIMENSION ..., e.g. 'data.noise.ratio=grid(0,0.2,0.4)'")
    space = Space.parse(entries, experiment)
    if info and space.describe() != info.get("space"):
        allowed = f"the one of the run folder with --resume: {info.get('space')}"
        raise refuse("--space", " ".join(options.space), allowed)
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
) -> Sequence[Observation]:
    if options.warm_start is None:
        return [Observation(entry["point"], FINISHED, tuple(entry["scores"])) for entry in info.get("earlier", ())]
    if info:
        raise refuse("--warm-start", options.warm_start, "nothing with --resume: the run folder already holds it")
    if not SEARCHES[method].is_adaptive:
        learning = " or ".join(name for name, search in SEARCHES.items() if search.is_adaptive)
        allowed = f"--search {learning} only; other searches learn nothing from points"
        raise refuse("--warm-start", options.warm_start, allowed)
    earlier, num_points = read_earlier(RunFolder.open(options.warm_start), space, goals)
    summary = f"{len(earlier)} of the {num_points} finished points of {options.warm_start} are in the space"
    print(f"warm start: {summary}")
    return earlier


def _resumed_or_given(
    info: Mapping[str, Any], name: str, typed: Any, default: Any, allowed: Collection[str] = ()
) -> Any:
    """An option as given, else as in the run folder. ValueError if they differ, or it is not allowed."""
    option, stored = "--" + name.replace("_", "-"), info.get(name, default)
    chosen = stored if typed is None else typed
    if allowed:
        require_known(option, chosen, allowed)
    if info and chosen != stored:
        raise refuse(option, typed, f"{stored} with --resume, as in the run folder")
    return chosen
