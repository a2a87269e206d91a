"""Epochs validated by a process of their own while the next one trains: the same run, reported one epoch later.

That a process on Ray does it is in test_two_nodes.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from ray.exceptions import RayActorError
from torch import Tensor

from ray_atr.metrics.metric import Metric
from ray_atr.models.retriever import Retriever
from ray_atr.sweep.placement import Placed, concurrent_trials, num_trials_that_fit, processes_of
from ray_atr.training import epoch_validation
from ray_atr.training.checks import check_experiment
from ray_atr.training.epoch_validation import SplitValidator, Validated, start_validator
from ray_atr.training.experiment import Experiment
from ray_atr.training.inputs import Prepared
from ray_atr.training.loop import train_trial
from ray_atr.training.run_folder import BEST
from tests.support.lost_workers import LostError, until_lost
from tests.support.tiny import MEASURED, prepared_for, tiny

Rows = list[dict[str, Any]]


class LateValidator:
    """Measures when it is asked for the result: by then the weights that are trained have moved on."""

    def __init__(self, experiment: Experiment, prepared: Prepared) -> None:
        self.validator = SplitValidator(experiment, prepared)
        self.weights: Mapping[str, Tensor] = {}
        self.is_closed = False

    def begin(self, weights: Mapping[str, Tensor]) -> None:
        self.weights = weights

    def measured(self) -> Validated:
        # A process of its own would not move the generator of the training.
        with torch.random.fork_rng():
            return self.validator.measure(self.weights)

    def close(self) -> None:
        self.is_closed = True


def run(experiment: Experiment, home: Path, folder: Path, **options: Any) -> Rows:
    reports: Rows = []
    train_trial(experiment, prepared_for(experiment, home), folder, reports.append, use_ray_data=False, **options)
    return reports


def without_times(rows: Rows) -> Rows:
    return [{name: value for name, value in row.items() if not name.startswith("seconds/")} for row in rows]


def same_weights(folder: Path, other: Path) -> bool:
    first, second = (Retriever.from_pretrained(one / BEST).state_dict() for one in (folder, other))
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"evaluation__every_epochs": 2},
        {"objective": "m_ltm", "model__text__dropout": 0.1},
        {"train__patience": 1, "train__learning_rate": 0.3},
    ],
)
def test_a_run_is_the_same_as_with_validation_between_epochs(
    home: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    experiment = tiny(home / "tones", train__epochs=4, **{**MEASURED, **changes})
    between = run(experiment, home, tmp_path / "between")
    beside = run(experiment, home, tmp_path / "beside", make_validator=LateValidator)
    assert without_times(beside) == without_times(between)
    assert same_weights(tmp_path / "beside", tmp_path / "between")


def test_an_epoch_is_reported_when_the_next_one_has_trained(home: Path, tmp_path: Path) -> None:
    experiment = tiny(home / "tones", train__epochs=3, **MEASURED)
    seen: list[tuple[str, int]] = []

    class Watched(LateValidator):
        def begin(self, weights: Mapping[str, Tensor]) -> None:
            seen.append(("begins", len([what for what, _ in seen if what == "begins"]) + 1))
            super().begin(weights)

    def report(row: dict[str, Any]) -> None:
        seen.append(("final" if row.get("is_final") else "reported", row["epoch"]))

    options = {"use_ray_data": False, "make_validator": Watched}
    train_trial(experiment, prepared_for(experiment, home), tmp_path, report, **options)
    # The end of epoch 2: what was measured of epoch 1 is taken, epoch 2 is handed over, epoch 1 is reported.
    expected = [
        ("begins", 1),
        ("begins", 2),
        ("reported", 1),
        ("begins", 3),
        ("reported", 2),
        ("reported", 3),
        ("final", 3),
    ]
    assert seen == expected


STOPPED: dict[str, Any] = {"train__checkpoint_every_steps": 2, **MEASURED}


@pytest.fixture(scope="module")
def never_stopped(home: Path) -> tuple[Path, Rows]:
    """The folder and the rows of a run with the settings of `STOPPED`."""
    folder = home / "never-stopped"
    return folder, run(tiny(home / "tones", **STOPPED), home, folder)


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "goes_on"), [(2, LateValidator), (4, LateValidator), (5, LateValidator), (5, None)])
def test_a_stopped_run_validates_what_it_had_begun_to(
    home: Path, tmp_path: Path, never_stopped: tuple[Path, Rows], steps: int, goes_on: Callable[..., Any] | None
) -> None:
    """Also where it goes on without a validator."""
    experiment = tiny(home / "tones", **STOPPED)
    folder, whole = never_stopped
    with pytest.raises(LostError):
        run(experiment, home, tmp_path / "run", make_validator=LateValidator, is_preempted=until_lost(steps))
    again = run(experiment, home, tmp_path / "run", make_validator=goes_on)
    assert without_times(again) == without_times(whole)
    assert same_weights(tmp_path / "run", folder)


@pytest.mark.parametrize("steps", [7, 9])
def test_patience_ends_a_run_that_goes_on_without_a_validator_where_it_would_have_ended(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """Whether it stopped while the epoch was validated that ended its patience, or at its end."""
    experiment = tiny(home / "tones", **STOPPED, train__epochs=4, train__patience=1)
    recall = Metric.parse(experiment.evaluation.select_by)

    def epochs(folder: Path, values: Iterator[float], **options: Any) -> list[int]:
        monkeypatch.setattr(epoch_validation, "validate", lambda *_: Validated({recall: next(values)}))
        return [row["epoch"] for row in run(experiment, home, folder, **options)]

    values = iter((0.5, 0.4))
    with pytest.raises(LostError) if steps < 9 else nullcontext():
        epochs(tmp_path / "run", values, make_validator=LateValidator, is_preempted=until_lost(steps))
    assert epochs(tmp_path / "run", values) == epochs(tmp_path / "whole", iter((0.5, 0.4))) == [1, 2, 2]


def test_a_run_ends_its_validator_when_it_fails(home: Path, tmp_path: Path) -> None:
    experiment = tiny(home / "tones")
    started: list[LateValidator] = []

    def start(*arguments: Any) -> LateValidator:
        started.append(LateValidator(*arguments))
        return started[0]

    with pytest.raises(LostError):
        run(experiment, home, tmp_path, make_validator=start, is_preempted=until_lost(1))
    assert [validator.is_closed for validator in started] == [True]


def test_it_needs_a_worker_and_counts_as_a_process(home: Path) -> None:
    changes = {"scaling__validate_beside": True, "scaling__cpus_per_validation": 2.0}
    with pytest.raises(ValueError, match=r"scaling\.validate_beside: got .*scaling\.workers=0"):
        check_experiment(tiny(home / "tones", scaling__workers=0, **changes))
    experiment = tiny(home / "tones", **changes)
    check_experiment(experiment)
    assert num_trials_that_fit(processes_of(experiment), [Placed({"CPU": 6.0})]) == 2
    assert num_trials_that_fit(processes_of(tiny(home / "tones")), [Placed({"CPU": 6.0})]) == 6
    with pytest.raises(
        ValueError, match=r"allowed 1 x that, and 1 process that encodes or validates, within the 2 CPUs"
    ):
        concurrent_trials([experiment], nodes=[Placed({"CPU": 2.0})])


class Killing:
    """Inputs that end the process which opens them, as where memory is full."""

    def on_this_node(self, experiment: Experiment) -> Prepared:
        os._exit(1)


@pytest.mark.ray
@pytest.mark.slow
def test_a_validator_that_dies_each_time_ends_the_run(home: Path, ray_session: None) -> None:
    prepared: Any = Killing()
    validator = start_validator(tiny(home / "tones", scaling__cpus_per_validation=0.5), prepared)
    validator.begin({})
    with pytest.raises(RayActorError):
        validator.measured()
    validator.close()
