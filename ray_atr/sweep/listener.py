"""Who is told of a sweep's events, and how a sweep ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ray_atr.run_folder import TrialFolder


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


@dataclass(frozen=True)
class SweepResult:
    """How a sweep ended: trial ids by their fate."""

    finished: list[str]
    failed: list[str]
    unfinished: list[str]
    stopped: list[str]
    """Ended early by a scheduler."""
    is_out_of_time: bool = False
    """Whether `hours` ended it; what is unfinished can then be given more."""
    common_failure: str | None = None
    """The one reason for which every trial failed, which ended it."""
