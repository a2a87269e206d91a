"""What workers of Ray Train report reaches Tune, also the last report, after which the trial's function ends at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ray_atr.sweep.tune_bridge import _reports_of_workers


@pytest.mark.ray
@pytest.mark.timeout(120)
@pytest.mark.usefixtures("ray_session")
def test_no_report_is_lost_and_none_waits_for_ever(tmp_path: Path) -> None:
    from ray import tune

    # Ray's processes cannot import this file.
    expected, passed_on = [1, 2, 3, 4], _reports_of_workers

    def trial(config: dict[str, Any]) -> None:
        with passed_on() as callback:
            for epoch in expected:
                callback.after_report(None, [{"epoch": epoch}], None)

    class Recorder(tune.Callback):
        def __init__(self) -> None:
            self.epochs: dict[str, list[int]] = {}

        def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: dict[str, Any], **info: Any) -> None:
            self.epochs.setdefault(trial.trial_id, []).append(result["epoch"])

    recorder, trials = Recorder(), 6
    tuner = tune.Tuner(
        tune.with_resources(trial, {"cpu": 0.5}),
        tune_config=tune.TuneConfig(num_samples=trials, reuse_actors=True, max_concurrent_trials=2),
        run_config=tune.RunConfig(storage_path=str(tmp_path), verbose=0, callbacks=[recorder]),
    )
    tuner.fit()
    assert list(recorder.epochs.values()) == [expected] * trials
