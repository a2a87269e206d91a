"""The validation that follows an epoch: by all workers before the next one, or by another process while the next one trains.

Beside training, the metrics of an epoch are read at the end of the next one, however early they are ready. So a run has the
same rows, the same best epoch and the same last epoch either way; they are only reported later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ray_atr.common.runtime import WORKER_CPU_SHARE, here_if_there_is_room
from ray_atr.common.settings import refuse
from ray_atr.data.features import open_features
from ray_atr.metrics.epoch_report import EpochReport
from ray_atr.metrics.metric import MEANS, Metric
from ray_atr.metrics.retrieval import Retrieval
from ray_atr.metrics.unit_scores import packed_scores, unit_scores
from ray_atr.models.retriever import Retriever
from ray_atr.models.sharding import gathered
from ray_atr.training.batch import TrainingData
from ray_atr.training.checkpoint import TrainState, copied
from ray_atr.training.clock import Clock
from ray_atr.training.encoding.texts import TextBatcher
from ray_atr.training.experiment import Experiment
from ray_atr.training.group import WorkerGroup
from ray_atr.training.inputs import Prepared
from ray_atr.training.run_folder import BEST
from ray_atr.training.validation import evaluate_split

RETRIES = 3


class Validated(NamedTuple):
    """The result of a validation: its metrics, and the packed scores of each clip in the metric that chooses the best epoch."""

    metrics: dict[Metric, float]
    unit_scores: str = ""


class Validator(Protocol):
    """Measures weights on the validation split while training continues.

    `begin` starts to measure and returns at once; `measured` waits for the result of the last `begin`.
    """

    def begin(self, weights: Mapping[str, Tensor]) -> None: ...
    def measured(self) -> Validated: ...
    def close(self) -> None: ...


MakeValidator = Callable[[Experiment, Prepared], Validator]


class EpochValidation:
    """Validates the epochs of a run, and saves the retriever of the best one."""

    def __init__(
        self,
        data: TrainingData,
        state: TrainState,
        texts: TextBatcher,
        folder: Path,
        clock: Clock,
        make_validator: MakeValidator | None = None,
    ) -> None:
        self.experiment, self.prepared, self.group = data.experiment, data.prepared, data.group
        self.state, self.texts, self.folder, self.clock = state, texts, folder, clock
        self.is_beside = make_validator is not None
        self.validator = (
            make_validator(data.experiment, data.prepared) if make_validator and self.group.is_first else None
        )

    def resume(self) -> list[EpochReport]:
        """Start again the validation that was in progress when the checkpoint was written. Without a validator it is done now:
        returns the row that is complete by it.
        """
        if not self.is_beside:
            return self.remaining()
        if self.validator is not None and self.state.progress.unvalidated is not None:
            self.validator.begin(self.state.unvalidated_weights)
        return []

    def after_epoch(self, row: EpochReport) -> list[EpochReport]:
        """The rows that are complete now: this epoch's, or, beside training, those up to the epoch before it."""
        rows, progress, settings = self.remaining(), self.state.progress, self.experiment.evaluation
        is_due = progress.epoch % settings.every_epochs == 0 or progress.epoch == self.experiment.train.epochs
        if is_due and self.is_beside:
            progress.unvalidated = dict(self._timed(row))
            if self.validator is not None:
                self.state.unvalidated_weights = copied(self.state.retriever.trained_state())
                self.validator.begin(self.state.unvalidated_weights)
            return rows
        return [*rows, self._timed(self._completed(row, self._measure() if is_due else Validated({})))]

    def remaining(self) -> list[EpochReport]:
        """The row of the epoch that is being validated beside training, after waiting for its metrics; empty if there is none."""
        state, row = self.state, self.state.progress.unvalidated
        if row is None:
            return []
        weights = state.unvalidated_weights
        if self.is_beside:
            with self.clock("validation"):
                validated = Validated({}) if self.validator is None else self.validator.measured()
                measured = self.group.of_first(validated)
        else:
            # The run was resumed without a validator.
            with self._holding(weights):
                measured = self._measure()
        completed = self._completed(EpochReport(row), measured, weights)
        state.progress.unvalidated, state.unvalidated_weights = None, {}
        return [completed]

    def close(self) -> None:
        """End the process that validates."""
        if self.validator is not None:
            self.validator.close()

    def _measure(self) -> Validated:
        with self.clock("validation"):
            return validate(self.state.retriever, self.texts, self.experiment, self.prepared, self.group)

    def _completed(
        self, row: EpochReport, measured: Validated, weights: Mapping[str, Tensor] | None = None
    ) -> EpochReport:
        """The row with the validation's metrics. If they are the best so far, the retriever (with these weights) is saved."""
        progress, select_by = self.state.progress, self.experiment.evaluation.select_by
        metrics = measured.metrics
        if metrics:
            if select_by not in metrics:
                has = ", ".join(sorted(metric for metric in metrics if metric.language in MEANS))
                raise refuse("evaluation.select_by", select_by, f"what the validation measures: {has}")
            # Every worker has the same metrics.
            if progress.is_best(metrics[Metric.parse(select_by)], row.epoch):
                with self.clock("checkpoint"), self._holding(weights or {}):
                    self._save_best()
        return row.validated(metrics, progress.best_epoch, measured.unit_scores)

    def _save_best(self) -> None:
        """The first worker writes the retriever; all workers take part if the towers are sharded."""
        complete, frozen = self.state.complete, self.prepared.frozen_weights
        weights = None if self.state.retriever.calls is None else gathered(complete.state_dict())
        if self.group.is_first:
            complete.save_pretrained(self.folder / BEST, frozen=frozen, weights=weights)

    def _timed(self, row: EpochReport) -> EpochReport:
        return row.with_group("seconds", self.clock.taken() | {"train": self.state.progress.seconds})

    @contextmanager
    def _holding(self, weights: Mapping[str, Tensor]) -> Iterator[None]:
        """The retriever has these weights within the block; its own if there are none."""
        if not weights:
            yield
            return
        trained = copied(self.state.retriever.trained_state())
        self.state.retriever.load_trained_state(weights)
        try:
            yield
        finally:
            self.state.retriever.load_trained_state(trained)


