"""The cost of a trial, from measuring some of its steps and one of each of its other parts."""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from ray_atr.common.progress import silent
from ray_atr.metrics.epoch_report import EpochReport
from ray_atr.objectives.knowledge.knowledge import KnowledgeBaseObjective
from ray_atr.training.batch import TrainingData
from ray_atr.training.checkpoint import save_state
from ray_atr.training.clock import Clock
from ray_atr.training.encoding.texts import TextBatcher
from ray_atr.training.epoch_end import EpochEnd
from ray_atr.training.epoch_validation import EpochValidation
from ray_atr.training.experiment import Experiment
from ray_atr.training.group import WorkerGroup
from ray_atr.training.inputs import prepare
from ray_atr.training.knowledge_base.refresher import KEEP
from ray_atr.training.languages import with_languages
from ray_atr.training.loop import begin_epoch, final_report, group_for, step
from ray_atr.training.setup import first_state
from ray_atr.training.trajectory import TRAJECTORY
from ray_atr.training.unusual import naming_settings

WARM_STEPS, LEAST_STEPS, SECONDS = 2, 8, 3.0
"""Uncounted steps, which initialise; the least number of counted steps; and the least seconds of counted steps."""
AGAIN_SECONDS = 30.0
"""A validation that took less is measured again, without its one-time work."""


@dataclass
class Spent:
    """CPU seconds of all threads of this process, and wall-clock seconds."""

    cpu: float = 0.0
    wall: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.cpu + other.cpu, self.wall + other.wall)

    def __sub__(self, other: Spent) -> Spent:
        return Spent(max(self.cpu - other.cpu, 0.0), max(self.wall - other.wall, 0.0))

    def times(self, factor: float) -> Spent:
        return Spent(factor * self.cpu, factor * self.wall)


