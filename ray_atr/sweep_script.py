"""What the sweep scripts share: make or resume the run folder, run, report, and say where everything is."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from ray_atr.experiment import Experiment
from ray_atr.override import flatten, override
from ray_atr.recipes import RECIPES
from ray_atr.report import summary_table, write_report
from ray_atr.run_folder import RunFolder, TrialFolder
from ray_atr.runtime import code_version, home
from ray_atr.settings import nearest, refuse
from ray_atr.sweep import ConsoleProgress, SweepListener, SweepResult, sweep
from ray_atr.tracking import Tracker, mlflow_command
from ray_atr.training.prepare import check_inputs

EXIT_FAILED_TRIALS = 1


@dataclass(frozen=True)
class SweepOptions:
    """The options that every sweep script has beside what it varies."""

    recipe: Annotated[str, tyro.conf.arg(help="experiment to start from: " + ", ".join(RECIPES))] = "quickstart"
    seeds: Annotated[tuple[int, ...], tyro.conf.arg(help="seeds, averaged in the report")] = (0,)
    concurrency: Annotated[int | None, tyro.conf.arg(help="trials at a time (default: as many as fit)")] = None
    out: Annotated[
        str | None, tyro.conf.arg(help="run folder to make, or a URL such as s3://... (default: runs/<script>-<time>)")
    ] = None
    resume: Annotated[str | None, tyro.conf.arg(help="go on with this run folder; finished trials are kept")] = None
    retry_failed: Annotated[bool, tyro.conf.arg(help="with --resume: run failed trials again")] = False

    def run(self, name: str, settings: Mapping[str, str], points: Sequence[Mapping[str, Any]]) -> None:
        """Run the script's points as these options say."""
        run_sweep_script(
            name,
            choose_recipe(self.recipe),
            settings,
            points,
            out=self.out,
            resume=self.resume,
            concurrency=self.concurrency,
            retry_failed=self.retry_failed,
        )


def run_sweep_script(
    name: str,
    recipe: Experiment,
    settings: Mapping[str, str],
    points: Sequence[Mapping[str, Any]],
    *,
    out: str | None = None,
    resume: str | None = None,
    concurrency: int | None = None,
    retry_failed: bool = False,
) -> None:
    """Run a sweep from a script and end with its tables and the commands that go on from there.

    Raises ValueError for a mistake in the settings or points, before anything is written; KeyboardInterrupt, carrying the
    command that resumes, when it was interrupted. Exits with 1 where a trial failed.
    """
    experiment = override(recipe, settings)
    for point in points:
        check_inputs(override(experiment, point))
    run = _open_or_create(name, experiment, settings, points, out, resume)
    where = home()
    print(f"run folder: {run.path}")
    finished = sum(run.add_trial(point).is_finished for point in points)
    listeners: list[SweepListener] = [ConsoleProgress(len(points), experiment.train.epochs, finished)]
    tracker = (
        Tracker(run.path, experiment_name=experiment.tracking.experiment_name) if experiment.tracking.mlflow else None
    )
    if tracker is not None:
        tracker.start_sweep()
        listeners.append(Tracking(tracker))
    started = time.monotonic()
    result = sweep(run, points, where, listeners=listeners, concurrency=concurrency, retry_failed=retry_failed)
    _finish(run, result, time.monotonic() - started, tracker)


class Tracking(SweepListener):
    """Sends every event of a sweep to MLflow."""

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker

    def trial_started(self, trial: TrialFolder) -> None:
        self.tracker.update_trial(trial.trial_id)

    def epoch_ended(self, trial: TrialFolder, metrics: Mapping[str, Any]) -> None:
        self.tracker.update_trial(trial.trial_id)

    def trial_finished(self, trial: TrialFolder) -> None:
        self.tracker.update_trial(trial.trial_id)

    def trial_failed(self, trial: TrialFolder, error: str) -> None:
        self.tracker.update_trial(trial.trial_id)


def _open_or_create(
    name: str,
    experiment: Experiment,
    settings: Mapping[str, str],
    points: Sequence[Mapping[str, Any]],
    out: str | None,
    resume: str | None,
) -> RunFolder:
    varied = list(dict.fromkeys(path for point in points for path in point))
    if resume is None:
        folder = out or home() / "runs" / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
        info = {
            "name": name,
            "varied": varied,
            "space": {path: sorted({point[path] for point in points if path in point}, key=str) for path in varied},
            "seeds": sorted({point["seed"] for point in points if "seed" in point}),
            "code": code_version(),
            "command": shlex.join([Path(sys.executable).name, *sys.argv]),
        }
        return RunFolder.create(folder, experiment, info)
    run = RunFolder.open(resume)
    if run.info["name"] != name:
        raise ValueError(f"{resume}: a run of {run.info['name']}, not of {name}")
    kept, wanted = flatten(run.experiment), flatten(experiment)
    different = sorted(path for path in wanted if kept.get(path) != wanted[path] and not path.startswith("scaling."))
    if different:
        path = different[0]
        raise ValueError(
            f"{resume}: the run of another experiment; {path} is {kept.get(path)!r} there and {wanted[path]!r} here"
            + (f" (and {len(different) - 1} more)" if len(different) > 1 else "")
        )
    return run


def _finish(run: RunFolder, result: SweepResult, seconds: float, tracker: Tracker | None) -> None:
    """Report, then say where everything is; exit with 1 where a trial failed, with 130 where trials are left to do."""
    if result.finished:
        write_report(run.path)
        print(f"\n{summary_table(run.path)}")
    if tracker is not None:
        tracker.finish_sweep(is_complete=not result.unfinished)
    print(f"\n{len(result.finished)} trials finished, {len(result.failed)} failed, in {seconds / 60:.1f} minutes")
    for trial_id in result.failed:
        described = run.trial(trial_id).describe()
        print(f"failed: {described['name']}: {described['error']}", file=sys.stderr)
    print(f"run folder:  {run.path}")
    if result.finished:
        print(f"report:      {run.path / 'report' / 'report.html'}")
        if tracker is not None:
            print(f"compare:     {mlflow_command(run.path)}")
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
