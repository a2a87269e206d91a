"""Reports on their way through Tune, which keeps statistics of every number that it sees."""

from __future__ import annotations

import math

from ray.tune.experiment import Trial

from ray_atr.training.ray_train import METRICS, packed, unpacked

REPORT = {"epoch": 2, "best_epoch": 1, "step": 6, "train/loss": 0.1 + 0.2, "train/odd": math.nan, "seconds/train": 1.5}


def test_what_is_packed_comes_back_and_tune_adds_nothing() -> None:
    result = {**packed(REPORT, ["train/loss", "text_to_audio/eng/recall_at_1"]), "training_iteration": 2, "config": {}}
    found = unpacked(result)
    assert math.isnan(found.pop("train/odd"))
    assert found == {name: value for name, value in REPORT.items() if name != "train/odd"}
    assert unpacked({"training_iteration": 1}) == {}


def test_tune_sees_the_compared_metrics_alone() -> None:
    trial = Trial("a_trainable", stub=True)
    many = {f"text_to_audio/eng/metric_{number}": 0.5 for number in range(300)}
    trial.update_last_result({**packed({**REPORT, **many}, ["train/loss"]), "training_iteration": 1})
    kept = set(trial.run_metadata.metric_analysis)
    assert {"epoch", "train/loss"} <= kept
    assert not any("metric_" in name for name in kept)
    assert METRICS not in kept
