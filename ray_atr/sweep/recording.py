"""Records the events of trials in the run folder, calls listeners, and detects failures that all trials share."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil

from ray_atr.common.override import override
from ray_atr.common.progress import Echo
from ray_atr.common.settings import counted
from ray_atr.common.table import minutes
from ray_atr.metrics.epoch_report import EpochReport
from ray_atr.metrics.metric import DIRECTIONS, TRAINED, Metric
from ray_atr.training.checks import split_sizes
from ray_atr.training.correspondence import estimated_first
from ray_atr.training.experiment import Experiment
from ray_atr.training.languages import with_languages
from ray_atr.training.listener import SweepListener
from ray_atr.training.run_folder import FAILED, PENDING, RUNNING, TrialFolder

ENOUGH = 3  # failed trials for one reason after which the others would fail too


@dataclass
class Recording:
    """Receives the events of trials, in this process or from Tune, and finds the single reason for which all of them failed."""

    listeners: Sequence[SweepListener]
    has_succeeded: bool = False
    """Whether a trial has a result, or was stopped by a scheduler, in this session or an earlier one."""
    reasons: list[str] = field(default_factory=list)
    alive: set[str] = field(default_factory=set)  # trials that have reported an epoch and have not failed since

    def __reduce__(self) -> tuple[type[Recording], tuple[tuple[()]]]:
        # Tune pickles its callbacks to a file that is never read. Listeners may hold locks, threads or connections.
        return Recording, ((),)

    @property
    def common_failure(self) -> str | None:
        """The reason for which every trial failed; None if fewer than three have, one succeeds, or the reasons differ."""
        if self.has_succeeded or self.alive or len(self.reasons) < ENOUGH or len(set(self.reasons)) > 1:
            return None
        return self.reasons[0]

    def started(self, trial: TrialFolder) -> None:
        trial.update(status=RUNNING)
        for listener in self.listeners:
            listener.trial_started(trial)

    def reported(self, trial: TrialFolder, metrics: Mapping[str, Any]) -> None:
        """Record the metrics of an epoch, or the result."""
        self.alive.add(trial.trial_id)
        if metrics.get("is_final"):
            trial.finish(metrics)
        elif "epoch" in metrics and trial.add_epoch(metrics):
            for listener in self.listeners:
                listener.epoch_ended(trial, metrics)

    def ended(self, trial: TrialFolder, *, is_over: bool = False) -> None:
        """A trial ended without an error: it has its result, a scheduler stopped it, or the whole sweep was stopped."""
        is_finished = trial.is_finished
        self.has_succeeded |= is_finished or not is_over
        if is_finished:
            for listener in self.listeners:
                listener.trial_finished(trial)
        elif is_over:
            # Not stopped by a scheduler: a resumed sweep continues it.
            trial.update(status=PENDING)
        else:
            trial.stop()
            for listener in self.listeners:
                listener.trial_stopped(trial)

    def lost(self, trial: TrialFolder) -> None:
        """A trial's node was lost; it will go on from its last checkpoint."""
        trial.update(status=PENDING)
        for listener in self.listeners:
            listener.trial_lost(trial)

    def failed(self, trial: TrialFolder, error: str) -> None:
        if trial.is_finished:
            # Its process died after the result was recorded.
            self.ended(trial)
            return
        trial.update(status=FAILED, error=error)
        self.alive.discard(trial.trial_id)
        # A reason may contain the trial's own paths.
        self.reasons.append(error.replace(trial.trial_id, "TRIAL"))
        for listener in self.listeners:
            listener.trial_failed(trial, error)