@dataclass
class TrialCost:
    """The cost of each part of a trial, done once. `total` multiplies each by how often it is done."""

    steps_per_epoch: int
    steps_measured: int = 0
    parts: dict[str, Spent] = field(default_factory=dict)
    """`start`, `step`, `first refresh`, `epoch's begin`, `epoch's end`, `validation`, `checkpoint`, `end`."""
    disk: int = 0
    """Bytes of a trial's folder after its first epoch."""
    weights: int = 0
    """Bytes that each further epoch adds: its weights, with `train.keep_trajectory`."""
    version: int = 0
    """Bytes that each further version of a knowledge base adds."""
    linked: int = 0
    """Bytes of them that on the disk of the home are links to its caches: the weights of frozen towers whose vectors are read."""
    memory: int = 0
    """Bytes of this process at its peak, Python and all libraries included."""
    gpu_memory: int = 0

    def total(self, experiment: Experiment) -> Spent:
        """The cost of the whole trial, if it trains all epochs."""
        epochs, every = experiment.train.epochs, experiment.evaluation.every_epochs
        times = {
            "start": 1,
            "step": self.steps_per_epoch * epochs,
            "first refresh": num_versions(experiment),
            "epoch's begin": epochs,
            "epoch's end": epochs,
            "validation": -(-epochs // every),
            "checkpoint": epochs,
            "end": 1,
        }
        if every_steps := experiment.train.checkpoint_every_steps:
            times["checkpoint"] += epochs * ((self.steps_per_epoch - 1) // every_steps)
        total = Spent()
        for part, spent in self.parts.items():
            total += spent.times(times[part])
        return total

    def disk_of(self, experiment: Experiment) -> int:
        """Bytes of the trial's folder at its end, if it trains all epochs."""
        versions = min(KEEP, num_versions(experiment))
        return self.disk + (experiment.train.epochs - 1) * self.weights + (versions - 1) * self.version


def num_versions(experiment: Experiment) -> int:
    """The versions of its knowledge base that a trial builds if it trains all epochs; 0 without a base."""
    knowledge = experiment.objective.knowledge
    if not isinstance(knowledge, KnowledgeBaseObjective):
        return 0
    return -(-experiment.train.epochs // (knowledge.refresh_every_epochs or experiment.train.epochs))


def measure_trial(experiment: Experiment, home: Path, folder: Path) -> TrialCost:
    """Run some steps of a trial, and once each of its other parts, in `folder`, which is empty and can be removed afterwards.

    In this process on its device, without Ray. The data set must be prepared. Raises ValueError or NonFiniteError as the trial
    itself would.
    """
    is_on_gpu = experiment.scaling.gpus_per_worker > 0 and torch.cuda.is_available()
    group = WorkerGroup(device=torch.device("cuda" if is_on_gpu else "cpu"))
    parts: dict[str, Spent] = {}
    with _measured(parts, "start", group):
        # So that the first epoch is validated.
        experiment = replace(with_languages(experiment), evaluation=replace(experiment.evaluation, every_epochs=1))
        clock = Clock()
        prepared = prepare(experiment, home, use_ray=False, echo=silent)
        group = group_for(experiment, group)
        data = TrainingData(experiment, prepared, group)
        state = first_state(data, folder)
        texts, epoch_end = TextBatcher(state.retriever), EpochEnd(data, state, folder)
        validation = EpochValidation(data, state, texts, folder, clock)
    cost = TrialCost(data.steps_per_epoch, parts=parts)
    progress, seconds = state.progress, []
    try:
        state.retriever.train()
        _, batches = next(data.epochs(0, 0, use_ray=False))
        begun: dict[str, Spent] = {}
        with _measured(begun, "begin", group):
            begin_epoch(state, data, 0)
        while progress.step_in_epoch < cost.steps_per_epoch:
            with _measured(begun, "step", group):
                batch = next(batches)
                with naming_settings(experiment):
                    result = step(state, data, texts, batch, clock)
            seconds.append(begun["step"])
            progress.add(result.scalars, clock.spent())
            counted = seconds[WARM_STEPS:]
            if len(counted) >= LEAST_STEPS and sum(spent.wall for spent in counted) >= SECONDS:
                break
        counted = seconds[WARM_STEPS:] or seconds[-1:]
        cost.steps_measured = len(counted)
        # The mean, not the median: some steps cost more than others in the run too.
        parts["step"] = sum(counted, Spent()).times(1 / len(counted))
        parts["start"] += sum(seconds[1:WARM_STEPS], Spent()) - parts["step"].times(len(seconds[1:WARM_STEPS]))
        is_refreshed = num_versions(experiment) > 0
        part = "first refresh" if is_refreshed else "start"
        parts[part] = parts.get(part, Spent()) + begun["begin"] + (seconds[0] - parts["step"])
        means = progress.end_epoch()
        with _measured(parts, "epoch's end", group):
            row = epoch_end.report(texts, batch, result, means)
        with _measured(parts, "validation", group):
            progress.history.extend(map(dict, validation.after_epoch(row)))
        if parts["validation"].wall < AGAIN_SECONDS:
            # The first one includes one-time work, and saves the retriever as the best so far.
            first, best_value = parts["validation"], progress.best_value
            progress.best_value = math.inf
            with _measured(parts, "validation", group):
                validation.after_epoch(EpochReport(row, epoch=row.epoch + 1))
            progress.best_value = best_value
            parts["start"] += first - parts["validation"]
        for _ in range(2):
            with _measured(parts, "checkpoint", group):
                save_state(state, data, folder, clock, None)
        if not is_refreshed:
            # Sample weights are estimated before each epoch but the first; the first estimate includes imports.
            with _measured(begun, "begin", group):
                begin_epoch(state, data, 1)
            with _measured(parts, "epoch's begin", group):
                begin_epoch(state, data, 2)
            parts["start"] += begun["begin"] - parts["epoch's begin"]
        with _measured(parts, "end", group):
            final_report(progress, data, folder, None)
    finally:
        validation.close()
        state.memory.close()
    # One epoch's weights and one version of a base.
    cost.disk, cost.weights, cost.version = map(_bytes, (folder, folder / TRAJECTORY, folder / "knowledge"))
    cost.linked = sum(file.stat().st_size for file in prepared.frozen_weights.values())
    cost.memory = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    cost.gpu_memory = torch.cuda.max_memory_allocated(group.device) if is_on_gpu else 0
    return cost


@contextmanager
def _measured(parts: dict[str, Spent], part: str, group: WorkerGroup) -> Iterator[None]:
    """Measure the block as a part, including work on the GPU."""
    cpu, wall = time.process_time(), time.perf_counter()
    yield
    if group.device.type == "cuda":
        torch.cuda.synchronize(group.device)
    parts[part] = Spent(time.process_time() - cpu, time.perf_counter() - wall)


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
