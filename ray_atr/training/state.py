"""What changes while a run trains, and all of it: a checkpoint holds this and nothing else."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ray_atr.experiment import NOT_DECIDING, Experiment, resolved, stored_experiment
from ray_atr.knowledge.memory import Memory
from ray_atr.models.retriever import Retriever
from ray_atr.objectives.correspondence import Estimator
from ray_atr.override import flatten
from ray_atr.training.checkpoint import random_state, restore_random_state
from ray_atr.training.group import WorkerGroup


@dataclass
class Progress:
    """Where a run stands."""

    epoch: int = 0
    """epochs that are whole"""
    step_in_epoch: int = 0
    best_epoch: int = 0
    best_value: float = -math.inf
    history: list[dict[str, Any]] = field(default_factory=list)
    """what was reported of each epoch"""
    sums: dict[str, float] = field(default_factory=dict)
    """of the scalars of this epoch's steps"""
    seconds: float = 0.0
    """of training, validation and checkpoints left out"""
    unvalidated: dict[str, Any] | None = None
    """the row of the last epoch while it is validated beside training"""

    def add(self, scalars: dict[str, float], seconds: float) -> None:
        """A step is done."""
        self.step_in_epoch += 1
        self.seconds += seconds
        for name, value in scalars.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def end_epoch(self, steps: int) -> dict[str, float]:
        """An epoch is done: the means of its steps' scalars."""
        means = {name: value / steps for name, value in self.sums.items()}
        self.epoch, self.step_in_epoch, self.sums = self.epoch + 1, 0, {}
        return means

    def is_best(self, value: float, epoch: int) -> bool:
        """Whether an epoch's validation is the best so far, which it then is."""
        if value > self.best_value:
            self.best_value, self.best_epoch = value, epoch
        return self.best_epoch == epoch

    @property
    def last_row(self) -> dict[str, Any]:
        """What is known of the last epoch that is whole; empty before the first."""
        return self.unvalidated or (self.history[-1] if self.history else {})

    @property
    def reported(self) -> int:
        """Epochs whose rows are complete."""
        return len(self.history)

    def is_stuck(self, patience: int) -> bool:
        """Whether the last `patience` epochs that were reported brought no better validation; never with 0."""
        return patience > 0 and self.reported - self.best_epoch >= patience


@dataclass
class TrainState:
    """One worker's."""

    retriever: Retriever
    """what is trained; frozen towers whose vectors are read are stood in for"""
    whole: Retriever
    """the same with the towers themselves, to be saved"""
    optimizer: Optimizer
    scheduler: LRScheduler
    memory: Memory
    """what it remembers beyond the batch"""
    estimator: Estimator
    """who is believed to be a true pair"""
    progress: Progress = field(default_factory=Progress)
    unvalidated_weights: dict[str, torch.Tensor] = field(default_factory=dict)
    """those of the epoch `progress.unvalidated`, on the first worker, which saves them if they are the best"""
    _copy: Future[dict[str, torch.Tensor]] | None = None
    _copier: ThreadPoolExecutor = field(default_factory=partial(ThreadPoolExecutor, 1, "weights-copy"))

    def published_weights(self) -> Future[dict[str, torch.Tensor]]:
        """A copy of what is trained, for a knowledge base. It is made beside the step; `before_update` waits for it."""
        self._copy = self._copier.submit(copied, self.retriever.trained_state())
        return self._copy

    def before_update(self) -> None:
        """To be called before the weights change."""
        if self._copy is not None:
            self._copy.result()
            self._copy = None

    def state_dict(self, group: WorkerGroup) -> dict[str, Any]:
        """Tensors and plain values. Every worker takes part: each has random generators, and a base to wait for, of its own."""
        return {
            "model": self.retriever.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "progress": vars(self.progress),
            "random": group.gather_objects(random_state()),
            "memory": self.memory.state_dict(),
            "correspondence": self.estimator.state_dict(),
            "unvalidated_weights": self.unvalidated_weights,
        }

    def load_state_dict(self, state: dict[str, Any], group: WorkerGroup) -> None:
        """Continue from where `state_dict` was taken, bit for bit on as many workers."""
        self.retriever.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.progress = Progress(**state["progress"])
        if group.rank < len(state["random"]):
            restore_random_state(state["random"][group.rank])
        self.memory.load_state_dict(state["memory"])
        if "correspondence" in state:
            self.estimator.load_state_dict(state["correspondence"])
        self.unvalidated_weights = state.get("unvalidated_weights", {})


def copied(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors as they are now, on the CPU."""
    return {name: value.detach().to("cpu", copy=True) for name, value in state.items()}


def deciding_settings(experiment: Experiment) -> str:
    """The settings that decide a run's weights, as text: a checkpoint of others must not be taken up."""
    flat = flatten(resolved(experiment))
    return json.dumps({k: v for k, v in flat.items() if not k.startswith(NOT_DECIDING)}, sort_keys=True)


def is_of(state: dict[str, Any], experiment: Experiment) -> bool:
    """Whether a checkpoint is one of the experiment; settings that it does not know yet have their defaults."""
    return deciding_settings(stored_experiment(json.loads(state["experiment"]))) == deciding_settings(experiment)
