"""The training loop of one worker: the same with Ray's workers and without Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from ray_atr.common.storage import read_json
from ray_atr.common.transfer import CheckpointSync
from ray_atr.data.features import MANIFEST_FILE, open_features
from ray_atr.data.noise import write_index
from ray_atr.data.stream import share_sizes
from ray_atr.metrics.epoch_report import EpochReport, FinalReport
from ray_atr.metrics.metric import Metric, of_part
from ray_atr.models.retriever import Retriever
from ray_atr.training.base_encoding import MakeRefresher
from ray_atr.training.batch import Batch, TrainingData
from ray_atr.training.checkpoint import Progress, TrainState, require_shared, resume, save_state
from ray_atr.training.clock import Clock
from ray_atr.training.correspondence import read_first
from ray_atr.training.encoding.texts import TextBatcher
from ray_atr.training.epoch_end import EpochEnd
from ray_atr.training.epoch_validation import EpochValidation, MakeValidator
from ray_atr.training.experiment import Experiment
from ray_atr.training.group import WorkerGroup, bytes_for_losses, clip, divide, total_norm
from ray_atr.training.inputs import Prepared
from ray_atr.training.languages import with_languages
from ray_atr.training.run_folder import BEST, LAST, TEST_SCORES
from ray_atr.training.setup import first_state
from ray_atr.training.step import StepResult, check_finite, training_step
from ray_atr.training.unusual import naming_settings
from ray_atr.training.validation import evaluate_split, keep_scores

PreemptionCheck = Callable[[WorkerGroup], bool]
"""Called by every worker after the same steps; returns the same on all of them."""

Report = Callable[[EpochReport | FinalReport], None]
"""Called by every worker with one epoch's metrics; the first worker's are recorded."""


def train_trial(
    experiment: Experiment,
    prepared: Prepared,
    folder: Path,
    report: Report,
    group: WorkerGroup | None = None,
    *,
    use_ray_data: bool = True,
    make_refresher: MakeRefresher | None = None,
    make_validator: MakeValidator | None = None,
    sync: CheckpointSync | None = None,
    is_preempted: PreemptionCheck | None = None,
) -> None:
    """Train to the end of the last epoch, from `folder/last` if it exists, and report the best epoch's test metrics.

    Leaves `folder/last` (everything needed to resume) and `folder/best` (the retriever of the best validation epoch).
    Every epoch's metrics are reported, those of a resumed run's earlier epochs again; with `make_validator`, one epoch later.
    After each step `is_preempted` is called; if it says that a worker is about to be lost, a checkpoint is written. With
    a `sync`, `folder` is this node's copy of a folder in an object store. Raises NonFiniteError before an optimiser step with
    a loss or gradient that is not finite. An error names settings with unusual values.
    """
    with naming_settings(experiment), ExitStack() as ending:
        experiment, clock = with_languages(experiment), Clock()
        group = group_for(experiment, group or WorkerGroup())
        if sync is None:
            require_shared(folder, group)
        else:
            # Only the first worker needs the knowledge base.
            sync.fetch("" if group.is_first else f"{LAST}/")
        data = TrainingData(experiment, prepared, group)
        state = first_state(data, folder, make_refresher)
        ending.callback(state.memory.close)
        texts, epoch_end = TextBatcher(state.retriever), EpochEnd(data, state, folder)
        validation = EpochValidation(data, state, texts, folder, clock, make_validator)
        ending.callback(validation.close)
        shards = None
        if experiment.scaling.shard_towers:
            # Imported here because it takes a second.
            from ray_atr.training.shards import ShardWriter

            shards = ShardWriter(folder, group, sync)
            ending.callback(shards.close)
        checkpoint = partial(save_state, state, data, folder, clock, sync, shards)
        patience = experiment.train.patience

        def end_epochs(rows: Sequence[EpochReport]) -> None:
            """Write a checkpoint with the complete rows, then report them; with sharded towers a thread still writes it."""
            # Plain dicts: a checkpoint is read without our classes. It holds these rows, so its time counts in the next epoch.
            state.progress.history.extend(map(dict, rows))
            checkpoint()
            for row in rows:
                report(row)

        resume(state, data, folder, shards)
        # Not before: of a noise index that was replaced, the folder still has the one that the checkpoint was trained with.
        if group.is_first and experiment.data.noise.is_injected:
            write_index(folder, data.captions.assigned)
        progress = state.progress
        for row in progress.history:
            report(EpochReport(row))
        if not progress.is_stuck(patience) and (rows := validation.resume()):
            end_epochs(rows)
        state.retriever.train()
        for epoch, batches in data.epochs(progress.epoch, progress.step_in_epoch, use_ray=use_ray_data):
            if progress.is_stuck(patience):
                break
            if progress.step_in_epoch == 0:
                if shards is not None and experiment.objective.knowledge.needs_retrieval:
                    # A new version of a base may replace one that the previous checkpoint needs.
                    shards.wait()
                begin_epoch(state, data, epoch)
            batch, result = train_epoch(state, data, texts, batches, clock, checkpoint, is_preempted)
            means = progress.end_epoch()
            end_epochs(validation.after_epoch(epoch_end.report(texts, batch, result, means)))
        # If the last validation ended the patience, the epoch that began meanwhile does not count: without a validator it
        # would not have begun.
        if not progress.is_stuck(patience) and (rows := validation.remaining()):
            end_epochs(rows)
        if shards is not None:
            shards.wait()
        report(final_report(progress, data, folder, sync))


def group_for(experiment: Experiment, group: WorkerGroup) -> WorkerGroup:
    """The workers with their shares of the experiment's batches and losses. All of them must call it."""
    return replace(
        group,
        shares=tuple(share_sizes(experiment.train.batch_size, group.size)),
        share_losses_from=experiment.scaling.losses_shared_from,
        loss_bytes=min(group.gather_objects(bytes_for_losses(experiment.scaling.loss_bytes, group.device))),
    )


