"""A sweep on a real Ray: trials are recorded, failures do not end it, nothing finished is repeated."""

from __future__ import annotations

import json
import logging
import signal
from pathlib import Path
from typing import Any

import pytest

from ray_atr.common.storage import StorageError
from ray_atr.sweep import SweepListener, sweep
from ray_atr.training.checkpoint import load_checkpoint
from ray_atr.training.run_folder import FAILED, RunFolder, make_trial_id
from tests.support.tiny import new_run

pytestmark = pytest.mark.ray

POINTS = [{"objective": name, "data.noise.ratio": 0.2, "seed": 0} for name in ("contrastive", "m_ltm_pot")]


class Listener(SweepListener):
    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def trial_started(self, trial: Any) -> None:
        self.events.append(("started", trial.trial_id))

    def trial_finished(self, trial: Any) -> None:
        self.events.append(("finished", trial.trial_id))

    def trial_failed(self, trial: Any, error: str) -> None:
        self.events.append(("failed", error))


def run_of_two_epochs(home: Path, name: str, **changes: Any) -> RunFolder:
    return new_run(home, name, {"varied": ["objective"], "seeds": [0]}, train__epochs=2, **changes)


@pytest.mark.usefixtures("ray_session")
def test_trials_are_recorded_and_not_repeated_and_a_failed_one_only_when_asked(
    home: Path, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    run = run_of_two_epochs(home, "recorded", scaling__workers=0)
    # Found when the trial runs, like any mistake that cannot be seen before. The others run after it.
    points = [{"seed": 1, "train.learning_rate": 1e30}, *POINTS]
    listener = Listener()
    on_interrupt = signal.getsignal(signal.SIGINT)
    of_tune = logging.getLogger("ray.tune.execution.tune_controller")
    of_tune.addHandler(caplog.handler)
    request.addfinalizer(lambda: of_tune.removeHandler(caplog.handler))
    result = sweep(run, points, home, listeners=[listener], concurrency=1, echo=lambda message: None)
    assert signal.getsignal(signal.SIGINT) is on_interrupt
    assert sorted(result.finished) == sorted(make_trial_id(point) for point in POINTS)
    for trial_id in result.finished:
        trial = run.trial(trial_id)
        assert [row["epoch"] for row in trial.epochs()] == [1, 2]
        outcome = json.loads((trial.folder / "result.json").read_text())
        assert 0 <= outcome["test"]["text_to_audio/fra/recall_at_1"] <= 1
        assert outcome["last"]["audio_to_text/mean/recall_at_10"] >= 0
    assert result.failed == [make_trial_id(points[0])]
    failed = run.trial(result.failed[0]).describe()
    assert failed["status"] == FAILED
    assert "NaN or infinite" in failed["error"]
    assert ("failed", failed["error"]) in listener.events
    # Tune would add forty lines of Ray's insides.
    assert not caplog.records
    again = Listener()
    assert sweep(run, points, home, listeners=[again], echo=lambda message: None).finished == result.finished
    assert again.events == []
    sweep(run, points, home, listeners=[again], retry_failed=True, use_ray=False, echo=lambda message: None)
    assert [event for event, _ in again.events] == ["started", "failed"]


@pytest.mark.usefixtures("ray_session")
def test_a_sweep_whose_first_trials_all_fail_for_one_reason_stops(home: Path) -> None:
    run = run_of_two_epochs(home, "all-failing", scaling__workers=0, scaling__ray_data=False)
    data = home / "tones"

    def lose_the_data(message: str) -> None:
        # Said after the checks: no trial finds what it needs.
        if "at a time" in message:
            data.rename(home / "lost")

    points = [{"seed": seed} for seed in range(6)]
    try:
        result = sweep(run, points, home, concurrency=1, echo=lose_the_data)
    finally:
        (home / "lost").rename(data)
    assert "no data set" in str(result.common_failure)
    assert (len(result.failed), len(result.unfinished)) == (3, 3)
    mended = sweep(run, points, home, retry_failed=True, use_ray=False, echo=lambda message: None)
    assert (len(mended.finished), mended.common_failure) == (6, None)


@pytest.mark.usefixtures("ray_session")
def test_an_unfinished_trial_goes_on_from_its_checkpoint(home: Path) -> None:
    run = run_of_two_epochs(home, "resumed", scaling__workers=0, scaling__ray_data=False)
    sweep(run, [{"seed": 0}], home, use_ray=False, echo=lambda message: None)
    trial = next(iter(run.trials()))
    expected = load_checkpoint(trial.folder / "last")["model"]
    rows = trial.epochs()
    # As a kill between the last epoch and the result leaves it.
    (trial.folder / "result.json").unlink()
    listener = Listener()
    sweep(run, [{"seed": 0}], home, listeners=[listener], echo=lambda message: None)
    assert trial.is_finished
    assert trial.epochs() == rows
    found = load_checkpoint(trial.folder / "last")["model"]
    assert all(expected[name].equal(found[name]) for name in expected)


@pytest.mark.usefixtures("ray_session")
def test_storage_that_vanishes_ends_the_sweep_by_name(home: Path) -> None:
    run = run_of_two_epochs(home, "vanishing", scaling__workers=0, scaling__ray_data=False)

    class Vanish(SweepListener):
        def epoch_ended(self, trial: Any, metrics: Any) -> None:
            # In one step, and once: the trial goes on writing.
            if not (home / "gone").exists():
                run.path.rename(home / "gone")

    with pytest.raises(StorageError, match=r"vanishing/trials/.*: the storage cannot be used \(No such file"):
        sweep(run, POINTS, home, listeners=[Vanish()], concurrency=1, echo=lambda message: None)
    with pytest.raises(ValueError, match="not a run folder"):
        RunFolder.open(run.path)


@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"train.batch_size": 64}, "train.batch_size: got 64; allowed at most 24"),
        ({"data.languages": "eng,jpn"}, "data.languages: jpn not in"),
        ({"scaling.gpus_per_worker": 1.0}, "scaling.gpus_per_worker: got 1.0"),
        ({"data.noise.ratio": 1.2}, r"data.noise.ratio: got 1.2; allowed \[0, 1\)"),
        ({"objective": "m_ltn"}, "objective: got 'm_ltn'.*did you mean m_ltm"),
        ({"data.train_split": "tarin"}, "data.train_split: got 'tarin'"),
        (
            {"evaluation.select_by": "text_to_audio/eng/recall_at_3"},
            "evaluation.select_by: got .*did you mean text_to_audio",
        ),
    ],
)
def test_what_cannot_run_is_refused_before_anything_starts(home: Path, change: dict[str, Any], words: str) -> None:
    run = run_of_two_epochs(home, "refused-" + next(iter(change)), scaling__workers=0)
    with pytest.raises(ValueError, match=words):
        sweep(run, [change], home, echo=lambda message: None)
