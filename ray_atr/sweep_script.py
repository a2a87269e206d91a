"""What the sweep scripts share: make or resume the run folder, run, report, and say where everything is."""

from __future__ import annotations

import dataclasses
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from ray_atr.experiment import Experiment
from ray_atr.override import flatten, override
from ray_atr.recipes import RECIPES
from ray_atr.report import summary_table, write_report
from ray_atr.run_folder import RunFolder, TrialFolder, write_json
from ray_atr.runtime import code_version, home
from ray_atr.settings import nearest, refuse
from ray_atr.sweep import ConsoleProgress, FixedPoints, Plan, SweepListener, SweepResult, sweep
from ray_atr.sweep.agenda import recorded_points
from ray_atr.sweep.describe import best_lines, check_plan, conditions_of, describe_plan
from ray_atr.sweep.inputs import differences_of_code
from ray_atr.tracking import Tracker, mlflow_command

EXIT_FAILED_TRIALS = 1


@dataclass(frozen=True)
class SweepOptions:
    """The options that every sweep script has beside what it varies."""

    recipe: Annotated[str, tyro.conf.arg(help="experiment to start from: " + ", ".join(RECIPES))] = "quickstart"
    seeds: Annotated[tuple[int, ...], tyro.conf.arg(help="seeds, averaged in the report")] = (0,)
    concurrency: Annotated[int | None, tyro.conf.arg(help="trials at a time (default: as many as fit)")] = None
    hours: Annotated[
        float | None, tyro.conf.arg(help="stop after this many hours; --resume goes on with what is unfinished")
    ] = None
    out: Annotated[
        str | None, tyro.conf.arg(help="run folder to make, or a URL such as s3://... (default: runs/<script>-<time>)")
    ] = None
    resume: Annotated[str | None, tyro.conf.arg(help="go on with this run folder; finished trials are kept")] = None
    retry_failed: Annotated[bool, tyro.conf.arg(help="with --resume: run failed trials again")] = False
    same_code: Annotated[bool, tyro.conf.arg(help="with --resume: refuse another version of the code")] = False

    def run(self, name: str, settings: Mapping[str, str], points: Sequence[Mapping[str, Any]]) -> None:
        """Run the script's points as these options say; `--resume` alone goes on with those of the run folder."""

        def plan(experiment: Experiment, kept: RunFolder | None) -> Plan:
            if kept is None or self._varies_anything:
                return Plan(FixedPoints(points), hours=self.hours)
            return Plan(FixedPoints(recorded_points(kept, without_seed=False)), hours=self.hours)

        self.run_plan(name, settings, plan)

    @property
    def _varies_anything(self) -> bool:
        """Whether an option of the script's own, or the seeds, is another than its default."""
        shared = {one.name for one in dataclasses.fields(SweepOptions)} - {"seeds"}
        own = [one for one in dataclasses.fields(self) if one.name not in shared]
        return any(getattr(self, one.name) != one.default for one in own)

    def run_plan(self, name: str, settings: Mapping[str, str], make_plan: MakePlan) -> None:
        """Run a plan that is made for the experiment these options and settings describe."""
        run_sweep_script(
            name,
            choose_recipe(self.recipe),
            settings,
            make_plan,
            out=self.out,
            resume=self.resume,
            concurrency=self.concurrency,
            retry_failed=self.retry_failed,
            same_code=self.same_code,
        )


MakePlan = Callable[[Experiment, RunFolder | None], Plan]
"""The plan for an experiment, and for the run folder that it goes on with, if any."""


def run_sweep_script(
    name: str,
    recipe: Experiment,
    settings: Mapping[str, str],
    make_plan: MakePlan,
    *,
    out: str | None = None,
    resume: str | None = None,
    concurrency: int | None = None,
    retry_failed: bool = False,
    same_code: bool = False,
) -> None:
    """Run a sweep from a script and end with its tables and the commands that go on from there.

    Raises ValueError for a mistake in the settings or points, before anything is written; KeyboardInterrupt, carrying the
    command that resumes, when it was interrupted. Exits with 1 where a trial failed.
    """
    kept = None if resume is None else open_run(resume, name, same_code=same_code)
    experiment = override(recipe, settings) if kept is None else resumed_experiment(kept, settings)
    plan = make_plan(experiment, kept)
    check_plan(plan, experiment)
    run = kept or _create(name, experiment, plan, out)
    if kept is not None:
        _extend(kept, plan, experiment)
    print(f"run folder: {run.path}")
    for condition in conditions_of(plan):
        print(condition)
    listeners: list[SweepListener] = [ConsoleProgress(experiment.train.epochs)]
    tracker = (
        Tracker(run.path, experiment_name=experiment.tracking.experiment_name) if experiment.tracking.mlflow else None
    )
    if tracker is not None:
        tracker.start_sweep()
        listeners.append(Tracking(tracker))
    started = time.monotonic()
    result = sweep(run, plan, home(), listeners=listeners, concurrency=concurrency, retry_failed=retry_failed)
    _finish(run, plan, result, time.monotonic() - started, tracker)


