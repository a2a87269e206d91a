"""Word that a node of the run is about to be taken away, as clouds give it some 30 to 120 seconds before."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ray_atr.training.group import WorkerGroup

ASK_EVERY = 5.0
"""Seconds between two questions: each makes all workers wait for each other."""


class PreemptionNotices:
    """Says, once for each node that is to be taken away, that a checkpoint is due; called by all workers after the same steps.

    `ask` is `ray.train.get_preemption_info`: None, or what names the nodes. It waits until every worker has asked, so the
    workers first agree that it is time.
    """

    def __init__(
        self, ask: Callable[[], Any], *, every: float = ASK_EVERY, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.ask, self.every, self.clock = ask, every, clock
        self.asked = clock()
        self.nodes: set[str] = set()

    def __call__(self, group: WorkerGroup) -> bool:
        if not group.any(self.clock() - self.asked >= self.every):
            return False
        self.asked = self.clock()
        info = self.ask()
        new = set(info.preempted_node_to_ranks) - self.nodes if info is not None else set()
        self.nodes |= new
        return bool(new)
