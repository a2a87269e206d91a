"""What is measured once, after an epoch's last step; every worker takes part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ray_atr.data.sampling import permutation
from ray_atr.encoding.texts import TextBatcher
from ray_atr.knowledge.drift import (
    neighbour_label_share,
    out_of_batch_influence,
    prototype_collapse,
    representation_drift_mismatch,
)
from ray_atr.knowledge.memory import SnapshotMemory
from ray_atr.knowledge.searcher import as_tensor
from ray_atr.knowledge.snapshot import Snapshot
from ray_atr.metrics.epoch_report import EpochReport
from ray_atr.models.retriever import Retriever
from ray_atr.objectives import metric_scalars
from ray_atr.training.batch import Batch, TrainingData
from ray_atr.training.checkpoint import TrainState
from ray_atr.training.distance import scheme_errors, weight_errors
from ray_atr.training.group import WorkerGroup
from ray_atr.training.knowledge import BLOCK, BaseSource, SourceEncoder, concatenated
from ray_atr.training.step import StepResult
from ray_atr.training.trajectory import OtherRun, keep_weights


class EpochEnd:
    """Measures a run's state, besides its losses."""

    def __init__(self, data: TrainingData, state: TrainState, folder: Path) -> None:
        self.experiment, self.data, self.state, self.folder = data.experiment, data, state, folder
        evaluation, distance_to = self.experiment.evaluation, self.experiment.train.distance_to
        self.other = OtherRun(distance_to, state.retriever, data.steps_per_epoch) if distance_to else None
        self.probe: BaseProbe | None = None
        if isinstance(state.memory, SnapshotMemory) and evaluation.probe_clips:
            source = SourceEncoder(self.experiment, data.prepared).source
            self.probe = BaseProbe(source, self.experiment.seed, evaluation.probe_clips)

    def report(self, texts: TextBatcher, last: Batch, result: StepResult, means: dict[str, float]) -> EpochReport:
        """The epoch's row without validation; `means` are those of its steps' scalars."""
        device = self.data.group.device
        is_gpu = device.type == "cuda"
        memory = {"peak_allocated_bytes": float(torch.cuda.max_memory_allocated(device))} if is_gpu else {}
        return EpochReport.of(
            epoch=self.state.progress.epoch,
            step=last.step + 1,
            train=means | self._of_training(texts, last),
            knowledge=self._of_knowledge(last, result),
            memory=memory,
        )

    def _of_training(self, texts: TextBatcher, last: Batch) -> dict[str, float]:
        """The noise, what is learned besides the towers, where the scheme pulls, how far another run's weights are."""
        retriever, learned = self.state.retriever, self.state.retriever.learned
        found = {"clean_share": self.data.clean_share}
        if learned.metric is not None:
            scalars = metric_scalars(learned.metric.detach(), learned.settings.metric)
            found |= {name: float(value) for name, value in scalars.items()}
        found |= {**self.state.estimator.end_epoch(), "learning_rate": float(self.state.scheduler.get_last_lr()[0])}
        if len(last.languages) > 1:
            found |= scheme_errors(retriever, texts, self.experiment.objective, last, self.data.group)
        step = last.step + 1
        if self.experiment.train.keep_trajectory and self.data.group.is_first:
            keep_weights(self.folder, step, retriever)
        if self.other is not None and (weights := self.other.weights_after(step)) is not None:
            error = found.get("data_distribution_error", 0.0)
            found |= weight_errors(self.data, self.state, weights, texts, last, error)
        return found

    def _of_knowledge(self, last: Batch, result: StepResult) -> dict[str, float]:
        """Whether what lies beyond the batch matters, is fresh and of use, by the epoch's last batch."""
        state, objective, memory = self.state, self.experiment.objective, self.state.memory
        if not objective.knowledge.needs_retrieval:
            return {}
        learned, draw = state.retriever.learned.values(), last.everyone.draw
        influence = out_of_batch_influence(objective, result.embeddings, memory.latest, learned=learned, draw=draw)
        found = {**memory.stats(last.step + 1), "out_of_batch_influence": influence}
        if self.probe is not None and isinstance(memory, SnapshotMemory):
            labels = [self.data.features.labels[row] for row in last.everyone.rows.tolist()]
            found |= self.probe.measure(memory, state.retriever, labels, self.data.group)
        return found


class BaseProbe:
    """How far the base in use is from today's encoders, its prototypes' collapse, and whether neighbours share a label.

    Drift asks for every entry of the base by today's encoders: all workers encode a share of the source, which costs what a
    refresh costs. The queries are a fixed sample of the source's clips.
    """

    def __init__(self, source: BaseSource, seed: int, num_clips: int) -> None:
        self.source = source
        ids = source.features.clip_ids
        self.rows = np.sort(permutation(ids, seed, "probe", 0)[:num_clips])
        self._labels_of: dict[str, list[str]] = dict(zip(ids, source.features.labels, strict=True))

    def measure(
        self, memory: SnapshotMemory, retriever: Retriever, labels: Sequence[Sequence[str]], group: WorkerGroup
    ) -> dict[str, float]:
        """The snapshot in use against the retriever as it is. `labels` [B] are those of the last global batch's clips.

        Every worker calls it, and gets the same.
        """
        snapshot = memory.snapshot
        assert snapshot is not None, "measured after a step"
        measured = self._drift(snapshot, retriever, group)
        if snapshot.num_prototypes:
            measured["prototype_cosine_audio"] = prototype_collapse(as_tensor(snapshot.coarse_audio))
            measured["prototype_cosine_text"] = prototype_collapse(as_tensor(snapshot.coarse_text[0]))
        if memory.found is not None:
            found = torch.cat([memory.found.fine_audio, memory.found.fine_text], dim=1)
            of_entries = [self._labels_of[name] for name in snapshot.ids.tolist()]
            measured["neighbour_label_share"] = neighbour_label_share(found, labels, of_entries)
        return {name: value for name, value in measured.items() if not math.isnan(value)}

    def _drift(self, snapshot: Snapshot, retriever: Retriever, group: WorkerGroup) -> dict[str, float]:
        """RDM of both modalities; nothing if none of the source's clips is in the snapshot yet."""
        place_of = {name: place for place, name in enumerate(snapshot.ids.tolist())}
        ids = self.source.features.clip_ids
        rows = np.array([row for row, name in enumerate(ids) if name in place_of], np.int64)
        is_query = np.isin(rows, self.rows)
        if not is_query.any():
            return {}
        mine = np.array_split(rows, group.size)[group.rank]
        parts = np.array_split(mine, max(1, -(-len(mine) // BLOCK)))
        entries = concatenated([self.source.encode(retriever, part) for part in parts])
        audio, text = (
            torch.cat([torch.from_numpy(part) for part in group.gather_objects(own)])
            for own in (entries.audio, entries.text[0])
        )
        places = np.array([place_of[ids[row]] for row in rows], np.int64)
        queries = torch.from_numpy(is_query)
        return {
            "drift_audio": representation_drift_mismatch(audio[queries], audio, _rows(snapshot.audio, places)),
            "drift_text": representation_drift_mismatch(text[queries], text, _rows(snapshot.text[0], places)),
        }


def _rows(array: NDArray[Any], places: NDArray[np.int64]) -> Tensor:
    return torch.from_numpy(array[places].astype(np.float32))
