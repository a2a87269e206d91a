"""Many trials of one experiment on Ray Tune: as many at once as fit, each resumable, none repeated.

The run folder is the truth: a trial that has its result there is finished, whatever Tune remembers. Resuming a sweep
is therefore the same as starting it: the points that have no result yet are run, each from its own last checkpoint.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ray_atr.experiment import Experiment
from ray_atr.override import flatten, override
from ray_atr.run_folder import FAILED, RUNNING, RunFolder, TrialFolder
from ray_atr.runtime import start_ray
from ray_atr.settings import refuse
from ray_atr.storage import is_there
from ray_atr.training.prepare import check_inputs, prepare
from ray_atr.training.run import ERROR_FILE, WORKER_CPU_SHARE, TrialError, cpus_of_a_trial, ray_storage, run_trial

# A trial's own process only waits for its workers; Tune refuses 0.
TRIAL_PROCESS_CPUS = 0.01

Say = Callable[[str], None]


class SweepListener:
    """Told of a sweep's events in the driver; trackers and progress displays derive from it."""

    def trial_started(self, trial: TrialFolder) -> None: ...

    def epoch_ended(self, trial: TrialFolder, metrics: Mapping[str, Any]) -> None: ...

    def trial_finished(self, trial: TrialFolder) -> None: ...

    def trial_failed(self, trial: TrialFolder, error: str) -> None: ...


@dataclass(frozen=True)
class SweepResult:
    """How a sweep ended: trial ids by their fate."""

    finished: list[str]
    failed: list[str]
    unfinished: list[str]


def sweep(
    run: RunFolder,
    points: Sequence[Mapping[str, Any]],
    home: Path,
    *,
    listeners: Sequence[SweepListener] = (),
    concurrency: int | None = None,
    retry_failed: bool = False,
    say: Say = print,
) -> SweepResult:
    """Run the points (overrides of the run's experiment) that have no result yet, on Ray Tune.

    Every point is checked, and its data prepared, before the first starts. A failed trial is recorded and does not end the
    others; it is run again only with `retry_failed`. `concurrency` is how many run at once (default: as many as the
    cluster's CPUs and GPUs hold). Raises ValueError for a point that cannot run.
    """
    base = run.experiment
    experiments = {id(point): override(base, point) for point in points}
    trials = [(run.add_trial(point), experiments[id(point)]) for point in points]
    if retry_failed:
        for trial, _ in trials:
            if trial.describe()["status"] == FAILED:
                trial.update(status="pending", error=None)
    waiting = [(t, e) for t, e in trials if not t.is_finished and t.describe()["status"] != FAILED]
    done = len(trials) - len(waiting)
    if done:
        say(f"{done} of {len(trials)} trials are in {run.path} already")
    if waiting:
        start_ray()
        for _, experiment in waiting:
            check_inputs(experiment)
        slots = concurrent_trials(waiting[0][1], concurrency)
        _prepare_all([experiment for _, experiment in waiting], home, say)
        say(f"{len(waiting)} trials, {min(slots, len(waiting))} at a time")
        _run_with_tune(run, waiting, home, slots, listeners)
    return _result([trial for trial, _ in trials])


def concurrent_trials(experiment: Experiment, limit: int | None = None) -> int:
    """How many trials of this size the cluster holds at once. ValueError where it does not hold one."""
    import ray

    resources = ray.cluster_resources()
    cpus, gpus = resources.get("CPU", 0.0), resources.get("GPU", 0.0)
    workers = max(experiment.scaling.workers, 1)
    needed_cpus, needed_gpus = cpus_of_a_trial(experiment), workers * experiment.scaling.gpus_per_worker
    if needed_gpus > gpus:
        raise refuse(
            "scaling.gpus_per_worker", experiment.scaling.gpus_per_worker, f"{workers} x that within {gpus:g} GPUs"
        )
    if needed_cpus > cpus:
        raise refuse(
            "scaling.cpus_per_worker", experiment.scaling.cpus_per_worker, f"{workers} x that within {cpus:g} CPUs"
        )
    fitting = math.floor(cpus / needed_cpus)
    if needed_gpus:
        fitting = min(fitting, math.floor(gpus / needed_gpus + 1e-9))
    return max(1, min(fitting, limit or fitting))


def _prepare_all(experiments: Sequence[Experiment], home: Path, say: Say) -> None:
    prepared: set[str] = set()
    for experiment in experiments:
        flat = flatten(experiment)
        # Noise and splits do not change what is prepared; sources, languages and towers do.
        key = repr([(k, v) for k, v in flat.items() if k.startswith(("data.", "model.")) and ".noise" not in k])
        if key in prepared:
            continue
        prepared.add(key)
        prepare(experiment, home, say=say)


def _run_with_tune(
    run: RunFolder,
    waiting: Sequence[tuple[TrialFolder, Experiment]],
    home: Path,
    slots: int,
    listeners: Sequence[SweepListener],
) -> None:
    from ray import tune

    # Tune's own console would repeat what the listeners say.
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
    os.environ.setdefault("TUNE_MAX_PENDING_TRIALS_PG", str(slots))
    trainable = tune.with_resources(
        tune.with_parameters(_trainable, run=str(run.path), home=str(home)), {"cpu": _trial_process_cpus(waiting[0][1])}
    )
    tuner = tune.Tuner(
        trainable,
        param_space={"trial_id": tune.grid_search([trial.trial_id for trial, _ in waiting])},
        tune_config=tune.TuneConfig(max_concurrent_trials=slots, reuse_actors=True),
        run_config=tune.RunConfig(
            name=f"tune-{time.strftime('%Y%m%d-%H%M%S')}",
            storage_path=ray_storage(run.path),
            callbacks=[_recorder(run, listeners)],
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=0),
        ),
    )
    tuner.fit()


