"""Measurements after an epoch's last step; every worker takes part.

From Yin et al. 2025 (section 3, Eq. 6-8): how far a run's scheme is from one with all languages, and how far its weights are from
another run's at the same step. w are the weights of the other run, trained on the data distribution p of all languages (kcl); w'
are those of this one, trained on p'_e. The paper proves the bound for gradient descent; here it is measured under any optimiser,
to be compared with the distance itself.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ray_atr.common.sampling import permutation
from ray_atr.metrics.epoch_report import EpochReport
from ray_atr.models.retriever import Retriever
from ray_atr.models.sharding import gathered
from ray_atr.objectives import Embeddings, Objective, metric_scalars, schemes
from ray_atr.training import drift
from ray_atr.training.base_encoding import BLOCK, BaseSource, SourceEncoder, concatenated
from ray_atr.training.batch import Batch, TrainingData
from ray_atr.training.checkpoint import TrainState
from ray_atr.training.encoding.texts import TextBatcher
from ray_atr.training.group import WorkerGroup
from ray_atr.training.knowledge_base.memory import SnapshotMemory
from ray_atr.training.knowledge_base.parts import part_of_worker
from ray_atr.training.knowledge_base.searcher import as_tensor
from ray_atr.training.knowledge_base.snapshot import Snapshot
from ray_atr.training.share import embed_batch
from ray_atr.training.step import StepResult
from ray_atr.training.trajectory import OtherRun, keep_weights

PAPERS_TEMPERATURE = 0.07
PAIRS = 4
"""Number of pairs (a, t) of all languages, and of pairs that the scheme trains, whose gradients are measured."""


class EpochEnd:
    """Measures a run's state at the end of an epoch."""

    def __init__(self, data: TrainingData, state: TrainState, folder: Path) -> None:
        self.experiment, self.data, self.state, self.folder = data.experiment, data, state, folder
        evaluation, distance_to = self.experiment.evaluation, self.experiment.train.distance_to
        self.other = OtherRun(distance_to, state.retriever, data.steps_per_epoch) if distance_to else None
        self.probe: DriftProbe | None = None
        if isinstance(state.memory, SnapshotMemory) and evaluation.probe_clips:
            source = SourceEncoder(self.experiment, data.prepared).source
            self.probe = DriftProbe(source, self.experiment.seed, evaluation.probe_clips)

    def report(self, texts: TextBatcher, last: Batch, result: StepResult, means: dict[str, float]) -> EpochReport:
        """The epoch's report without validation; `means` are the means of its steps' scalars."""
        device = self.data.group.device
        is_gpu = device.type == "cuda"
        memory = {"peak_allocated_bytes": float(torch.cuda.max_memory_allocated(device))} if is_gpu else {}
        return EpochReport.from_groups(
            epoch=self.state.progress.epoch,
            step=last.step + 1,
            train=means | self._of_training(texts, last),
            knowledge=self._of_knowledge(last, result),
            memory=memory,
        )

    def _of_training(self, texts: TextBatcher, last: Batch) -> dict[str, float]:
        """Noise, learned metric, the scheme's errors, and the distance to another run's weights."""
        retriever, learned = self.state.retriever, self.state.retriever.learned
        values = {"clean_share": self.data.clean_share}
        if learned.metric is not None:
            scalars = metric_scalars(learned.metric.detach(), learned.settings.metric)
            values |= {name: float(value) for name, value in scalars.items()}
        values |= {**self.state.estimator.end_epoch(), "learning_rate": float(self.state.scheduler.get_last_lr()[0])}
        scheme, batch = self.experiment.objective.scheme, last.global_batch
        if len(last.languages) > 1 and bool(scheme.needed(batch.mask, batch.draw).any()):
            values |= scheme_errors(retriever, texts, self.experiment.objective, last, self.data.group)
        step = last.step + 1
        if self.experiment.train.keep_trajectory:
            weights_now = retriever.state_dict() if retriever.calls is None else gathered(retriever.state_dict())
            if self.data.group.is_first:
                keep_weights(self.folder, step, weights_now)
        if self.other is not None and (weights := self.other.weights_after(step)) is not None:
            error = values.get("data_distribution_error", 0.0)
            values |= weight_errors(self.data, self.state, weights, texts, last, error)
        return values

    def _of_knowledge(self, last: Batch, result: StepResult) -> dict[str, float]:
        """The memory's statistics, and its influence and drift, on the epoch's last batch."""
        state, objective, memory = self.state, self.experiment.objective, self.state.memory
        if not objective.knowledge.needs_retrieval:
            return {}
        if result.embeddings is None:
            # Only for a batch without texts to compare: objectives that retrieve gather embeddings.
            return memory.stats(last.step + 1)
        learned, draw = state.retriever.learned.values(), last.global_batch.draw
        ids = self.data.features.clip_ids
        in_batch = memory.is_in_batch([ids[row] for row in last.global_batch.rows.tolist()])
        influence = partial(
            drift.out_of_batch_influence, objective, result.embeddings, memory.latest, learned=learned, draw=draw
        )
        measured = {**memory.stats(last.step + 1), "out_of_batch_influence": influence(in_batch=in_batch)}
        if getattr(memory.latest, "coarse", None) is not None:
            measured["prototype_influence"] = influence(granularity="coarse")
        if self.probe is not None and isinstance(memory, SnapshotMemory):
            labels = [self.data.features.labels[row] for row in last.global_batch.rows.tolist()]
            measured |= self.probe.measure(memory, state.retriever, labels, self.data.group)
        return measured


