"""Trials one after the other in this process, without Ray."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ray_atr.storage import is_there
from ray_atr.sweep.common_failure import CommonFailure
from ray_atr.sweep.listener import SweepListener
from ray_atr.sweep.recording import Recording
from ray_atr.sweep.trial import experiment_of
from ray_atr.sweep.trial_queue import TrialQueue
from ray_atr.training.ray_train import ERROR_FILE, run_trial


def run_in_process(
    queue: TrialQueue, home: Path, listeners: Sequence[SweepListener], deadline: float | None
) -> str | None:
    """Train what the queue hands out until it has no more, the deadline is past, or every trial so far failed for one reason.

    That reason is returned.
    """
    failure = CommonFailure()
    recording = Recording(listeners, failure)
    while failure.reason is None and (deadline is None or time.monotonic() < deadline):
        trial = queue.next()
        if trial is None:
            break
        error = trial.folder / ERROR_FILE
        error.unlink(missing_ok=True)
        recording.started(trial)
        run_trial(experiment_of(queue.run, trial), trial.folder, home, [], partial(recording.reported, trial))
        if is_there(error):
            recording.failed(trial, error.read_text(encoding="utf-8").strip())
        else:
            recording.ended(trial)
    return failure.reason