def begin_epoch(state: TrainState, data: TrainingData, epoch: int) -> None:
    """Before an epoch's first step: a refresh of the knowledge base may be due, sample weights may change."""
    state.memory.begin_epoch(epoch, epoch * data.steps_per_epoch, state.published_weights)
    if epoch == 0:
        read_first(state.estimator, state.retriever, data.captions, data.experiment, data.group, data.clip_weights)
    state.estimator.begin_epoch(epoch)


def train_epoch(
    state: TrainState,
    data: TrainingData,
    texts: TextBatcher,
    batches: Iterator[Batch],
    clock: Clock,
    checkpoint: Callable[[], None],
    is_preempted: PreemptionCheck | None,
) -> tuple[Batch, StepResult]:
    """Train on an epoch's batches, with a checkpoint wherever one is due; returns the last batch and its result."""
    progress, every, is_due = state.progress, data.experiment.train.checkpoint_every_steps, False
    for batch in clock.waiting(batches):
        with clock.step():
            result = step(state, data, texts, batch, clock)
        progress.add(result.scalars, clock.spent())
        is_due |= is_preempted is not None and is_preempted(data.group)
        is_due |= every > 0 and progress.step_in_epoch % every == 0
        # Only after an optimiser step: accumulated gradients are in no checkpoint. Not after the last step of an epoch: a run
        # that resumed there would begin the next epoch without this one's validation.
        if is_due and place_of(data, batch).is_last and progress.step_in_epoch < data.steps_per_epoch:
            checkpoint()
            is_due = False
    return batch, result


class BatchPlace(NamedTuple):
    """The number of a batch, from 1, among the `size` batches whose gradients are averaged for one optimiser step."""

    number: int
    size: int

    @property
    def is_last(self) -> bool:
        return self.number == self.size


def place_of(data: TrainingData, batch: Batch) -> BatchPlace:
    """The place of a batch in its optimiser step; an epoch's last step may have fewer batches."""
    together, step = data.experiment.train.batches_per_step, batch.step % data.steps_per_epoch
    first = step - step % together
    return BatchPlace(step - first + 1, min(together, data.steps_per_epoch - first))


def step(state: TrainState, data: TrainingData, texts: TextBatcher, batch: Batch, clock: Clock) -> StepResult:
    """Compute the gradients of one batch. After the last batch of an optimiser step, also average and clip them, and update
    weights, learning rate, metric and memory.
    """
    place = place_of(data, batch)
    settings, retriever, group = data.experiment.train, state.retriever, data.group
    state.memory.before_step(batch.step)
    if place.number == 1:
        state.optimizer.zero_grad(set_to_none=True)
    result = training_step(
        retriever,
        texts,
        data.experiment.objective,
        batch,
        group,
        memory=state.memory,
        estimator=state.estimator,
        autocast=settings.precision_on(group.device.type) == "bfloat16",
        language_chunk=settings.language_chunk,
        embedding_chunk=settings.embedding_chunk,
        clock=clock,
    )
    with clock("optimiser"):
        if place.is_last and place.size > 1:
            divide(retriever.parameters(), place.size)
        norm = (
            clip(retriever.parameters(), settings.clip_norm)
            if place.is_last
            else total_norm(retriever.parameters()) / place.number
        )
        check_finite(f"gradient norm at epoch {batch.epoch}, step {batch.step}", norm, batch.clip_ids, group)
        if place.is_last:
            state.optimizer.step()
            state.scheduler.step()
            retriever.learned.after_step()
    ids = data.features.clip_ids
    if result.embeddings is not None:
        rows, slots = batch.global_batch.rows, batch.global_batch.slots
        is_clean = partial(state.estimator.is_clean, rows, slots)
        state.memory.after_batch(result.embeddings, [ids[row] for row in rows.tolist()], is_clean)
    if place.is_last:
        state.memory.after_step()
    return result._replace(scalars={**result.scalars, "gradient_norm": float(norm)})


def final_report(progress: Progress, data: TrainingData, folder: Path, sync: CheckpointSync | None) -> FinalReport:
    """The best epoch's metrics on the test split, if there is one. The retriever and its scores are copied to the store."""
    experiment, prepared, group = data.experiment, data.prepared, data.group
    if sync is not None:
        sync.share(BEST, is_first=group.is_first)
    split = experiment.data.test_split
    measured: dict[Metric, float] = {}
    if split in read_json(prepared.features / MANIFEST_FILE)["splits"]:
        best = prepared.reading(Retriever.from_pretrained(folder / BEST))
        if experiment.scaling.shard_towers and group.size > 1:
            best.shard(group.device)
        best = best.to(group.device)
        features, texts = open_features(prepared.features, split), TextBatcher(best)
        keep = partial(keep_scores, folder) if group.is_first else None
        measured = evaluate_split(best, texts, features, experiment, group, has_other_rankings=True, keep=keep)
        for part in features.parts if len(features.parts) > 1 else ():
            measured_part = evaluate_split(
                best, texts, open_features(prepared.features, split, part), experiment, group
            )
            measured |= {of_part(metric, part): value for metric, value in measured_part.items()}
        if sync is not None and (folder / TEST_SCORES).is_file():
            sync.share(TEST_SCORES.split("/")[0], is_first=group.is_first)
    epochs = len(progress.history)
    return FinalReport.from_groups(
        epoch=epochs,
        best_epoch=progress.best_epoch,
        clean_share=data.clean_share,
        test=measured,
        out_of_patience=epochs < experiment.train.epochs and progress.is_stuck(experiment.train.patience),
    )
