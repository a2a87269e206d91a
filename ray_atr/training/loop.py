"""The training loop of one worker: the same with Ray's workers around it and without Ray at all."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ray_atr.data.captions import TrainingCaptions
from ray_atr.data.features import open_features
from ray_atr.data.plan import Plan, check_batch_size, steps_per_epoch, training_plan
from ray_atr.data.stream import FeatureBatch, stream
from ray_atr.experiment import Experiment
from ray_atr.knowledge.recall import BaseRecall, Recall, local_host, make_recall
from ray_atr.knowledge.refreshing import Host
from ray_atr.models.augment import spec_augment
from ray_atr.models.retriever import Retriever, build_retriever, metric_arguments
from ray_atr.objectives import Embeddings
from ray_atr.objectives.knowledge.based import Based
from ray_atr.override import flatten
from ray_atr.run_folder import BEST, LAST
from ray_atr.training.checkpoint import (
    STATE_FILE,
    load_checkpoint,
    random_state,
    restore_random_state,
    save_checkpoint,
)
from ray_atr.training.diagnostics import OtherRun, direction_error, metric_state
from ray_atr.training.group import WorkerGroup
from ray_atr.training.knowledge import MakeHost, SourceEncoder
from ray_atr.training.mirror import Mirror
from ray_atr.training.prepare import Prepared
from ray_atr.training.probe import BaseProbe, influence
from ray_atr.training.step import StepInput, as_draw, check_finite, training_step
from ray_atr.training.texts import TextBatcher
from ray_atr.training.validation import evaluate_split, split_exists

Report = Callable[[dict[str, Any]], None]
"""Called by every worker with one epoch's metrics; the first worker's are kept."""


@dataclass
class Progress:
    """Where a run stands: what a checkpoint holds beside weights and optimiser."""

    epoch: int = 0
    step_in_epoch: int = 0
    best_epoch: int = 0
    best_value: float = -math.inf
    history: list[dict[str, Any]] = field(default_factory=list)
    sums: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0


def train(
    experiment: Experiment,
    prepared: Prepared,
    folder: Path,
    report: Report,
    group: WorkerGroup | None = None,
    *,
    use_ray_data: bool = True,
    make_host: MakeHost | None = None,
    mirror: Mirror | None = None,
) -> None:
    """Train to the end of the last epoch, from `folder/last` where there is one, and report the best epoch's test metrics.

    Leaves `folder/last` (everything needed to go on) and `folder/best` (the retriever of the best validation epoch).
    Every epoch's metrics are reported, those of a resumed run's earlier epochs again. Raises NonFiniteError before
    a step that would spoil the weights. With a `mirror`, `folder` is this node's copy of what a store holds.
    """
    group = group or WorkerGroup()
    if mirror is not None:
        # The knowledge base is the first worker's affair.
        mirror.fetch("" if group.is_first else f"{LAST}/")
    run = _Run(experiment, prepared, folder, report, group, use_ray_data, make_host, mirror)
    try:
        run.resume()
        run.train_epochs()
        run.finish()
    finally:
        run.close()


class _Run:
    """One worker's state while it trains."""

    def __init__(
        self,
        experiment: Experiment,
        prepared: Prepared,
        folder: Path,
        report: Report,
        group: WorkerGroup,
        use_ray_data: bool,
        make_host: MakeHost | None,
        mirror: Mirror | None,
    ) -> None:
        self.experiment, self.prepared, self.folder, self.report, self.group = (
            experiment,
            prepared,
            folder,
            report,
            group,
        )
        self.use_ray_data = use_ray_data
        self.mirror = mirror
        data, train_settings = experiment.data, experiment.train
        self.features = open_features(prepared.features, data.train_split)
        check_batch_size(len(self.features), train_settings.batch_size, group.size)
        self.captions = TrainingCaptions(self.features, data.languages, data.noise, experiment.seed, data.positives)
        self.whole = build_retriever(
            experiment.model,
            tokenizer=prepared.load_tokenizer(),
            seed=experiment.seed,
            **metric_arguments(experiment.objective.pair),
        )
        # What is trained: it shares everything with the whole one but frozen towers whose vectors are read.
        self.retriever = prepared.reading(self.whole).to(group.device)
        self.texts = TextBatcher(self.retriever)
        self.steps_per_epoch = steps_per_epoch(len(self.features), train_settings.batch_size)
        self.optimizer = _optimizer(self.retriever, experiment)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer,
            warm_up_and_cosine(train_settings.warmup_fraction, self.steps_per_epoch * train_settings.epochs),
        )
        is_bfloat16 = train_settings.precision == "bfloat16"
        self.autocast = is_bfloat16 or (train_settings.precision == "auto" and group.device.type == "cuda")
        self.probe: BaseProbe | None = None
        self.recall = self._make_recall(make_host)
        self.about_knowledge: dict[str, float] = {}
        self.step_seconds: list[float] = []
        self.other = OtherRun(train_settings.distance_to, self.retriever) if train_settings.distance_to else None
        self.last_input: StepInput | None = None
        self.progress = Progress()
        # Each worker draws its own dropout; weights and every other draw are already the same on all of them.
        torch.manual_seed(experiment.seed * 1_000_003 + group.rank)

    def _make_recall(self, make_host: MakeHost | None) -> Recall | None:
        """This worker's memory beyond the batch; the knowledge base behind it is in this process unless a host is given."""
        experiment, knowledge = self.experiment, self.experiment.objective.knowledge
        if not knowledge.needs_retrieval:
            return None
        host: Host | None = None
        if isinstance(knowledge, Based):
            encode = SourceEncoder(experiment, self.prepared)
            if self.group.is_first and experiment.evaluation.probe_clips:
                self.probe = BaseProbe(encode.source, experiment.seed, experiment.evaluation.probe_clips)
            folder = self.folder / "knowledge"
            if make_host is not None:
                host = make_host(knowledge, encode, folder, self.group)
            elif self.group.size == 1:
                host = local_host(knowledge, encode, folder, experiment.seed)
            else:
                raise ValueError("objective.knowledge: a base for several workers needs a host that all of them reach")
        return make_recall(
            knowledge,
            host=host,
            retriever=self.retriever,
            width=experiment.model.embedding_width,
            languages=len(experiment.data.languages),
            ids=self.features.clip_ids,
            is_first=self.group.is_first,
            device=self.group.device,
            seed=experiment.seed,
        )

    def _published_weights(self) -> dict[str, torch.Tensor]:
        return {name: value.detach().cpu().clone() for name, value in self.retriever.state_dict().items()}

    def resume(self) -> None:
        if not (self.folder / LAST / STATE_FILE).is_file():
            return
        state = load_checkpoint(self.folder / LAST, self.group.device)
        if state["experiment"] != deciding_settings(self.experiment):
            raise ValueError(f"{self.folder / LAST}: the checkpoint of another experiment")
        self.retriever.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.progress = Progress(**state["progress"])
        if self.group.rank < len(state["random"]):
            restore_random_state(state["random"][self.group.rank])
        if self.recall is not None:
            self.recall.load_state_dict(state["recall"])
        for metrics in self.progress.history:
            self.report(metrics)

    def train_epochs(self) -> None:
        progress, settings = self.progress, self.experiment.train
        plans = [self._plan(epoch) for epoch in range(progress.epoch, settings.epochs)]
        if not plans:
            return
        batches = stream(self.features, plans, first_step=progress.step_in_epoch, use_ray=self.use_ray_data)
        self.retriever.train()
        started = time.perf_counter()
        for batch in batches:
            self._step(batch)
            is_last = progress.step_in_epoch == self.steps_per_epoch
            every = settings.checkpoint_every_steps
            if is_last or (every and progress.step_in_epoch % every == 0):
                progress.seconds += time.perf_counter() - started
                if is_last:
                    self._end_epoch()
                self._save()
                if is_last:
                    self.report(progress.history[-1])
                started = time.perf_counter()

    def _plan(self, epoch: int) -> Plan:
        return training_plan(
            self.features.clip_ids,
            seed=self.experiment.seed,
            epoch=epoch,
            batch_size=self.experiment.train.batch_size,
            rank=self.group.rank,
            num_workers=self.group.size,
        )

    def _step(self, batch: FeatureBatch) -> None:
        started = time.perf_counter()
        experiment, progress = self.experiment, self.progress
        captions = self.captions.batch(batch.rows, batch.epoch)
        clip_ids = [self.features.clip_ids[row] for row in batch.rows]
        mask = torch.from_numpy(captions.mask)
        step_input = StepInput(
            clip_ids=clip_ids,
            features=spec_augment(
                batch.features, batch.frames, experiment.model.augment, clip_ids, experiment.seed, batch.epoch
            ),
            frames=batch.frames,
            captions=captions,
            draw=as_draw(experiment.objective.scheme.draw(experiment.seed, batch.epoch, clip_ids, mask)),
        )
        self.last_input = step_input
        step = batch.epoch * self.steps_per_epoch + batch.step
        if self.recall is not None:
            if batch.step == 0:
                self.recall.begin_epoch(batch.epoch, step, self._published_weights)
            self.recall.before_step(step)
        self.optimizer.zero_grad(set_to_none=True)
        scalars, embeddings = training_step(
            self.retriever,
            self.texts,
            experiment.objective,
            step_input,
            experiment.data.languages,
            self.group,
            recall=self.recall,
            step=step,
            autocast=self.autocast,
            language_chunk=experiment.train.language_chunk,
            embedding_chunk=experiment.train.embedding_chunk,
        )
        limit = experiment.train.clip_norm or math.inf
        norm = torch.nn.utils.clip_grad_norm_(self.retriever.parameters(), limit)
        check_finite(f"gradient norm at epoch {batch.epoch}, step {batch.step}", norm, step_input, self.group)
        self.optimizer.step()
        self.scheduler.step()
        self.retriever.after_step()
        if self.recall is not None:
            everyone = [clip_id for of_worker in self.group.gather_objects(clip_ids) for clip_id in of_worker]
            self.recall.after_step(embeddings, everyone)
        self.step_seconds.append(time.perf_counter() - started)
        if self.recall is not None and batch.step + 1 == self.steps_per_epoch:
            draw = None if step_input.draw is None else self.group.gather(step_input.draw.to(self.group.device))
            self.about_knowledge = self._diagnose(self.recall, embeddings, draw, everyone)
        progress.epoch, progress.step_in_epoch = batch.epoch, batch.step + 1
        for name, value in {**scalars, "gradient_norm": float(norm)}.items():
            progress.sums[name] = progress.sums.get(name, 0.0) + value

    def _diagnose(
        self, recall: Recall, embeddings: Embeddings, draw: torch.Tensor | None, clip_ids: Sequence[str]
    ) -> dict[str, float]:
        """What the epoch's last global batch and the probe set say about the knowledge; the first worker's alone."""
        if not self.group.is_first:
            return {}
        found = {
            "out_of_batch_influence": influence(
                self.experiment.objective, self.retriever, embeddings, draw, recall.latest
            )
        }
        if self.probe is not None and isinstance(recall, BaseRecall):
            row_of = {clip_id: row for row, clip_id in enumerate(self.features.clip_ids)}
            labels = [self.features.labels[row_of[clip_id]] for clip_id in clip_ids]
            found.update(self.probe.measure(recall, self.retriever, labels))
        return {f"knowledge/{name}": value for name, value in found.items()}

    def _end_epoch(self) -> None:
        progress, experiment = self.progress, self.experiment
        metrics: dict[str, Any] = {
            f"train/{name}": value / self.steps_per_epoch for name, value in progress.sums.items()
        }
        progress.epoch, progress.step_in_epoch, progress.sums = progress.epoch + 1, 0, {}
        metrics.update({f"train/{name}": value for name, value in self._state_of_epoch().items()})
        metrics["train/learning_rate"] = self.scheduler.get_last_lr()[0]
        metrics["epoch"] = progress.epoch
        metrics["step"] = progress.epoch * self.steps_per_epoch
        if self.recall is not None:
            found = self.recall.stats(int(metrics["step"]))
            metrics.update({**found, **self.about_knowledge})
        if self.step_seconds:
            metrics["seconds/step"] = statistics.median(self.step_seconds)
            self.step_seconds.clear()
        if self.group.device.type == "cuda":
            metrics["memory/peak_allocated_bytes"] = float(torch.cuda.max_memory_allocated(self.group.device))
        is_final = progress.epoch == experiment.train.epochs
        if progress.epoch % experiment.evaluation.every_epochs == 0 or is_final:
            started = time.perf_counter()
            metrics.update(self._evaluate(experiment.data.validation_split, experiment.evaluation.validation_captions))
            metrics["seconds/validation"] = time.perf_counter() - started
            value = metrics.get(experiment.evaluation.select_by)
            if value is None and self.group.is_first:
                raise ValueError(
                    f"evaluation.select_by: got {experiment.evaluation.select_by!r}; the validation has "
                    + ", ".join(sorted(name for name in metrics if "/mean/" in name))
                )
            if self.group.is_first and value is not None and value > progress.best_value:
                progress.best_value, progress.best_epoch = float(value), progress.epoch
                self.whole.save_pretrained(self.folder / BEST, frozen=self.prepared.frozen_weights)
        metrics["seconds/train"] = progress.seconds
        metrics["best_epoch"] = progress.best_epoch
        progress.history.append(metrics)

    def _state_of_epoch(self) -> dict[str, float]:
        """What is measured once, after an epoch's last step; every worker takes part."""
        found = {"clean_share": self.captions.clean_share, **metric_state(self.retriever)}
        languages = self.experiment.data.languages
        if self.last_input is not None and len(languages) > 1:
            found["alignment_direction_error"] = direction_error(
                self.retriever, self.texts, self.experiment.objective.scheme, self.last_input, languages, self.group
            )
        if self.other is not None:
            found["weight_distance"] = self.other.distance(self.retriever)
        return found

    def _evaluate(self, split: str, max_captions: int = 0) -> dict[str, float]:
        features = open_features(self.prepared.features, split)
        return evaluate_split(
            self.retriever, self.texts, features, self.experiment, self.group, max_captions=max_captions
        )

    def _save(self) -> None:
        states = self.group.gather_objects(random_state())
        recall = self.recall.state_dict() if self.recall is not None else {}
        if self.group.is_first:
            save_checkpoint(
                self.folder / LAST,
                {
                    "experiment": deciding_settings(self.experiment),
                    "model": self.retriever.state_dict(),
                    "optimizer": self.optimizer.state_dict(),
                    "scheduler": self.scheduler.state_dict(),
                    "progress": vars(self.progress),
                    "random": states,
                    "recall": recall,
                },
            )
            if self.mirror is not None:
                self.mirror.put()
        self.group.barrier()

    def finish(self) -> None:
        """Report the best epoch's retriever on the test split, where there is one."""
        final: dict[str, Any] = {"is_final": True, "best_epoch": self.progress.best_epoch, "epoch": self.progress.epoch}
        final["train/clean_share"] = self.captions.clean_share
        split = self.experiment.data.test_split
        if self.mirror is not None:
            self.mirror.share(BEST, is_first=self.group.is_first)
        if split_exists(self.prepared.features, split):
            best = Retriever.from_pretrained(self.folder / BEST)
            self.retriever = self.prepared.reading(best).to(self.group.device)
            self.texts = TextBatcher(self.retriever)
            final.update({f"test/{name}": value for name, value in self._evaluate(split).items()})
        self.report(final)

    def close(self) -> None:
        """Let go of what the run kept elsewhere."""
        if self.recall is not None:
            self.recall.close()


def deciding_settings(experiment: Experiment) -> str:
    """The settings that decide a run's weights, as text: a checkpoint of others must not be taken up."""
    flat = flatten(experiment)
    kept = {
        k: v for k, v in flat.items() if not k.startswith(("tracking.", "scaling.", "train.checkpoint_every_steps"))
    }
    return json.dumps(kept, sort_keys=True)


def _optimizer(retriever: Retriever, experiment: Experiment) -> torch.optim.Optimizer:
    settings = experiment.train
    optimizer = torch.optim.AdamW if settings.optimizer == "adamw" else torch.optim.Adam
    return optimizer(retriever.parameter_groups(settings.learning_rate, settings.weight_decay))


def warm_up_and_cosine(warmup_fraction: float, num_steps: int) -> Callable[[int], float]:
    """Factor of the peak learning rate at a step: linear rise over the first share of the steps, then a half cosine to 0."""
    warm = max(1, round(warmup_fraction * num_steps))

    def factor(step: int) -> float:
        if step < warm:
            return (step + 1) / warm
        return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warm) / max(1, num_steps - warm))))

    return factor