@dataclass
class ConsoleProgress(SweepListener):
    """Prints a line for each epoch: trial, epoch, recall, elapsed and remaining time."""

    epochs_per_trial: int
    echo: Echo = print
    num_trials: int | None = None
    num_ended_before: int = 0
    started: float = field(default_factory=time.monotonic)
    epochs_ended: int = 0
    numbers: dict[str, int] = field(default_factory=dict)
    marks: dict[str, float] = field(default_factory=dict)
    """Time when a running trial started or ended its last epoch."""
    first_epochs: list[float] = field(default_factory=list)
    """Seconds from each trial's start to the end of its first epoch."""
    epochs: list[float] = field(default_factory=list)  # seconds of the epochs after a trial's first one
    with_first_epoch: set[str] = field(default_factory=set)

    def sweep_started(self, num_trials: int | None, num_ended: int) -> None:
        self.num_trials = num_trials
        # For the further seeds of a race the sweep starts again: its numbers and its time go on.
        if not self.numbers:
            self.num_ended_before, self.started = num_ended, time.monotonic()

    def trial_started(self, trial: TrialFolder) -> None:
        self._number(trial)
        self.marks[trial.trial_id] = time.monotonic()

    def epoch_ended(self, trial: TrialFolder, metrics: Mapping[str, Any]) -> None:
        self.time_epoch(trial)
        loss, to_audio, to_text = (
            measured and f"{words} {measured}"
            for words, measured in zip(
                ("loss", "validation text>audio R@1", "audio>text R@1"), numbers_of(metrics), strict=True
            )
        )
        epoch = f"epoch {metrics['epoch']}/{self.epochs_of(trial)}"
        self.echo("  ".join(filter(None, [self._head(trial), epoch, loss, to_audio, to_text, self.clock()])))

    def clock(self) -> str:
        """The elapsed time, and the remaining time if it can be estimated."""
        seconds_left = self._seconds_left()
        elapsed = f"{minutes(time.monotonic() - self.started)} gone"
        return elapsed + (f", about {minutes(seconds_left)} left" if seconds_left is not None else "")

    def time_epoch(self, trial: TrialFolder) -> None:
        """Record the duration of an epoch, for the estimate of the remaining time."""
        self.epochs_ended += 1
        now, begun = time.monotonic(), self.marks.get(trial.trial_id)
        self.marks[trial.trial_id] = now
        if begun is not None:
            is_first = trial.trial_id not in self.with_first_epoch
            self.with_first_epoch.add(trial.trial_id)
            (self.first_epochs if is_first else self.epochs).append(now - begun)

    def trial_finished(self, trial: TrialFolder) -> None:
        self.marks.pop(trial.trial_id, None)
        result = trial.result()
        early = f", ended by train.patience after epoch {self._spared(trial)}" if result["out_of_patience"] else ""
        self.echo(f"{self._head(trial)}  finished{early}, best epoch {result['best_epoch']}")

    def trial_stopped(self, trial: TrialFolder) -> None:
        self.marks.pop(trial.trial_id, None)
        self.echo(f"{self._head(trial)}  stopped early, after {counted(self._spared(trial), 'epoch')}")

    def trial_lost(self, trial: TrialFolder) -> None:
        self.marks.pop(trial.trial_id, None)
        self.echo(f"{self._head(trial)}  its node was lost; it will go on from its last checkpoint")

    def trial_failed(self, trial: TrialFolder, error: str) -> None:
        self.marks.pop(trial.trial_id, None)
        self._spared(trial)
        self.echo(f"{self._head(trial)}  FAILED: {error}")

    def _spared(self, trial: TrialFolder) -> int:
        """Count the remaining epochs of a trial that has ended early as done; returns the epochs that it trained."""
        epochs = len(trial.epochs())
        self.epochs_ended += max(self.epochs_of(trial) - epochs, 0)
        return epochs

    def epochs_of(self, trial: TrialFolder) -> int:
        """The number of epochs that a trial is to train, which a sweep may vary."""
        return int(trial.describe()["overrides"].get("train.epochs", self.epochs_per_trial))

    def _head(self, trial: TrialFolder) -> str:
        of_all = f"/{self.num_trials}" if self.num_trials is not None else ""
        return f"[{self._number(trial):>2}{of_all}] {trial.describe()['name']}"

    def _number(self, trial: TrialFolder) -> int:
        """The trial's number in the order in which trials started, or ended without a start."""
        if trial.trial_id not in self.numbers:
            self.numbers[trial.trial_id] = self.num_ended_before + len(self.numbers) + 1
            # The epochs that a resumed trial has already, and those by which one is shorter than the others, are not to come.
            self.epochs_ended += len(trial.epochs()) + self.epochs_per_trial - self.epochs_of(trial)
        return self.numbers[trial.trial_id]

    def _seconds_left(self) -> float | None:
        """The time of the epochs and start-ups still to come, as many at a time as run now; None until an epoch was timed.

        The start of Ray and of the first trials does not count: a trial of seconds waits longer for them than it trains.
        """
        epochs = self.epochs if self.epochs or self.epochs_per_trial > 1 else self.first_epochs
        if not epochs or self.num_trials is None:
            return None
        epoch = sum(epochs) / len(epochs)
        start_up = max(min(self.first_epochs, default=0) - epoch, 0)
        trials = self.num_trials - self.num_ended_before
        epochs_left = max(trials * self.epochs_per_trial - self.epochs_ended, 0)
        starts_left = max(trials - len(self.numbers), 0)
        return (epochs_left * epoch + starts_left * start_up) / max(len(self.marks), 1)


