"""A sweep's progress as lines that a person can follow."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ray_atr.run_folder import TrialFolder
from ray_atr.sweep.listener import SweepListener
from ray_atr.training.prepare import Say


@dataclass
class ConsoleProgress(SweepListener):
    """A line an epoch that a person can follow: which trial, which epoch, recall so far, time gone and left."""

    epochs_per_trial: int
    say: Say = print
    num_trials: int | None = None
    num_ended_before: int = 0
    started: float = field(default_factory=time.monotonic)
    epochs_ended: int = 0
    numbers: dict[str, int] = field(default_factory=dict)

    def sweep_started(self, num_trials: int | None, num_ended: int) -> None:
        self.num_trials, self.num_ended_before = num_trials, num_ended
        self.started = time.monotonic()

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
            self._head(trial),
            f"epoch {metrics['epoch']}/{self.epochs_per_trial}",
            *([f"loss {loss:.3f}"] if loss is not None else []),
            *recall,
            self._clock(),
        ]
        self.say("  ".join(words))

    def trial_finished(self, trial: TrialFolder) -> None:
        self.say(f"{self._head(trial)}  finished")

    def trial_stopped(self, trial: TrialFolder) -> None:
        # The epochs that it was spared are no longer to come.
        self.epochs_ended += max(self.epochs_per_trial - len(trial.epochs()), 0)
        self.say(f"{self._head(trial)}  stopped early, after {len(trial.epochs())} epochs")

    def trial_failed(self, trial: TrialFolder, error: str) -> None:
        self.say(f"{self._head(trial)}  FAILED: {error}")

    def _head(self, trial: TrialFolder) -> str:
        of_all = f"/{self.num_trials}" if self.num_trials is not None else ""
        return f"[{self._number(trial):>2}{of_all}] {trial.describe()['name']}"

    def _number(self, trial: TrialFolder) -> int:
        return self.numbers.setdefault(trial.trial_id, self.num_ended_before + len(self.numbers) + 1)

    def _clock(self) -> str:
        gone = time.monotonic() - self.started
        if self.num_trials is None:
            return f"{_minutes(gone)} gone"
        total = (self.num_trials - self.num_ended_before) * self.epochs_per_trial
        left = gone / max(self.epochs_ended, 1) * max(total - self.epochs_ended, 0)
        return f"{_minutes(gone)} gone, about {_minutes(left)} left"


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
