"""The time from typing a command to the end of its first epoch, and what it went into."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import psutil

from ray_atr.run_folder import TrialFolder
from ray_atr.sweep.listener import SweepListener
from ray_atr.training.inputs import Say


class FirstEpoch(SweepListener):
    """Says once how long the first epoch took to come: imports, Ray, data and features, the trial's start, the epoch."""

    def __init__(self, say: Say = print) -> None:
        self.say, self.is_said = say, False
        self.parts = {"imports": time.time() - psutil.Process().create_time()}
        self.starts: dict[str, float] = {}

    def inputs_ready(self, seconds: Mapping[str, float]) -> None:
        self.parts |= seconds

    def trial_started(self, trial: TrialFolder) -> None:
        self.starts[trial.trial_id] = time.monotonic()

    def epoch_ended(self, trial: TrialFolder, metrics: Mapping[str, Any]) -> None:
        begun = self.starts.get(trial.trial_id)
        # A resumed trial reports the epochs of before at once.
        if self.is_said or begun is None or metrics.get("epoch") != 1:
            return
        self.is_said = True
        epoch = sum(metrics.get(f"seconds/{part}", 0.0) for part in ("train", "validation", "checkpoint"))
        passed = time.monotonic() - begun
        parts = {**self.parts, "start of the trial": max(passed - epoch, 0.0), "epoch": min(epoch, passed)}
        named = ", ".join(f"{name} {seconds:.1f}" for name, seconds in parts.items())
        self.say(f"first epoch {sum(parts.values()):.1f} s after the command: {named}")
