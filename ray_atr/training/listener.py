"""The base class of what is called with a sweep's events. It is beside the run folder because trackers, which derive from it, do
not depend on the sweep.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray_atr.training.run_folder import TrialFolder


class SweepListener:
    """Called with a sweep's events in the driver; trackers and progress displays derive from it."""

    def sweep_started(self, num_trials: int | None, num_ended: int) -> None:
        """`num_trials` in the sweep (None: it runs until its time is over), of which `num_ended` had ended before."""

    def inputs_ready(self, seconds: Mapping[str, float]) -> None:
        """Ray has started and the data of all listed points is prepared; `seconds` of each."""

    def trial_changed(self, trial: TrialFolder) -> None:
        """The default of all events below. The run folder holds what happened."""

    def trial_started(self, trial: TrialFolder) -> None:
        self.trial_changed(trial)

    def epoch_ended(self, trial: TrialFolder, metrics: Mapping[str, Any]) -> None:
        self.trial_changed(trial)

    def trial_finished(self, trial: TrialFolder) -> None:
        self.trial_changed(trial)

    def trial_stopped(self, trial: TrialFolder) -> None:
        """A scheduler ended the trial early."""
        self.trial_changed(trial)

    def trial_lost(self, trial: TrialFolder) -> None:
        """Its node was lost; it will start again, and go on from its last checkpoint."""
        self.trial_changed(trial)

    def trial_failed(self, trial: TrialFolder, error: str) -> None:
        self.trial_changed(trial)
