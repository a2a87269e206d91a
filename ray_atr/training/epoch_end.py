"""What is measured once, after an epoch's last step; every worker takes part."""

from __future__ import annotations

from pathlib import Path

import torch

from ray_atr.encoding.texts import TextBatcher
from ray_atr.experiment import Experiment
from ray_atr.knowledge.drift import out_of_batch_influence
from ray_atr.knowledge.memory import SnapshotMemory
from ray_atr.metrics.epoch_report import EpochReport
from ray_atr.training.batch import Batch, TrainingData
from ray_atr.training.distance import metric_state, scheme_errors, temperature_of
from ray_atr.training.group import WorkerGroup
from ray_atr.training.inputs import Prepared
from ray_atr.training.knowledge import SourceEncoder
from ray_atr.training.probe import BaseProbe
from ray_atr.training.state import TrainState
from ray_atr.training.step import StepResult
from ray_atr.training.trajectory import OtherRun, keep_weights
from ray_atr.training.weight_error import weight_errors


class EpochEnd:
    """Measures a run's state, besides its losses."""

    def __init__(
        self,
        experiment: Experiment,
        prepared: Prepared,
        data: TrainingData,
        state: TrainState,
        folder: Path,
        group: WorkerGroup,
    ) -> None:
        self.experiment, self.data, self.state, self.folder, self.group = experiment, data, state, folder, group
        settings = experiment.train
        self.other = (
            OtherRun(settings.distance_to, state.retriever, data.steps_per_epoch) if settings.distance_to else None
        )
        self.probe: BaseProbe | None = None
        if isinstance(state.memory, SnapshotMemory) and experiment.evaluation.probe_clips:
            source = SourceEncoder(experiment, prepared).source
            self.probe = BaseProbe(source, experiment.seed, experiment.evaluation.probe_clips)

    def report(self, texts: TextBatcher, last: Batch, result: StepResult, means: dict[str, float]) -> EpochReport:
        """The epoch's row without validation; `means` are those of its steps' scalars."""
        return EpochReport.of(
            epoch=self.state.progress.epoch,
            step=last.step + 1,
            train=means | self.of_training(texts, last),
            knowledge=self.of_knowledge(last, result),
            memory=self.of_device(),
        )

    def of_training(self, texts: TextBatcher, last: Batch) -> dict[str, float]:
        """The noise, what is learned besides the towers, where the scheme pulls, how far another run's weights are."""
        retriever = self.state.retriever
        found = {
            "clean_share": self.data.clean_share,
            **metric_state(retriever),
            **self.state.estimator.end_epoch(),
            "learning_rate": float(self.state.scheduler.get_last_lr()[0]),
        }
        if len(last.languages) > 1:
            found |= scheme_errors(retriever, texts, self.experiment.objective, last, self.group)
        return found | self._of_weights(texts, last, found.get("data_distribution_error", 0.0))

    def _of_weights(self, texts: TextBatcher, last: Batch, distribution_error: float) -> dict[str, float]:
        """How far the weights are from another run's at this step, and ATRI's bound on it; they are kept if asked for."""
        retriever, objective, step = self.state.retriever, self.experiment.objective, last.step + 1
        if self.experiment.train.keep_trajectory and self.group.is_first:
            keep_weights(self.folder, step, retriever)
        other = self.other.weights_after(step) if self.other is not None else None
        if other is None:
            return {}
        return weight_errors(
            retriever,
            other,
            texts,
            objective,
            last,
            temperature=temperature_of(retriever, objective),
            learning_rate=max(float(group["initial_lr"]) for group in self.state.optimizer.param_groups),
            steps=self.data.steps_per_epoch,
            earlier=self.state.progress.last_row.get("train/weight_distance", 0.0),
            distribution_error=distribution_error,
        )

    def of_knowledge(self, last: Batch, result: StepResult) -> dict[str, float]:
        """Whether what lies beyond the batch matters, is fresh and of use, by the epoch's last batch."""
        state, objective = self.state, self.experiment.objective
        if not objective.knowledge.needs_retrieval:
            return {}
        learned, draw = state.retriever.learned.values(), last.everyone.draw
        influence = out_of_batch_influence(
            objective, result.embeddings, state.memory.latest, learned=learned, draw=draw
        )
        found = {"out_of_batch_influence": influence}
        if self.probe is not None and isinstance(state.memory, SnapshotMemory):
            labels = [self.data.features.labels[row] for row in last.everyone.rows.tolist()]
            found |= self.probe.measure(state.memory, state.retriever, labels, self.group)
        return {**state.memory.stats(last.step + 1), **found}

    def of_device(self) -> dict[str, float]:
        """The most memory that a GPU has held."""
        if self.group.device.type != "cuda":
            return {}
        return {"peak_allocated_bytes": float(torch.cuda.max_memory_allocated(self.group.device))}
