"""The estimated cost of a knowledge base's refresh, compared with an epoch of training."""

from __future__ import annotations

from ray_atr.common.settings import counted
from ray_atr.data.shards import read_manifest
from ray_atr.objectives.knowledge.knowledge import KnowledgeBaseObjective
from ray_atr.training.checks import split_sizes
from ray_atr.training.experiment import Experiment

FORWARD_SHARE = 1 / 3
"""Share of a forward pass in a training step: the backward pass takes about twice as long."""
GPU_IN_CPU_THREADS = 50.0
"""CPU threads that are about as fast as one GPU with the published towers; only the order of magnitude matters."""


def epochs_per_refresh(experiment: Experiment, num_training: int, num_source: int) -> float:
    """The time of one refresh in epochs of training, by the resources of both; 0 if a refresh encodes nothing.

    num_training, num_source: numbers of clips. A refresh takes a forward pass for each clip, training a backward pass too.
    Reading, the frozen towers' caches and the batch size are not counted: this is an estimate.
    """
    knowledge, scaling = experiment.objective.knowledge, experiment.scaling
    if not isinstance(knowledge, KnowledgeBaseObjective) or knowledge.refresh != "re_encode":
        return 0.0
    training = max(1, scaling.fewest_workers) * _speed(scaling.cpus_per_worker, scaling.gpus_per_worker)
    encoding = max(scaling.encoders, scaling.least_shards) * _speed(scaling.cpus_per_encoder, scaling.gpus_per_encoder)
    return FORWARD_SHARE * num_source / num_training * training / encoding


def _speed(cpus: float, gpus: float) -> float:
    return GPU_IN_CPU_THREADS * gpus if gpus else max(1.0, float(int(cpus)))


def refresh_warning(experiment: Experiment) -> str:
    """A warning, with settings that help, if a refresh takes longer than the epochs between two of them; else empty.

    With `refresh_lag` 0 training waits all of that time, else for what exceeds the lag.
    """
    knowledge, scaling = experiment.objective.knowledge, experiment.scaling
    if not isinstance(knowledge, KnowledgeBaseObjective):
        return ""
    split = experiment.data.train_split
    num_training = split_sizes(experiment)[split]
    is_own = knowledge.source == "train"
    num_source = num_training if is_own else read_manifest(knowledge.source).num_rows_of(split)
    epochs = epochs_per_refresh(experiment, num_training, num_source)
    # A base that is never refreshed is still encoded once.
    if epochs <= max(1, knowledge.refresh_every_epochs):
        return ""
    where = "GPU" if scaling.gpus_per_encoder else "CPU"
    if scaling.gpus_per_worker and not scaling.gpus_per_encoder:
        remedy = "scaling.gpus_per_encoder 0.4 with scaling.gpus_per_worker 0.6 shares the worker's GPU"
    else:
        remedy = "scaling.encoders and scaling.cpus_per_encoder give it more, refresh write_through encodes nothing"
    period = knowledge.refresh_every_epochs
    every = {0: "once", 1: "every epoch"}.get(period, f"every {period} epochs")
    return (
        f"the knowledge base encodes {counted(num_source, 'clip')} on a {where} {every}: an estimated {epochs:.1f} times an "
        f"epoch's training, for which training waits; {remedy}"
    )
