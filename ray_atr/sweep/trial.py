"""What runs in a trial's process: its experiment from the run folder, trained, and what it reports to Tune."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ray_atr.experiment import Experiment, resolved
from ray_atr.override import override
from ray_atr.run_folder import RunFolder, TrialFolder
from ray_atr.storage import is_there
from ray_atr.sweep.inheritance import complete_take_over, inherit, perturbed_settings, save_for_others, saved_by
from ray_atr.sweep.schedulers import PAUSING
from ray_atr.training.packing import packed
from ray_atr.training.ray_train import ERROR_FILE, TrialError, run_trial


def run_in_tune(config: dict[str, Any], run: str, home: str, scheduler: str, shown: Sequence[str] = ()) -> None:
    """Train the trial `config["trial_id"]` of a run folder to its end, reporting to Tune. TrialError if it cannot continue.

    `shown` are the metrics that the scheduler compares.
    """
    from ray import tune
    from ray.tune.integration.ray_train import TuneReportCallback

    folder = RunFolder.open(run)
    trial = folder.trial(config["trial_id"])
    error = trial.folder / ERROR_FILE
    error.unlink(missing_ok=True)
    complete_take_over(trial)
    if scheduler == "pbt":
        _take_over(config, folder, trial)
    experiment = experiment_of(folder, trial)
    report = (
        _report_with_checkpoints(trial, scheduler, shown)
        if scheduler in PAUSING
        else lambda metrics: tune.report(packed(metrics, shown))
    )
    callbacks = [TuneReportCallback()] if experiment.scaling.workers else []
    run_trial(experiment, trial.folder, Path(home), callbacks, report, shown)
    if is_there(error):
        raise TrialError(error.read_text(encoding="utf-8"))


def experiment_of(folder: RunFolder, trial: TrialFolder) -> Experiment:
    """A trial's experiment: the run's, with what the trial varies, and what was changed since it started."""
    return resolved(override(folder.experiment, {**trial.describe()["overrides"], **perturbed_settings(trial)}))


def _take_over(config: Mapping[str, Any], folder: RunFolder, trial: TrialFolder) -> None:
    """Where Tune hands this trial another's checkpoint: make its weights, optimiser and history this trial's."""
    from ray import tune

    checkpoint = tune.get_checkpoint()
    if checkpoint is None:
        return
    settings = {path: value for path, value in config.items() if path != "trial_id"}
    with checkpoint.as_directory() as source:
        donor = saved_by(Path(source))
        # Its own checkpoint comes back after a pause; the run folder has it already.
        if donor != trial.trial_id:
            inherit(trial, Path(source), settings, donor, experiment_of(folder, trial))


def _report_with_checkpoints(trial: TrialFolder, scheduler: str, shown: Sequence[str]) -> Any:
    """Reports for schedulers that pause: what was reported before the pause, or by the trial taken over, is not again."""
    from ray import tune

    reported = {row["epoch"] for row in trial.epochs()} if tune.get_checkpoint() or scheduler == "pbt" else set()

    def report(metrics: Mapping[str, Any]) -> None:
        if metrics.get("is_final"):
            tune.report(packed(metrics, shown))
        elif metrics["epoch"] not in reported:
            with tempfile.TemporaryDirectory() as aside:
                save_for_others(trial, Path(aside), with_weights=scheduler == "pbt")
                tune.report(packed(metrics, shown), checkpoint=tune.Checkpoint.from_directory(aside))

    return report
