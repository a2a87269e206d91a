"""Workers of Ray Train that are lost after some steps: in a module of its own, so that Ray's processes can import it."""

from __future__ import annotations

from typing import Any

from ray_atr.training import ray_train
from ray_atr.training.group import WorkerGroup


class LostError(Exception):
    """Stands for a node that is taken away."""


def until_lost(after: int) -> Any:
    """Gives notice once that many steps are done, and one step later the workers are gone."""
    steps = 0

    def is_preempted(group: WorkerGroup) -> bool:
        nonlocal steps
        steps += 1
        if steps > after:
            raise LostError
        return steps == after

    return is_preempted


train = ray_train.worker


def train_until_lost(after: int, config: dict[str, Any]) -> None:
    """What each Ray Train worker runs, until it is lost."""
    ray_train.PreemptionNotices = lambda ask: until_lost(after)  # type: ignore[assignment, misc]
    train(config)
