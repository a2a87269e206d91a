"""A run's first state: the retriever with its first weights, its optimiser, its memory and its estimator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ray_atr.data.noise_index import write_index
from ray_atr.experiment import Experiment
from ray_atr.knowledge.memory import Memory, SnapshotMemory, make_memory
from ray_atr.knowledge.refresher import InProcessRefresher, Refresher
from ray_atr.models.retriever import Retriever
from ray_atr.objectives.knowledge.base import KnowledgeBaseObjective
from ray_atr.training.batch import TrainingData
from ray_atr.training.correspondence import make_estimator
from ray_atr.training.group import WorkerGroup
from ray_atr.training.inputs import Prepared
from ray_atr.training.knowledge import MakeRefresher, SourceEncoder
from ray_atr.training.schedule import make_optimizer, make_schedule
from ray_atr.training.state import TrainState


def first_state(
    experiment: Experiment,
    prepared: Prepared,
    data: TrainingData,
    folder: Path,
    group: WorkerGroup,
    make_host: MakeRefresher | None,
) -> TrainState:
    """The state before the first step; the weights are the same on every worker, dropout is each one's own."""
    whole = prepared.first_retriever(experiment)
    retriever = prepared.reading(whole).to(group.device)
    optimizer = make_optimizer(retriever, experiment)
    memory = _memory(experiment, prepared, data, retriever, folder, group, make_host)

    def snapshot() -> Any:
        """The knowledge base's snapshot in use; None without a base."""
        searcher = memory.client.searcher if isinstance(memory, SnapshotMemory) else None
        return None if searcher is None else searcher.snapshot

    estimator = make_estimator(experiment, data.captions, prepared.data, prepared.home, group.device, snapshot)
    if group.is_first and experiment.data.noise.is_there:
        write_index(folder, data.captions.worn)
    torch.manual_seed(experiment.seed * 1_000_003 + group.rank)
    return TrainState(
        retriever=retriever,
        whole=whole,
        optimizer=optimizer,
        scheduler=make_schedule(optimizer, experiment.train, data.steps_per_epoch),
        memory=memory,
        estimator=estimator,
    )


def _memory(
    experiment: Experiment,
    prepared: Prepared,
    data: TrainingData,
    retriever: Retriever,
    folder: Path,
    group: WorkerGroup,
    make_host: MakeRefresher | None,
) -> Memory:
    """This worker's memory beyond the batch; the knowledge base behind it is in this process unless a host is given."""
    knowledge = experiment.objective.knowledge
    host: Refresher | None = None
    if isinstance(knowledge, KnowledgeBaseObjective):
        encode, own = SourceEncoder(experiment, prepared), folder / "knowledge"
        if make_host is not None:
            host = make_host(knowledge, encode, own, group)
        elif group.size == 1:
            # Built now: in the base's thread it would move the generator that training draws from at the same time.
            _ = encode.retriever
            host = InProcessRefresher(encode, knowledge.snapshot_settings(experiment.seed), own)
        else:
            raise ValueError("objective.knowledge: a base for several workers needs a host that all of them reach")
    return make_memory(
        knowledge,
        host=host,
        retriever=retriever,
        width=experiment.model.embedding_width,
        languages=len(experiment.data.languages),
        ids=data.features.clip_ids,
        is_first=group.is_first,
        steps_per_epoch=data.steps_per_epoch,
        device=group.device,
        seed=experiment.seed,
    )
