"""The line that splits the time until the first epoch."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from ray_atr.sweep.progress import FirstEpoch


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    return clock


def trial(name: str) -> Any:
    return SimpleNamespace(trial_id=name)


def listener(said: list[str]) -> FirstEpoch:
    first = FirstEpoch(said.append)
    first.parts["imports"] = 2.0
    first.inputs_ready({"Ray": 4.0, "data and features": 6.0})
    return first


def test_the_parts_add_up_to_the_time_and_are_said_once(now: list[float]) -> None:
    said: list[str] = []
    first = listener(said)
    first.trial_started(trial("a"))
    first.trial_started(trial("b"))
    now[0] += 8
    first.epoch_ended(trial("a"), {"epoch": 1, "seconds/train": 2.5, "seconds/validation": 0.5})
    first.epoch_ended(trial("b"), {"epoch": 1, "seconds/train": 2.5})
    assert said == [
        "first epoch 20.0 s after the command: imports 2.0, Ray 4.0, data and features 6.0, start of the trial 5.0, epoch 3.0"
    ]


def test_the_epochs_of_before_of_a_resumed_trial_are_none(now: list[float]) -> None:
    said: list[str] = []
    first = listener(said)
    first.epoch_ended(trial("never started here"), {"epoch": 1})
    first.trial_started(trial("a"))
    first.epoch_ended(trial("a"), {"epoch": 3})
    assert said == []


def test_imports_are_counted_from_the_start_of_the_process() -> None:
    assert 0 < FirstEpoch().parts["imports"] < 24 * 3600
