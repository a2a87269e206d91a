"""Experiments on the synthetic soundscapes, which need no data and no GPU."""

from __future__ import annotations

from ray_atr.experiment import Experiment
from ray_atr.override import override


def quickstart() -> Experiment:
    """The synthetic soundscapes and two small towers: seconds an epoch on one CPU core."""
    return override(
        Experiment(),
        {
            "train.epochs": 7,
            "train.batch_size": 64,
            "train.learning_rate": 2e-3,
            # A worker process of its own would take longer to start than a short trial trains.
            "scaling.workers": 0,
            "evaluation.validation_captions": 1,
        },
    )
