"""A plan from the command line to its end: make or resume the run folder, run, report, print where everything is."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ray_atr.cli.experiment_options import ExperimentOptions, SweepOptions
from ray_atr.cli.parse import read_config
from ray_atr.experiment import Experiment
from ray_atr.migrate import migrated
from ray_atr.override import flatten, override
from ray_atr.recipes import RECIPES
from ray_atr.redaction import redact_command
from ray_atr.report import write_report
from ray_atr.run_folder import RunFolder, TrialFolder
from ray_atr.runtime import RayStartError, advising, code_version, differences_of_code, home
from ray_atr.settings import counted, nearest, refuse
from ray_atr.storage import write_json
from ray_atr.sweep import ConsoleProgress, FirstEpoch, SweepListener, SweepPlan, SweepResult, sweep
from ray_atr.sweep.describe import best_lines, check_plan, conditions_of, describe_plan
from ray_atr.sweep.fixed import Varied, set_by_recipe, split_settings
from ray_atr.tracking import Tracker, mlflow_command
from ray_atr.training.inputs import Say
from ray_atr.training.languages import with_languages

EXIT_FAILED_TRIALS = 1
MakePlan = Callable[[Experiment, RunFolder | None], SweepPlan]
"""The plan for an experiment, and for the run folder that it continues, if any."""


def run_plan(
    name: str,
    options: ExperimentOptions,
    settings: Mapping[str, str],
    make_plan: MakePlan,
    varied: Varied,
    *,
    use_ray: bool = True,
    say: Say,
) -> None:
    """Run a plan from the command line and end with its tables and the commands that continue it.

    Raises ValueError for a mistake in the settings or points, before anything is written; KeyboardInterrupt, carrying the
    command that resumes, when it was interrupted. Exits with 1 if a trial failed.
    """
    # A single trial that has failed is what there is to run again.
    how = options if isinstance(options, SweepOptions) else SweepOptions(retry_failed=True)
    kept = None if options.resume is None else open_run(options.resume, name, same_code=how.same_code)
    experiment, plan = planned(options, settings, make_plan, varied, kept, use_ray=use_ray)
    run = kept or _create(name, experiment, plan, options.out)
    with advising(f"resume it with {run.resuming}"), run.held():
        _run(run, experiment, plan, how, is_new=kept is None, use_ray=use_ray, say=say)


def planned(
    options: ExperimentOptions,
    settings: Mapping[str, str],
    make_plan: MakePlan,
    varied: Varied,
    kept: RunFolder | None = None,
    *,
    use_ray: bool = True,
) -> tuple[Experiment, SweepPlan]:
    """The experiment and the plan of a command line, checked; ValueError for a mistake. Nothing is written."""
    if kept is None:
        start = start_of(options, settings)
        own, explicit = split_settings(settings, varied)
        experiment = with_languages(override(start, own))
        fixed = {**set_by_recipe(start, varied), **explicit}
    else:
        if options.config is not None:
            raise refuse("--config", options.config, "nothing with --resume: the run folder holds its settings")
        own, explicit = split_settings(settings, varied_in(kept))
        experiment = resumed_experiment(kept, own)
        fixed = resumed_settings(kept, explicit)
    if not use_ray:
        experiment = without_ray(experiment, settings)
    plan = replace(make_plan(experiment, kept), fixed=fixed)
    check_plan(plan, experiment, explicit, is_new=kept is None)
    return experiment, plan


def _run(
    run: RunFolder, experiment: Experiment, plan: SweepPlan, how: SweepOptions, *, is_new: bool, use_ray: bool, say: Say
) -> None:
    # What was added to a sweep, and the resources that it resumes with.
    if not is_new and {**run.info, **describe_plan(plan)} != run.info:
        run.update_info(**describe_plan(plan))
    if not is_new and flatten(experiment) != run.settings:
        write_json(run.path / "experiment.json", flatten(experiment), is_private=True)
    print(f"run folder: {run.path}")
    for condition in conditions_of(plan, experiment):
        print(condition)
    listeners: list[SweepListener] = [ConsoleProgress(experiment.train.epochs, say), FirstEpoch(say)]
    tracker = Tracker(run.path) if experiment.tracking.mlflow else None
    if tracker is not None:
        tracker.start_sweep()
        listeners.append(Tracking(tracker))
    started = time.monotonic()
    choices: dict[str, Any] = {"concurrency": how.concurrency, "retry_failed": how.retry_failed, "use_ray": use_ray}
    try:
        result = sweep(run, plan, home(), listeners=listeners, say=say, **choices)
    except RayStartError:
        if is_new:
            # Nothing has run: the same command finds its place free again.
            run.remove()
        raise
    except KeyboardInterrupt:
        if tracker is not None:
            end_tracking(tracker, is_complete=False)
        raise
    _finish(run, plan, result, time.monotonic() - started, tracker)


def start_of(options: ExperimentOptions, settings: Mapping[str, str] | None = None) -> Experiment:
    """The recipe of the options with what their configuration file changes. ValueError names the file or the recipe.

    The quickstart's towers know synthetic sounds alone: other data gets towers that learn from it, unless a recipe is named.
    """
    values = {} if options.config is None else migrated(read_config(options.config))
    is_synthetic = {**values, **(settings or {})}.get("data.source", "soundscapes") == "soundscapes"
    recipe = options.recipe or ("quickstart" if is_synthetic else "from_scratch")
    if recipe not in RECIPES:
        raise refuse("recipe", recipe, "a recipe that --help lists", nearest(recipe, RECIPES))
    try:
        return override(RECIPES[recipe](), values)
    except ValueError as error:
        raise ValueError(f"--config: {options.config}: {error}") from None


def without_ray(experiment: Experiment, settings: Mapping[str, str]) -> Experiment:
    """The experiment trained in this process. ValueError for workers, or streams, that were asked for."""
    for path, wanted in (("scaling.workers", "0"), ("scaling.ray_data", "false")):
        if settings.get(path, wanted).lower() != wanted:
            raise refuse(path, settings[path], f"{wanted} with --ray never")
    return override(experiment, {"scaling.workers": 0, "scaling.ray_data": False})


class Tracking(SweepListener):
    """Sends every event of a sweep to MLflow."""

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker

    def trial_changed(self, trial: TrialFolder) -> None:
        self.tracker.update_trial(trial.trial_id)


def end_tracking(tracker: Tracker, *, is_complete: bool) -> bool:
    """Send what MLflow lacks and say that the sweep has ended; where MLflow is away, print how to send it later.

    Returns whether MLflow has everything.
    """
    if tracker.finish_sweep(is_complete=is_complete):
        return True
    later = shlex.join(["ray-atr", "report", str(tracker.run_folder), "--upload"])
    print(f"MLflow at {tracker.store} lacks results ({tracker.problem}); send them later with {later}", file=sys.stderr)
    return False


def open_run(place: str, name: str, *, same_code: bool = False) -> RunFolder:
    """The run folder to resume. ValueError for one of another script, and of other code where that is to be refused."""
    run = RunFolder.open(place)
    if run.info["name"] != name:
        raise ValueError(f"{place}: a run of {run.info['name']}, not of {name}")
    differences = differences_of_code(run.info, code_version())
    if differences and same_code:
        raise ValueError(f"{place}: run by other code ({'; '.join(differences)}), and --same-code was given")
    if differences:
        warning = f"warning: this sweep resumes with a different version of the code: {'; '.join(differences)}"
        print(warning, file=sys.stderr)
    return run


def resumed_experiment(run: RunFolder, settings: Mapping[str, str]) -> Experiment:
    """The experiment of a run folder; `settings` may change what it runs on (`scaling.*`), else they must agree with it."""
    experiment = run.experiment
    kept, wanted = flatten(experiment), flatten(override(experiment, settings))
    different = sorted(path for path in wanted if kept.get(path) != wanted[path] and not path.startswith("scaling."))
    if different:
        path, more = different[0], f" (and {len(different) - 1} more)" if different[1:] else ""
        was = f"{path} is {kept.get(path)!r} there and {wanted[path]!r} here{more}"
        raise ValueError(f"{run.path}: the run of another experiment; {was}")
    return override(experiment, settings)


def varied_in(run: RunFolder) -> Varied:
    """What a run folder's sweep varies."""
    space, varied = run.info.get("space") or {}, run.info.get("varied", ())
    return {path: space[path] if isinstance(space.get(path), list) else () for path in varied}


