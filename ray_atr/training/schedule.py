"""The optimiser of a run and the rate at each of its steps, by torch."""

from __future__ import annotations

import math

from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import ChainedScheduler, LambdaLR, LinearLR, LRScheduler, StepLR

from ray_atr.experiment import Experiment, TrainSettings
from ray_atr.models.retriever import Retriever


def make_optimizer(retriever: Retriever, experiment: Experiment) -> Optimizer:
    """The optimiser of everything that is trained, each part at its own rate."""
    settings = experiment.train
    groups = retriever.parameter_groups(
        experiment.learning_rate, settings.weight_decay, metric_scale=settings.metric_rate_scale
    )
    # One kernel a parameter instead of some ten calls: a sixth of the time with small towers on a CPU.
    if settings.optimizer == "sgd":
        return SGD(groups, momentum=settings.momentum, fused=True)
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
