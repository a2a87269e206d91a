"""A sweep is given up when three trials failed for one reason and none works; not before."""

from __future__ import annotations

from ray_atr.sweep.recording import CommonFailure


def failed(failure: CommonFailure, *reasons: str) -> CommonFailure:
    for number, reason in enumerate(reasons):
        failure.trial_failed(f"trial{number}", reason)
    return failure


def test_three_trials_that_fail_alike_are_enough() -> None:
    assert failed(CommonFailure(), "no data", "no data").reason is None
    assert failed(CommonFailure(), "no data", "no data", "no data").reason == "no data"


def test_a_reason_may_name_the_trials_own_files() -> None:
    reasons = [f"KeyError: 3 (trials/trial{number}/traceback.txt)" for number in range(3)]
    assert failed(CommonFailure(), *reasons).reason == "KeyError: 3 (trials/TRIAL/traceback.txt)"


def test_another_reason_or_a_trial_that_works_keeps_the_sweep_going() -> None:
    assert failed(CommonFailure(), "no data", "no data", "out of memory").reason is None
    assert failed(CommonFailure(has_succeeded=True), "no data", "no data", "no data").reason is None
    finished = CommonFailure()
    finished.trial_ended()
    assert failed(finished, "no data", "no data", "no data").reason is None


def test_a_trial_that_still_trains_keeps_the_sweep_going_until_it_fails_too() -> None:
    failure = CommonFailure()
    failure.epoch_ended("trial9")
    assert failed(failure, "no data", "no data", "no data").reason is None
    failure.trial_failed("trial9", "no data")
    assert failure.reason == "no data"