def numbers_of(metrics: Mapping[str, Any]) -> tuple[str, str, str]:
    """An epoch's loss and its R@1 in both directions as text; empty if missing."""
    report = EpochReport(metrics)
    loss, measured = report.group("train").get("loss"), report.validation
    recalls = (measured.get(Metric(direction, TRAINED, "recall_at_1")) for direction in DIRECTIONS)
    to_audio, to_text = ("" if recall is None else f"{100 * recall:.1f}%" for recall in recalls)
    return "" if loss is None else f"{loss:.3f}", to_audio, to_text


class FirstEpoch(SweepListener):
    """Prints once the parts of the time until the first epoch ended: imports, Ray, data and features, start, epoch."""

    def __init__(self, echo: Echo = print) -> None:
        self.echo, self.is_said = echo, False
        self.parts = {"imports": time.time() - psutil.Process().create_time()}
        self.starts: dict[str, float] = {}

    def inputs_ready(self, seconds: Mapping[str, float]) -> None:
        self.parts |= seconds

    def trial_started(self, trial: TrialFolder) -> None:
        self.starts[trial.trial_id] = time.monotonic()

    def epoch_ended(self, trial: TrialFolder, metrics: Mapping[str, Any]) -> None:
        begun = self.starts.get(trial.trial_id)
        # A resumed trial reports its earlier epochs at once.
        if self.is_said or begun is None or metrics.get("epoch") != 1:
            return
        self.is_said = True
        epoch = sum(metrics.get(f"seconds/{part}", 0.0) for part in ("train", "validation", "checkpoint"))
        passed = time.monotonic() - begun
        parts = {**self.parts, "start of the trial": max(passed - epoch, 0.0), "epoch": min(epoch, passed)}
        named = ", ".join(f"{name} {seconds:.1f}" for name, seconds in parts.items())
        self.echo(f"first epoch {sum(parts.values()):.1f} s after the command: {named}")


@dataclass
class FirstEstimate(SweepListener):
    """Prints which estimate precedes a trial's first epoch, since it may take minutes; once for trials with the same one."""

    experiment: Experiment
    echo: Echo = print
    said: set[str] = field(default_factory=set)

    def trial_started(self, trial: TrialFolder) -> None:
        experiment = with_languages(override(self.experiment, trial.describe()["overrides"]))
        split = experiment.data.train_split
        estimated = estimated_first(experiment, lambda: split_sizes(experiment).get(split, 0))
        # A resumed trial with an epoch has its estimate.
        if estimated and estimated not in self.said and not trial.epochs():
            self.said.add(estimated)
            self.echo(estimated)
