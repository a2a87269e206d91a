"""What a trial's process tells Tune, with Tune's own session in the test's hands."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray import tune
from tiny import make_data, tiny

from ray_atr.experiment import Experiment
from ray_atr.run_folder import RunFolder, TrialFolder
from ray_atr.space import Space
from ray_atr.sweep import Goal, RandomSearch, SweepPlan
from ray_atr.sweep.inheritance import perturbed_settings
from ray_atr.sweep.schedulers import make_scheduler
from ray_atr.sweep.tune_bridge import run_in_tune
from ray_atr.training.ray_train import unpacked


class Session:
    """Keeps what is reported, and the checkpoint that came with the last report as Tune would keep it."""

    def __init__(self, keep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.keep, self.stop_after = keep, 1000
        self.reports: list[Any] = []
        self.checkpoint: Path | None = None
        self.given: Path | None = None
        monkeypatch.setattr(tune, "report", self.report)
        monkeypatch.setattr(tune, "get_checkpoint", lambda: self.given and tune.Checkpoint(str(self.given)))

    def report(self, metrics: dict[str, Any], checkpoint: Any = None) -> None:
        self.reports.append(unpacked(metrics))
        if checkpoint is not None:
            self.checkpoint = Path(checkpoint.to_directory(str(self.keep / f"checkpoint-{len(self.reports)}")))
        if len(self.reports) == self.stop_after:
            raise StopIteration

    def epochs(self) -> list[int]:
        return [metrics["epoch"] for metrics in self.reports if not metrics.get("is_final")]


def new_trials(home: Path, *rates: float) -> tuple[RunFolder, list[TrialFolder]]:
    experiment = tiny(make_data(home / "tones"), scaling__workers=0, scaling__ray_data=False, train__epochs=4)
    run = RunFolder.create(home / "run", experiment, {"name": "test"})
    return run, [run.add_trial({"train.learning_rate": rate}) for rate in rates]


def run_trial(
    session: Session, run: RunFolder, trial: TrialFolder, home: Path, scheduler: str, **settings: Any
) -> None:
    run_in_tune({"trial_id": trial.trial_id, **settings}, run=str(run.path), home=str(home), scheduler=scheduler)
    for metrics in session.reports:
        if not metrics.get("is_final"):
            trial.add_epoch(metrics)


def test_a_paused_trial_reports_each_epoch_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, (trial,) = new_trials(tmp_path, 0.003)
    session = Session(tmp_path, monkeypatch)
    session.stop_after = 2
    with pytest.raises(StopIteration):
        run_trial(session, run, trial, tmp_path, "hyperband")
    for metrics in session.reports:
        trial.add_epoch(metrics)
    session.given, session.stop_after = session.checkpoint, 1000
    run_trial(session, run, trial, tmp_path, "hyperband")
    assert session.epochs() == [1, 2, 3, 4]
    assert session.reports[-1]["is_final"]


def test_a_resumed_sweep_reports_the_earlier_epochs_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, (trial,) = new_trials(tmp_path, 0.003)
    session = Session(tmp_path, monkeypatch)
    session.stop_after = 2
    with pytest.raises(StopIteration):
        run_trial(session, run, trial, tmp_path, "asha")
    session.stop_after = 1000
    run_trial(session, run, trial, tmp_path, "asha")
    assert session.epochs() == [1, 2, 1, 2, 3, 4]


def test_a_population_takes_over_another_trials_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, (good, bad) = new_trials(tmp_path, 0.003, 1e-7)
    session = Session(tmp_path, monkeypatch)
    session.stop_after = 2
    with pytest.raises(StopIteration):
        run_trial(session, run, good, tmp_path, "pbt", **{"train.learning_rate": 0.003})
    session.given, session.stop_after = session.checkpoint, 1000
    session.reports.clear()
    run_trial(session, run, bad, tmp_path, "pbt", **{"train.learning_rate": 0.0036})
    assert session.epochs() == [3, 4]
    assert [row["epoch"] for row in bad.epochs()] == [1, 2, 3, 4]
    assert perturbed_settings(bad) == {"train.learning_rate": 0.0036}
    # Its own checkpoint, after a pause, is nothing to take over.
    session.given = session.checkpoint
    run_trial(session, run, bad, tmp_path, "pbt", **{"train.learning_rate": 0.0036})
    assert len((bad.folder / "perturbed.json").read_text().split('"from"')) == 2


def test_a_perturbed_trial_keeps_its_folder_and_its_range(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", Experiment(), {"name": "test"})
    space = Space.parse(["train.learning_rate=loguniform(1e-4,1e-2)"], Experiment())
    plan = SweepPlan(RandomSearch(space), goals=(Goal("train/loss", is_maximised=False),), scheduler="pbt")
    trial = SimpleNamespace(config={"trial_id": run.add_trial({"train.learning_rate": 9e-3}).trial_id})
    scheduler = make_scheduler(plan, 10, run, []).scheduler_of(trial)
    donor, heir = (
        SimpleNamespace(config={"trial_id": name, "train.learning_rate": rate})
        for name, rate in (("a", 9e-3), ("b", 1e-4))
    )
    for _ in range(20):
        config, _operations = scheduler._get_new_config(heir, donor)
        assert config["trial_id"] == "b"
        assert 1e-4 <= config["train.learning_rate"] <= 1e-2
