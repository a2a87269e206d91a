"""What becomes of trials, into the run folder and to the listeners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ray_atr.run_folder import FAILED, PENDING, RUNNING, STOPPED, TrialFolder, train_seconds
from ray_atr.sweep.common_failure import CommonFailure
from ray_atr.sweep.listener import SweepListener


@dataclass(frozen=True)
class Recording:
    """Told of each trial's events, wherever trials run."""

    listeners: Sequence[SweepListener]
    failure: CommonFailure

    def __reduce__(self) -> tuple[type[Recording], tuple[tuple[()], CommonFailure]]:
        # Tune writes its callbacks to a file that nobody reads. Listeners may hold what no file can: locks, threads, connections.
        return Recording, ((), self.failure)

    def started(self, trial: TrialFolder) -> None:
        trial.update(status=RUNNING)
        for listener in self.listeners:
            listener.trial_started(trial)

    def reported(self, trial: TrialFolder, metrics: Mapping[str, Any]) -> None:
        """The metrics of an epoch, or the result."""
        self.failure.epoch_ended(trial.trial_id)
        if metrics.get("is_final"):
            trial.finish(metrics)
        elif "epoch" in metrics and trial.add_epoch(metrics):
            for listener in self.listeners:
                listener.epoch_ended(trial, metrics)

    def ended(self, trial: TrialFolder, *, is_over: bool = False) -> None:
        """A trial ended without an error: it has its result, a scheduler stopped it, or the whole sweep was stopped."""
        if trial.is_finished:
            self.failure.trial_ended()
            for listener in self.listeners:
                listener.trial_finished(trial)
        elif is_over:
            # Not stopped for what it reached: a resumed sweep continues it.
            trial.update(status=PENDING)
        else:
            self.failure.trial_ended()
            trial.update(status=STOPPED, train_seconds=train_seconds(trial.epochs()))
            for listener in self.listeners:
                listener.trial_stopped(trial)

    def failed(self, trial: TrialFolder, error: str) -> None:
        if trial.is_finished:
            # Its process died after the result had been recorded: nothing is lost.
            self.ended(trial)
            return
        trial.update(status=FAILED, error=error)
        self.failure.trial_failed(trial.trial_id, error)
        for listener in self.listeners:
            listener.trial_failed(trial, error)
