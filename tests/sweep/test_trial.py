"""What a trial's process tells Tune, with Tune's own session in the test's hands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ray import tune

from ray_atr.sweep.tune_bridge import run_in_tune
from ray_atr.training.ray_train import unpacked
from ray_atr.training.run_folder import RunFolder, TrialFolder
from tests.support.tiny import make_data, tiny


class Session:
    """Keeps what is reported."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stop_after = 1000
        self.reports: list[Any] = []
        monkeypatch.setattr(tune, "report", self.report)

    def report(self, metrics: dict[str, Any]) -> None:
        self.reports.append(unpacked(metrics))
        if len(self.reports) == self.stop_after:
            raise StopIteration

    def epochs(self) -> list[int]:
        return [metrics["epoch"] for metrics in self.reports if not metrics.get("is_final")]


def new_trials(home: Path, *rates: float) -> tuple[RunFolder, list[TrialFolder]]:
    experiment = tiny(make_data(home / "tones"), scaling__workers=0, scaling__ray_data=False, train__epochs=4)
    run = RunFolder.create(home / "run", experiment, {"name": "test"})
    return run, [run.add_trial({"train.learning_rate": rate}) for rate in rates]


def run_trial(session: Session, run: RunFolder, trial: TrialFolder, home: Path) -> None:
    run_in_tune({"trial_id": trial.trial_id}, run=str(run.path), home=str(home))
    for metrics in session.reports:
        if not metrics.get("is_final"):
            trial.add_epoch(metrics)


def test_a_resumed_sweep_reports_the_earlier_epochs_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, (trial,) = new_trials(tmp_path, 0.003)
    session = Session(monkeypatch)
    session.stop_after = 2
    with pytest.raises(StopIteration):
        run_trial(session, run, trial, tmp_path)
    session.stop_after = 1000
    run_trial(session, run, trial, tmp_path)
    assert session.epochs() == [1, 2, 1, 2, 3, 4]
