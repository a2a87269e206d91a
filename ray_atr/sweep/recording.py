"""What becomes of trials: into the run folder and to those who are told of it, and when to give up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ray_atr.run_folder import FAILED, PENDING, RUNNING, STOPPED, TrialFolder, train_seconds

ENOUGH = 3
"""Failed trials that show that the others would fail too."""


class SweepListener:
    """Told of a sweep's events in the driver; trackers and progress displays derive from it."""

    def sweep_started(self, num_trials: int | None, num_ended: int) -> None:
        """How many trials the sweep has (None: it continues until its time is over), and how many of them had ended before."""

    def inputs_ready(self, seconds: Mapping[str, float]) -> None:
        """Ray runs, and the data of every point known beforehand is there: the seconds that each took."""

    def trial_changed(self, trial: TrialFolder) -> None:
        """What each of the events below does where it does nothing of its own. The run folder holds what happened."""

    def trial_started(self, trial: TrialFolder) -> None:
        self.trial_changed(trial)

    def epoch_ended(self, trial: TrialFolder, metrics: Mapping[str, Any]) -> None:
        self.trial_changed(trial)

    def trial_finished(self, trial: TrialFolder) -> None:
        self.trial_changed(trial)

    def trial_stopped(self, trial: TrialFolder) -> None:
        """A scheduler ended the trial early."""
        self.trial_changed(trial)

    def trial_failed(self, trial: TrialFolder, error: str) -> None:
        self.trial_changed(trial)


@dataclass
class CommonFailure:
    """Told what becomes of a sweep's trials, it knows the one reason for which all of them failed."""

    has_succeeded: bool = False
    """Whether a trial has its result, or was stopped for what it reached, in this session or an earlier one."""
    reasons: list[str] = field(default_factory=list)
    alive: set[str] = field(default_factory=set)
    """Trials that have reported an epoch and have not failed since."""

    def trial_failed(self, trial_id: str, error: str) -> None:
        self.alive.discard(trial_id)
        # A reason may name the trial's own files.
        self.reasons.append(error.replace(trial_id, "TRIAL"))

    @property
    def reason(self) -> str | None:
        """Why every trial failed; None while fewer than three have, one works, or the reasons differ."""
        if self.has_succeeded or self.alive or len(self.reasons) < ENOUGH or len(set(self.reasons)) > 1:
            return None
        return self.reasons[0]


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
        self.failure.alive.add(trial.trial_id)
        if metrics.get("is_final"):
            trial.finish(metrics)
        elif "epoch" in metrics and trial.add_epoch(metrics):
            for listener in self.listeners:
                listener.epoch_ended(trial, metrics)

    def ended(self, trial: TrialFolder, *, is_over: bool = False) -> None:
        """A trial ended without an error: it has its result, a scheduler stopped it, or the whole sweep was stopped."""
        is_finished = trial.is_finished
        self.failure.has_succeeded |= is_finished or not is_over
        if is_finished:
            for listener in self.listeners:
                listener.trial_finished(trial)
        elif is_over:
            # Not stopped for what it reached: a resumed sweep continues it.
            trial.update(status=PENDING)
        else:
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