def resumed_settings(run: RunFolder, settings: Mapping[str, str]) -> dict[str, Any]:
    """The settings that hold in every point of a run folder. ValueError for one that is given now and was not the same then."""
    kept: dict[str, Any] = dict(run.info.get("fixed", {}))
    for path, value in settings.items():
        if str(kept.get(path)) != str(value):
            was = repr(kept[path]) if path in kept else "not set"
            raise ValueError(f"{run.path}: the run of another experiment; {path} is {was} there and {value!r} here")
    return kept


def _create(name: str, experiment: Experiment, plan: SweepPlan, out: str | None) -> RunFolder:
    folder = out or home() / "runs" / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    program = Path(sys.argv[0])
    words = [program.name] if program.name == "ray-atr" else [Path(sys.executable).name, str(program)]
    command = redact_command([*words, *sys.argv[1:]])
    return RunFolder.create(
        folder, experiment, {"name": name, **describe_plan(plan), "code": code_version(), "command": command}
    )


def _finish(run: RunFolder, plan: SweepPlan, result: SweepResult, seconds: float, tracker: Tracker | None) -> None:
    """Report, then say where everything is; exit with 1 if a trial failed. KeyboardInterrupt if trials are left to do."""
    if result.finished:
        print(f"\n{write_report(run.path).summary}")
    is_tracked = tracker is not None and end_tracking(tracker, is_complete=not result.unfinished)
    others = {"stopped early": result.stopped, "failed": result.failed, "to do": result.unfinished}
    ended = [f"{len(trials)} {fate}" for fate, trials in others.items() if trials or fate == "failed"]
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
            if (page := tracker.comparison_url()) is not None:
                print(f"             {page}")
    left = counted(len(result.unfinished), "trial")
    if result.common_failure is not None:
        print(f"stopped: every trial so far failed for the same reason: {result.common_failure}", file=sys.stderr)
        print(f"not run to the end: {left}; continue with {run.resuming} --retry-failed", file=sys.stderr)
        raise SystemExit(EXIT_FAILED_TRIALS)
    if result.unfinished and result.is_out_of_time:
        print(f"out of time: {left} to do; continue with {run.resuming}")
        return
    if result.unfinished:
        raise KeyboardInterrupt
    if result.failed:
        print(f"run the failed ones again with {run.resuming} --retry-failed", file=sys.stderr)
        raise SystemExit(EXIT_FAILED_TRIALS)
