"""A run's first state: the retriever with its first weights, its optimiser and the rate of each step, memory and estimator."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import ChainedScheduler, LambdaLR, LinearLR, LRScheduler, StepLR

from ray_atr.models.batch_norm import synchronise_batch_norms
from ray_atr.models.retriever import Retriever
from ray_atr.objectives.knowledge.knowledge import KnowledgeBaseObjective
from ray_atr.training.base_encoding import MakeRefresher, SourceEncoder
from ray_atr.training.batch import TrainingData
from ray_atr.training.checkpoint import TrainState
from ray_atr.training.correspondence import make_estimator
from ray_atr.training.experiment import Experiment, TrainSettings
from ray_atr.training.knowledge_base.memory import SnapshotMemory, make_memory
from ray_atr.training.knowledge_base.refresher import InProcessRefresher, Refresher


def first_state(data: TrainingData, folder: Path, make_refresher: MakeRefresher | None = None) -> TrainState:
    """The state before the first step. All workers have the same weights; each has its own seed for dropout."""
    experiment, prepared, group = data.experiment, data.prepared, data.group
    complete = prepared.first_retriever(experiment)
    if group.is_first:
        # What it will be saved with.
        complete.trained_captions = complete.trained_captions.joined(data.features.caption_sample)
    retriever = prepared.reading(complete)
    if experiment.scaling.shard_towers and group.size > 1:
        retriever.shard(group.device)
    retriever = retriever.to(group.device)
    synchronise_batch_norms(retriever.audio_tower, group.size)
    optimizer = make_optimizer(retriever, experiment)
    memory = make_memory(
        experiment.objective.knowledge,
        refresher=_refresher_of_base(data, folder / "knowledge", make_refresher),
        retriever=retriever,
        width=experiment.model.embedding_width,
        languages=len(experiment.data.languages),
        ids=data.features.clip_ids,
        is_first=group.is_first,
        steps_per_epoch=data.steps_per_epoch,
        device=group.device,
        seed=experiment.seed,
    )

    def entries() -> Any:
        return memory.entries if isinstance(memory, SnapshotMemory) else None

    estimator = make_estimator(experiment, data.captions, prepared.data, prepared.home, group.device, entries)
    torch.manual_seed(experiment.seed * 1_000_003 + group.rank)
    updates_per_epoch = -(-data.steps_per_epoch // experiment.train.batches_per_step)
    scheduler = make_schedule(optimizer, experiment.train, updates_per_epoch)
    return TrainState(retriever, complete, optimizer, scheduler, memory, estimator, is_first=group.is_first)


def _refresher_of_base(data: TrainingData, folder: Path, make_refresher: MakeRefresher | None) -> Refresher | None:
    """The knowledge base, in this process unless a refresher is given; None without a base."""
    experiment, knowledge = data.experiment, data.experiment.objective.knowledge
    if not isinstance(knowledge, KnowledgeBaseObjective):
        return None
    encode = SourceEncoder(experiment, data.prepared)
    if make_refresher is not None:
        return make_refresher(knowledge, encode, folder, data.group)
    if data.group.size > 1:
        raise ValueError("objective.knowledge: a base for several workers needs a refresher that all of them reach")
    # Built here: in the base's thread it would use the generator that training draws from at the same time.
    _ = encode.retriever
    return InProcessRefresher(encode, knowledge.snapshot_settings(experiment.seed), folder)


def make_optimizer(retriever: Retriever, experiment: Experiment) -> Optimizer:
    """The optimiser of everything that is trained, each part at its own rate."""
    settings = experiment.train
    groups = retriever.parameter_groups(
        experiment.learning_rate,
        settings.weight_decay,
        metric_scale=settings.metric_rate_scale,
        towers_apart=experiment.scaling.shard_towers,
    )
    # Fused: one kernel for each parameter instead of some ten, a sixth of the time with small towers on a CPU.
    if settings.optimizer == "sgd":
        # torch has no fused SGD for sharded weights.
        return SGD(groups, momentum=settings.momentum, fused=not experiment.scaling.shard_towers)
    return Adam(groups, fused=True) if settings.optimizer == "adam" else AdamW(groups, fused=True)


def make_schedule(optimizer: Optimizer, settings: TrainSettings, steps_per_epoch: int) -> LRScheduler:
    """The schedule of a run, stepped after every optimiser step: a linear warm-up, then a cosine to 0, steps or a constant."""
    num_steps = steps_per_epoch * settings.epochs
    warm = round(settings.warmup_fraction * num_steps)
    if settings.schedule != "step":
        return LambdaLR(optimizer, lambda step: _share(step, warm, num_steps, is_cosine=settings.schedule == "cosine"))
    steps = StepLR(optimizer, settings.step_epochs * steps_per_epoch, settings.step_factor)
    if warm < 2:
        return steps
    # torch's warm-up starts at 1/warm instead of 0, which it does not allow.
    rise = LinearLR(optimizer, start_factor=1 / warm, total_iters=warm - 1)
    return ChainedScheduler([rise, steps], optimizer=optimizer)


def _share(step: int, warm: int, num_steps: int, *, is_cosine: bool) -> float:
    """The share of the full rate at a step, as in `transformers`, whose import costs each process of a trial two seconds."""
    if step < warm:
        return step / warm
    progress = (step - warm) / max(1, num_steps - warm)
    return max(0.0, 0.5 * (1 + math.cos(math.pi * progress))) if is_cosine else 1.0