class DriftProbe:
    """Measures the drift of the base in use, its prototypes' collapse, and how often neighbours share a label.

    Drift needs every entry of the base by the current encoders: each worker encodes a share of the source, which costs as much
    as a refresh. The queries are a fixed sample of the source's clips.
    """

    def __init__(self, source: BaseSource, seed: int, num_clips: int) -> None:
        self.source = source
        ids = source.features.clip_ids
        self.rows = np.sort(permutation(ids, seed, "probe", 0)[:num_clips])
        self._labels_of: dict[str, list[str]] = dict(zip(ids, source.features.labels, strict=True))

    def measure(
        self, memory: SnapshotMemory, retriever: Retriever, labels: Sequence[Sequence[str]], group: WorkerGroup
    ) -> dict[str, float]:
        """The snapshot in use compared with the current retriever, on every worker; `labels` [B] of the last global batch."""
        snapshot = memory.snapshot
        assert snapshot is not None, "measured after a step"
        measured = self._drift(snapshot, retriever, group)
        if snapshot.num_prototypes:
            # Without prototypes that have no member in a modality: their rows are zeros.
            audio, text = (
                snapshot.coarse_audio[snapshot.coarse_audio_mask],
                snapshot.coarse_text[0][snapshot.coarse_mask[0]],
            )
            measured["prototype_cosine_audio"] = drift.prototype_collapse(as_tensor(audio))
            measured["prototype_cosine_text"] = drift.prototype_collapse(as_tensor(text))
        if memory.positions is not None:
            neighbours = torch.cat([memory.positions.fine_audio, memory.positions.fine_text], dim=1)
            of_entries = [self._labels_of[name] for name in snapshot.names]
            measured["neighbour_label_share"] = drift.neighbour_label_share(neighbours, labels, of_entries)
        return {name: value for name, value in measured.items() if not math.isnan(value)}

    def _drift(self, snapshot: Snapshot, retriever: Retriever, group: WorkerGroup) -> dict[str, float]:
        """RDM of both modalities; empty while none of the queries is in the snapshot.

        Each worker encodes entries that its part of the snapshot holds, so that no process needs all of them. Entries without a
        text, whose rows are zeros, do not count among the texts.
        """
        position_of = {name: position for position, name in enumerate(snapshot.names)}
        ids = self.source.features.clip_ids
        if not any(ids[row] in position_of for row in self.rows):
            return {}
        part = part_of_worker(group.rank, group.size, 1 if snapshot.part.is_whole else snapshot.part.of)
        block = part.worker_rows(len(snapshot), group.rank, group.size)
        mine = np.array(
            [row for row, name in enumerate(ids) if block.start <= position_of.get(name, -1) < block.stop],
            np.int64,
        )
        parts = np.array_split(mine, max(1, -(-len(mine) // BLOCK)))
        with retriever.evaluating(), retriever.equal_calls():
            entries = concatenated([self.source.encode(retriever, part) for part in parts])
        positions = np.array([position_of[ids[row]] for row in mine], np.int64)
        has_text = snapshot.text_mask[0, positions] & self.source.has_text[0, mine]
        measured = {}
        for name, encoded, stale, has in (
            ("drift_audio", entries.audio, snapshot.audio, np.ones(len(mine), dtype=bool)),
            ("drift_text", entries.text[0], snapshot.text[0], has_text),
        ):
            current, is_query = encoded[has], np.isin(mine[has], self.rows)
            queries = torch.cat([torch.from_numpy(clips) for clips in group.gather_objects(current[is_query])])
            stored = torch.from_numpy(stale[positions[has] - snapshot.rows.start].astype(np.float32))
            own_part = drift.drift_of_part(queries, torch.from_numpy(current), stored)
            measured[name] = drift.drift_of_parts(group.gather_objects(own_part))
        return measured


@torch.no_grad()
def scheme_errors(
    retriever: Retriever, texts: TextBatcher, objective: Objective, batch: Batch, group: WorkerGroup
) -> dict[str, float]:
    """`schemes.alignment_direction_error` (degrees) and `schemes.data_distribution_error` of a global batch.

    All of the batch's texts are embedded, also those that the scheme does not need. All workers take part and get the same.
    """
    audio, text = _embedded(retriever, texts, batch)
    draw, mask = batch.global_batch.draw, batch.global_batch.mask
    embeddings = Embeddings(audio=group.gather(audio), text=group.gather(text), mask=mask)
    error = schemes.data_distribution_error(embeddings, objective.scheme, draw, temperature_of(retriever, objective))
    return {
        "alignment_direction_error": float(schemes.alignment_direction_error(embeddings, objective.scheme, draw)),
        "data_distribution_error": float(error),
    }


def temperature_of(retriever: Retriever, objective: Objective) -> float:
    """The learned temperature, or the pair loss's setting, or PAPERS_TEMPERATURE for losses without one."""
    learned = retriever.learned.values().temperature
    return float(getattr(objective.pair, "temperature", PAPERS_TEMPERATURE) if learned is None else learned)


def weight_errors(
    data: TrainingData,
    state: TrainState,
    other: Mapping[str, Tensor],
    texts: TextBatcher,
    batch: Batch,
    distribution_error: float,
) -> dict[str, float]:
    """||w - w'|| after an epoch, and the logarithm (base 10) of its bound; the first alone if the share has no caption.

    `distribution_error` is the sum of |p - p'_e| on this batch; the learning rate (eta) is the run's peak. The constants of
    Eq. 7 and 8 are taken from some of the batch's pairs, so the bound is an estimate: g_max is the largest norm of the gradient
    of log p at w, of a pair in any language; lambda is the difference of the gradients at w and w', divided by ||w - w'||, of a
    pair that the scheme trains (others have p'_e = 0 in Eq. 8). Deterministic; the retriever is not changed.
    """
    retriever, objective, progress = state.retriever, data.experiment.objective, state.progress
    learning_rate = max(float(group["initial_lr"]) for group in state.optimizer.param_groups)
    epoch_ago = progress.unvalidated or (progress.history[-1] if progress.history else {})
    mine = {name: value.detach().cpu() for name, value in retriever.state_dict().items()}
    distance = schemes.weight_distance(mine, other)
    if not bool(batch.mask.any()):
        # The bound's constants are those of pairs.
        return {"weight_distance": distance}
    theirs = copy.deepcopy(retriever)
    theirs.load_state_dict(dict(other))
    needed, temperature = objective.scheme.needed(batch.mask, batch.draw), temperature_of(retriever, objective)
    own_log_p, other_log_p = (
        _LogProbabilities(each, texts.with_retriever(each), batch, needed, temperature) for each in (retriever, theirs)
    )
    largest = max(float(other_log_p.gradient(pair).norm()) for pair in other_log_p.present)
    weighted, weights = 0.0, 0.0
    for pair in own_log_p.trained:
        g, g_other = own_log_p.gradient(pair), other_log_p.gradient(pair)
        largest = max(largest, float(g_other.norm()))
        weighted += own_log_p.probability(pair) * float((g - g_other).norm()) / max(distance, 1e-12)
        weights += own_log_p.probability(pair)
    growth = 1 + learning_rate * weighted / max(weights, 1e-12)
    earlier, push = epoch_ago.get("train/weight_distance", 0.0), learning_rate * distribution_error * largest
    bound = schemes.log10_weight_error_bound(earlier, growth, data.steps_per_epoch, push)
    values = {"weight_distance": distance, "weight_error_growth": growth}
    return values if math.isinf(bound) else {**values, "weight_distance_bound_log10": bound}


class _LogProbabilities:
    """log p of a batch's pairs (Eq. 1), and its gradients.

    A pair is its index in clips x languages, flattened. `present`: some of all pairs; `trained`: some that the scheme trains.
    """

    def __init__(
        self, retriever: Retriever, texts: TextBatcher, batch: Batch, needed: Tensor, temperature: float
    ) -> None:
        self.retriever = retriever
        self.parameters = [parameter for parameter in retriever.parameters() if parameter.requires_grad]
        with torch.enable_grad():
            logits = torch.einsum("bd,bkd->bk", *_embedded(retriever, texts, batch)) / temperature
            absent = ~batch.mask.to(logits.device)
            self.log_p = logits.masked_fill(absent, -torch.inf).flatten().log_softmax(dim=0)
        self.trained_p = logits.detach().masked_fill(~needed.to(logits.device), -torch.inf).flatten().softmax(dim=0)
        self.present, self.trained = _spread_evenly(batch.mask), _spread_evenly(needed)

    def probability(self, pair: int) -> float:
        """p'_e of the pair (Eq. 4)."""
        return float(self.trained_p[pair])

    def gradient(self, pair: int) -> Tensor:
        """The gradient of log p with respect to all trained weights, as one vector on the CPU."""
        # In the mode of the forward pass: with activation checkpointing, this computes parts of it again.
        with self.retriever.evaluating():
            parts = torch.autograd.grad(self.log_p[pair], self.parameters, retain_graph=True, allow_unused=True)
        pairs = zip(parts, self.parameters, strict=True)
        return torch.cat(
            [(torch.zeros_like(parameter) if part is None else part).flatten().cpu() for part, parameter in pairs]
        )


def _embedded(retriever: Retriever, texts: TextBatcher, batch: Batch) -> tuple[Tensor, Tensor]:
    """All of a share's clips [b, D] and texts [b, K, D], in evaluation mode."""
    with retriever.evaluating(), retriever.equal_calls():
        audio = embed_batch(retriever, batch).float()
        return audio, texts.embed_grid(batch.captions.texts, batch.captions.mask, batch.languages).float()


def _spread_evenly(mask: Tensor) -> list[int]:
    """The places of a few true entries of a mask, evenly spread."""
    indices = mask.flatten().nonzero()[:, 0]
    return indices[torch.linspace(0, len(indices) - 1, min(PAIRS, len(indices))).long()].tolist()