def validate(
    retriever: Retriever, texts: TextBatcher, experiment: Experiment, prepared: Prepared, group: WorkerGroup
) -> Validated:
    """The metrics and unit scores of the validation split; every worker of the group takes part."""
    features = open_features(prepared.features, experiment.data.validation_split)
    limit, packed = experiment.evaluation.validation_captions, ""

    def keep(retrievals: Mapping[str, Retrieval]) -> None:
        nonlocal packed
        chosen_by = Metric.parse(experiment.evaluation.select_by)
        scores = unit_scores(retrievals, chosen_by, experiment.trained_languages)
        packed = "" if scores is None else packed_scores(scores)

    metrics = evaluate_split(retriever, texts, features, experiment, group, max_captions=limit, keep=keep)
    return Validated(metrics, packed)


class SplitValidator:
    """Validates a run's weights in a process and on a device of its own. Picklable; opens its data at the first call."""

    def __init__(self, experiment: Experiment, prepared: Prepared, threads: int = 0) -> None:
        """`threads` of this process; 0: their number is not changed."""
        if threads:
            torch.set_num_threads(threads)
        self.experiment, self.prepared = experiment, prepared
        self._retriever: Retriever | None = None

    def measure(self, weights: Mapping[str, Tensor]) -> Validated:
        """The validation of these weights."""
        experiment = self.experiment
        if self._retriever is None:
            self.prepared = self.prepared.on_this_node(experiment)
            device = "cuda" if experiment.scaling.gpus_per_validation else "cpu"
            self._retriever = self.prepared.reading(self.prepared.first_retriever(experiment)).to(device)
        retriever = self._retriever
        retriever.load_trained_state(weights)
        group = WorkerGroup(device=retriever.device)
        return validate(retriever, TextBatcher(retriever), experiment, self.prepared, group)


class ActorValidator:
    """A `Validator` that sends the weights to an actor. Ray restarts an actor that dies, and it measures again, at most RETRIES
    times for one epoch: if memory is full, it may die each time.
    """

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self.pending: Any = None

    def begin(self, weights: Mapping[str, Tensor]) -> None:
        self.pending = self.actor.measure.remote(dict(weights))

    def measured(self) -> Validated:
        import ray

        return Validated(*ray.get(self.pending))

    def close(self) -> None:
        import ray

        ray.kill(self.actor)


def start_validator(experiment: Experiment, prepared: Prepared) -> ActorValidator:
    """Start the actor: on this node if there is room, else on another. It ends with the process that starts it."""
    import ray

    scaling = experiment.scaling
    cpus, gpus = scaling.cpus_per_validation * WORKER_CPU_SHARE, scaling.gpus_per_validation
    actor = ray.remote(SplitValidator).options(
        num_cpus=cpus,
        num_gpus=gpus,
        max_restarts=-1,
        max_task_retries=RETRIES,
        scheduling_strategy=here_if_there_is_room(cpus, gpus),
    )
    return ActorValidator(actor.remote(experiment, prepared, threads=max(1, int(scaling.cpus_per_validation))))
