"""Validation beside training as a Ray actor, which keeps its towers and data from one epoch to the next."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ray
import torch
from torch import Tensor

from ray_atr.experiment import Experiment
from ray_atr.metrics.metric import Metric
from ray_atr.runtime import WORKER_CPU_SHARE, here_if_there_is_room
from ray_atr.training.epoch_validation import SplitValidator
from ray_atr.training.inputs import Prepared


class ValidatorActor(SplitValidator):
    """Computes with the threads that it is given CPUs for."""

    def __init__(self, experiment: Experiment, prepared: Prepared) -> None:
        torch.set_num_threads(max(1, int(experiment.scaling.cpus_per_validation)))
        super().__init__(experiment, prepared)


class ActorValidator:
    """A `Validator` that hands the weights to an actor. An actor that dies starts again, and measures again."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self.measured: Any = None

    def begin(self, weights: Mapping[str, Tensor]) -> None:
        """Start to measure; returns at once."""
        self.measured = self.actor.measure.remote(dict(weights))

    def metrics(self) -> dict[Metric, float]:
        """What was measured last, once it is known."""
        return ray.get(self.measured)  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the actor."""
        ray.kill(self.actor)


def start_validator(experiment: Experiment, prepared: Prepared) -> ActorValidator:
    """Start the actor: on this node if there is room, else on another. It ends with the process that starts it."""
    scaling = experiment.scaling
    actor = ray.remote(ValidatorActor).options(
        num_cpus=scaling.cpus_per_validation * WORKER_CPU_SHARE,
        num_gpus=scaling.gpus_per_validation,
        max_restarts=-1,
        max_task_retries=-1,
        scheduling_strategy=here_if_there_is_room(),
    )
    return ActorValidator(actor.remote(experiment, prepared))
