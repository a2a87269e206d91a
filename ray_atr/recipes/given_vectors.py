"""Heads on vectors that a user has already, of clips and of captions: no tower runs."""

from __future__ import annotations

from ray_atr.experiment import Experiment
from ray_atr.override import override


def vectors() -> Experiment:
    """Two linear-ReLU-linear heads on a data set that `ray-atr prepare vectors` made: seconds a run on one CPU core."""
    return override(
        Experiment(),
        {
            "data.source": "data/vectors",
            "model.audio": "vectors",
            "model.text": "vectors",
            "model.projection": "mlp",
            "model.embedding_width": 256,
            "train.epochs": 20,
            "train.batch_size": 64,
            "train.learning_rate": 2e-3,
            # Processes of their own, for workers or for reading, would take longer to start than a trial trains.
            "scaling.workers": 0,
            "scaling.ray_data": False,
        },
    )