def _trial_process_cpus(experiment: Experiment) -> float:
    if experiment.scaling.workers:
        return TRIAL_PROCESS_CPUS
    return experiment.scaling.cpus_per_worker * WORKER_CPU_SHARE


def _trainable(config: dict[str, Any], run: str, home: str) -> None:
    """What Tune runs for each trial: read its experiment from the run folder, train it, say how it ended."""
    from ray import tune
    from ray.tune.integration.ray_train import TuneReportCallback

    folder = RunFolder.open(run)
    trial = folder.trial(config["trial_id"])
    experiment = override(folder.experiment, trial.describe()["overrides"])
    (trial.folder / ERROR_FILE).unlink(missing_ok=True)
    callbacks = [TuneReportCallback()] if experiment.scaling.workers else []
    run_trial(experiment, trial.folder, Path(home), callbacks, lambda metrics: tune.report(dict(metrics)))
    if is_there(trial.folder / ERROR_FILE):
        raise TrialError((trial.folder / ERROR_FILE).read_text())


def _recorder(run: RunFolder, listeners: Sequence[SweepListener]) -> Any:
    from ray.tune import Callback

    class Recorder(Callback):  # type: ignore[misc]
        """Writes what trials report into the run folder, then tells the listeners. Lives in the driver only."""

        def on_trial_start(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            folder = run.trial(trial.config["trial_id"])
            folder.update(status=RUNNING)
            for listener in listeners:
                listener.trial_started(folder)

        def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: dict[str, Any], **info: Any) -> None:
            folder = run.trial(trial.config["trial_id"])
            metrics = _own_metrics(result)
            if metrics.get("is_final"):
                folder.finish(metrics)
            elif "epoch" in metrics and folder.add_epoch(metrics):
                for listener in listeners:
                    listener.epoch_ended(folder, metrics)

        def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            folder = run.trial(trial.config["trial_id"])
            if folder.is_finished:
                for listener in listeners:
                    listener.trial_finished(folder)

        def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            folder = run.trial(trial.config["trial_id"])
            error = _error_of(folder, trial)
            folder.update(status=FAILED, error=error)
            for listener in listeners:
                listener.trial_failed(folder, error)

    return Recorder()


def _own_metrics(result: Mapping[str, Any]) -> dict[str, Any]:
    """What our workers reported, without the entries that Tune adds to every result."""
    own = {"epoch", "step", "best_epoch", "is_final"}
    return {
        name: value for name, value in result.items() if name in own or ("/" in name and not name.startswith("config"))
    }


def _error_of(folder: TrialFolder, trial: Any) -> str:
    path = folder.folder / ERROR_FILE
    if is_there(path):
        return path.read_text().strip()
    text = str((getattr(trial, "error_file", "") and Path(trial.error_file).read_text()) or "the trial's process died")
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1] if lines else "the trial's process died"


def _result(trials: Sequence[TrialFolder]) -> SweepResult:
    finished = [trial.trial_id for trial in trials if trial.is_finished]
    failed = [t.trial_id for t in trials if not t.is_finished and t.describe()["status"] == FAILED]
    unfinished = [t.trial_id for t in trials if t.trial_id not in finished and t.trial_id not in failed]
    return SweepResult(finished=finished, failed=failed, unfinished=unfinished)


@dataclass
class ConsoleProgress(SweepListener):
    """A line an epoch that a person can follow: which trial, which epoch, recall so far, time gone and left."""

    num_trials: int
    epochs_per_trial: int
    num_finished_before: int = 0
    say: Say = print
    started: float = field(default_factory=time.monotonic)
    epochs_ended: int = 0
    numbers: dict[str, int] = field(default_factory=dict)

    def trial_started(self, trial: TrialFolder) -> None:
        self._number(trial)

    def epoch_ended(self, trial: TrialFolder, metrics: Mapping[str, Any]) -> None:
        self.epochs_ended += 1
        recall = [
            f"{direction} R@1 {100 * metrics[key]:.1f}%"
            for direction, key in (
                ("text>audio", "text_to_audio/eng/recall_at_1"),
                ("audio>text", "audio_to_text/eng/recall_at_1"),
            )
            if key in metrics
        ]
        loss = metrics.get("train/loss")
        words = [
            f"[{self._number(trial):>2}/{self.num_trials}] {trial.describe()['name']}",
            f"epoch {metrics['epoch']}/{self.epochs_per_trial}",
            *([f"loss {loss:.3f}"] if loss is not None else []),
            *recall,
            self._clock(),
        ]
        self.say("  ".join(words))

    def trial_finished(self, trial: TrialFolder) -> None:
        self.say(f"[{self._number(trial):>2}/{self.num_trials}] {trial.describe()['name']}  finished")

    def trial_failed(self, trial: TrialFolder, error: str) -> None:
        self.say(f"[{self._number(trial):>2}/{self.num_trials}] {trial.describe()['name']}  FAILED: {error}")

    def _number(self, trial: TrialFolder) -> int:
        return self.numbers.setdefault(trial.trial_id, self.num_finished_before + len(self.numbers) + 1)

    def _clock(self) -> str:
        gone = time.monotonic() - self.started
        total = (self.num_trials - self.num_finished_before) * self.epochs_per_trial
        left = gone / max(self.epochs_ended, 1) * max(total - self.epochs_ended, 0)
        return f"{_minutes(gone)} gone, about {_minutes(left)} left"


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