class Tracking(SweepListener):
    """Sends every event of a sweep to MLflow."""

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker

    def trial_changed(self, trial: TrialFolder) -> None:
        self.tracker.update_trial(trial.trial_id)


def open_run(place: str, name: str, *, same_code: bool = False) -> RunFolder:
    """The run folder to go on with. ValueError for one of another script, and of other code where that is to be refused."""
    run = RunFolder.open(place)
    if run.info["name"] != name:
        raise ValueError(f"{place}: a run of {run.info['name']}, not of {name}")
    differences = differences_of_code(run.info, code_version())
    if differences and same_code:
        raise ValueError(f"{place}: run by other code ({'; '.join(differences)}), and --same-code was given")
    if differences:
        print(
            f"warning: this sweep goes on with other code than it started with: {'; '.join(differences)}",
            file=sys.stderr,
        )
    return run


def resumed_experiment(run: RunFolder, settings: Mapping[str, str]) -> Experiment:
    """The experiment of a run folder; `settings` may change what it runs on (`scaling.*`), else they must agree with it."""
    experiment = run.experiment
    kept, wanted = flatten(experiment), flatten(override(experiment, settings))
    different = sorted(path for path in wanted if kept.get(path) != wanted[path] and not path.startswith("scaling."))
    if different:
        path = different[0]
        raise ValueError(
            f"{run.path}: the run of another experiment; {path} is {kept.get(path)!r} there and {wanted[path]!r} here"
            + (f" (and {len(different) - 1} more)" if len(different) > 1 else "")
        )
    return override(experiment, settings)


def _create(name: str, experiment: Experiment, plan: Plan, out: str | None) -> RunFolder:
    folder = out or home() / "runs" / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    info = {
        "name": name,
        **describe_plan(plan),
        "code": code_version(),
        "command": shlex.join([Path(sys.executable).name, *sys.argv]),
    }
    return RunFolder.create(folder, experiment, info)


def _extend(run: RunFolder, plan: Plan, experiment: Experiment) -> None:
    """Note what was added to a sweep, and the resources that it goes on with."""
    wanted = {**run.info, **describe_plan(plan)}
    if wanted != run.info:
        write_json(run.path / "sweep.json", wanted)
    if experiment.scaling != run.experiment.scaling:
        write_json(run.path / "experiment.json", flatten(experiment))


def _finish(run: RunFolder, plan: Plan, result: SweepResult, seconds: float, tracker: Tracker | None) -> None:
    """Report, then say where everything is; exit with 1 where a trial failed, with 130 where trials are left to do."""
    if result.finished:
        write_report(run.path)
        print(f"\n{summary_table(run.path)}")
    if tracker is not None:
        tracker.finish_sweep(is_complete=not result.unfinished)
    stopped = f"{len(result.stopped)} stopped early, " if result.stopped else ""
    print(
        f"\n{len(result.finished)} trials finished, {stopped}{len(result.failed)} failed, in {seconds / 60:.1f} minutes"
    )
    for line in best_lines(run, plan):
        print(line)
    for trial_id in result.failed:
        described = run.trial(trial_id).describe()
        print(f"failed: {described['name']}: {described['error']}", file=sys.stderr)
    print(f"run folder:  {run.path}")
    if result.finished:
        print(f"report:      {run.path / 'report' / 'report.html'}")
        if tracker is not None:
            print(f"compare:     {mlflow_command(run.path)}")
            page = tracker.comparison_url()
            if page is not None:
                print(f"             {page}")
    if result.unfinished and result.is_out_of_time:
        print(f"out of time: {len(result.unfinished)} trials to do; go on with --resume {run.path}")
        return
    if result.unfinished:
        raise KeyboardInterrupt(f"{len(result.unfinished)} trials to do; go on with --resume {run.path}")
    if result.failed:
        print(f"run the failed ones again with --resume {run.path} --retry-failed", file=sys.stderr)
        raise SystemExit(EXIT_FAILED_TRIALS)


def choose_recipe(name: str) -> Experiment:
    """The experiment of a recipe's name. ValueError names the nearest one."""
    if name not in RECIPES:
        raise refuse("recipe", name, "one of " + ", ".join(RECIPES), nearest(name, RECIPES))
    return RECIPES[name]()
