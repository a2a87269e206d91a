"""The batches of a run: each worker builds its share, and one gather makes the global batch known to all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from ray_atr.common.sampling import IN_SHARDS, num_weighted, weighted
from ray_atr.data.captions import CaptionBatch, TrainingCaptions
from ray_atr.data.features import FeatureSet, open_features
from ray_atr.data.stream import (
    EpochOrder,
    FeatureBatch,
    check_batch_size,
    plan_in_shards,
    steps_in_shards,
    steps_per_epoch,
    stream,
    training_plan,
)
from ray_atr.models.augment import spec_augment
from ray_atr.training.experiment import Experiment, parse_weights
from ray_atr.training.group import WorkerGroup
from ray_atr.training.inputs import Prepared

STEPS_PLANNED = 2**15
"""Steps in one execution of Ray Data: at its end the pipeline is empty for a moment."""


@dataclass(frozen=True, eq=False)
class GlobalBatch:
    """What every worker knows about the global batch of B clips in K languages, on the workers' device.

    mask    [B, K] bool: languages that a clip has.
    groups  [B]: equal for clips that are not negatives of each other.
    rows    [B]: the clips' numbers in the training split.
    slots   [B]: which of its captions each clip has in this batch.
    draw    [B] or None: the scheme's draw.
    """

    mask: Tensor
    groups: Tensor
    rows: Tensor
    slots: Tensor
    draw: Tensor | None

    @property
    def positive_groups(self) -> Tensor | None:
        """Numbers int64 [B, 1 or 2], the group and the clip: samples with an equal one are not negatives of each other.

        A column without repeated numbers is left out; None if none is left, as in most batches: then the losses need no mask.
        """
        repeated = [numbers for numbers in (self.groups, self.rows) if len(torch.unique(numbers)) < len(numbers)]
        return torch.stack(repeated, dim=1) if repeated else None


@dataclass(frozen=True, eq=False)
class Batch:
    """A worker's share of b clips of a global batch, and the global batch.

    features  [m, T, F]: log-mel frames of the m windows that are used.
    frames    [m]: how many of a window's frames are not padding.
    clips     [m]: the index of each window's clip in the share, ascending.
    draw      [b] or None: the scheme's draw.
    blank     bool [m, T, F] or None: what the tower blanks.
    """

    clip_ids: list[str]
    features: Tensor
    frames: Tensor
    clips: Tensor
    captions: CaptionBatch
    draw: Tensor | None
    languages: tuple[str, ...]
    global_batch: GlobalBatch
    epoch: int = 0
    step: int = 0
    """of the whole run"""
    blank: Tensor | None = None

    @property
    def audio_inputs(self) -> tuple[Tensor, ...]:
        """The arguments of the audio tower."""
        return (self.features, self.frames, *([] if self.blank is None else [self.blank]))

    @property
    def mask(self) -> Tensor:
        """Which languages each clip of the share has, bool [b, K]."""
        return torch.from_numpy(self.captions.mask)

    @classmethod
    def gathered(
        cls,
        clip_ids: list[str],
        features: Tensor,
        frames: Tensor,
        captions: CaptionBatch,
        draw: Tensor | None,
        languages: tuple[str, ...],
        group: WorkerGroup,
        *,
        rows: Tensor | None = None,
        clips: Tensor | None = None,
        epoch: int = 0,
        step: int = 0,
        blank: Tensor | None = None,
    ) -> Batch:
        """The batch from this worker's share, with the global batch from one gather. `clips` None: one window for each clip."""
        own = torch.arange(len(clip_ids))
        clips = own if clips is None else clips
        rows = own + group.rank * len(own) if rows is None else rows
        numbers = [torch.from_numpy(captions.groups), rows, torch.from_numpy(captions.slots)]
        mask = torch.from_numpy(captions.mask).long()
        columns = torch.cat([mask, torch.stack(numbers + ([] if draw is None else [draw]), dim=1)], dim=1)
        everyones = group.gather(columns.to(group.device))
        groups, all_rows, slots, *draws = everyones[:, mask.shape[1] :].unbind(dim=1)
        all_mask = everyones[:, : mask.shape[1]].bool()
        global_batch = GlobalBatch(all_mask, groups, all_rows, slots, draws[0] if draws else None)
        return cls(clip_ids, features, frames, clips, captions, draw, languages, global_batch, epoch, step, blank)


def _sample_name(clip_id: str, slot: int) -> str:
    return f"{clip_id}#{slot}"


def part_weights(features: FeatureSet, entries: Sequence[str]) -> np.ndarray | None:
    """The weight of each part of a joined data set, in the order of `features.parts`; None if all are 1."""
    of_parts = parse_weights(entries)
    weights = np.array([of_parts.get(part, 1.0) for part in features.parts])
    return None if (weights == 1).all() else weights


def numbered_repeats(names: Sequence[str]) -> list[str]:
    """The names; a repeated one gets a number, so that its random draws are its own."""
    counts: Counter[str] = Counter()
    numbered = []
    for name in names:
        numbered.append(f"{name}@{counts[name]}" if counts[name] else name)
        counts[name] += 1
    return numbered


class TrainingData:
    """The training split of an experiment: its clips, the captions that they have, and their order in each epoch."""

    def __init__(self, experiment: Experiment, prepared: Prepared, group: WorkerGroup) -> None:
        data = experiment.data
        self.experiment, self.prepared, self.group = experiment, prepared, group
        self.features = open_features(prepared.features, data.train_split)
        check_batch_size(len(self.features), experiment.train.batch_size, group.size, evenly=False)
        self.captions = TrainingCaptions(self.features, data.languages, data.noise, experiment.seed, data.positives)
        # The samples of an epoch: every clip, or every pair of a clip and one of its captions in any language.
        self._samples = self.features.clip_ids
        self._pairs: tuple[np.ndarray, ...] | None = None
        if data.captions_per_epoch != "one":
            rows, slots = self._pairs = np.nonzero(self.captions.has_caption.any(axis=2))
            pairs = zip(rows.tolist(), slots.tolist(), strict=True)
            self._samples = [_sample_name(self._samples[row], slot) for row, slot in pairs]
        self._weights = part_weights(self.features, data.weights)
        if self._weights is not None:
            parts = np.repeat(np.arange(len(self.features.parts)), list(self.features.parts.values()))
            self._parts = parts if self._pairs is None else parts[self._pairs[0]]
        self._groups: np.ndarray | None = None
        if data.order == IN_SHARDS:
            groups = self.features.groups
            self._groups = groups if self._pairs is None else groups[self._pairs[0]]
            self.steps_per_epoch = steps_in_shards(self._groups, experiment.train.batch_size, data.order_parts)
        else:
            number = len(self._samples) if self._weights is None else num_weighted(self._parts, self._weights)
            check_batch_size(number, experiment.train.batch_size, group.size, evenly=False)
            self.steps_per_epoch = steps_per_epoch(number, experiment.train.batch_size)
        self._slots: dict[int, list[np.ndarray]] = {}
        self._names: dict[int, list[list[str]]] = {}

    @cached_property
    def input_digests(self) -> dict[str, str]:
        """`Prepared.digests` at the start, wherever something is replaced meanwhile."""
        return self.prepared.digests(self.experiment)

    @cached_property
    def clip_weights(self) -> np.ndarray | None:
        """The mean number of times that an epoch has each clip, [N]; None if each occurs once."""
        if self._weights is None:
            return None
        return np.repeat(self._weights, list(self.features.parts.values()))

    @cached_property
    def clean_share(self) -> float:
        """Share of true pairs among those that it trains on."""
        trained, per_epoch = self.experiment.trained_languages, self.experiment.data.captions_per_epoch
        return self.captions.clean_share(trained, per_epoch, self.clip_weights)

    def epochs(self, first: int, first_step: int, *, use_ray: bool) -> Iterator[tuple[int, Iterator[Batch]]]:
        """(epoch, its batches), from step `first_step` of epoch `first` to the last epoch.

        Through Ray, one stream reads many epochs. No further ones are planned: a run that its patience will end may have any
        number of epochs.
        """
        together = max(1, STEPS_PLANNED // self.steps_per_epoch) if use_ray else 1
        last = self.experiment.train.epochs
        for start in range(first, last, together):
            skipped = first_step if start == first else 0
            orders = [self._order(epoch) for epoch in range(start, min(start + together, last))]
            seed, windows = self.experiment.seed, self.experiment.model.training_windows
            read = stream(self.features, orders, first_step=skipped, use_ray=use_ray, seed=seed, windows=windows)
            for epoch, batches in groupby(read, key=lambda batch: batch.epoch):
                yield epoch, map(self._batch, batches)
                self._slots.pop(epoch, None)
                self._names.pop(epoch, None)

    def _order(self, epoch: int) -> EpochOrder:
        settings, data = self.experiment.train, self.experiment.data
        shared: dict[str, int] = {
            "seed": self.experiment.seed, "epoch": epoch, "batch_size": settings.batch_size,
            "rank": self.group.rank, "num_workers": self.group.size,
        }  # fmt: skip
        if self._weights is not None:
            chosen = weighted(self._samples, self._parts, self._weights, self.experiment.seed, epoch)
            names = numbered_repeats([self._samples[sample] for sample in chosen.tolist()])
            order = training_plan(names, **shared)
            self._names[epoch] = [[names[place] for place in part.tolist()] for part in order.rows]
            order = EpochOrder(epoch, [chosen[part] for part in order.rows], self._names[epoch])
        elif self._groups is None:
            order = training_plan(self._samples, **shared)
        else:
            parts, mixed = data.order_parts, data.order_groups
            order = plan_in_shards(self._samples, self._groups, parts=parts, mixed=mixed, **shared)
        if self._pairs is None:
            return order
        rows, slots = self._pairs
        self._slots[epoch] = [slots[chosen] for chosen in order.rows]
        return replace(order, rows=[rows[chosen] for chosen in order.rows])

    def _batch(self, read: FeatureBatch) -> Batch:
        experiment = self.experiment
        slots = self._slots[read.epoch][read.step] if self._slots else None
        clip_ids = [self.features.clip_ids[row] for row in read.rows]
        # Random draws are by sample: two captions of a clip are two samples, and so is a clip that an epoch has twice.
        names = clip_ids if slots is None else [_sample_name(*sample) for sample in zip(clip_ids, slots, strict=True)]
        if self._names:
            names = self._names[read.epoch][read.step]
        captions = self.captions.batch(read.rows, read.epoch, slots, names)
        audio_inputs = [names[clip] for clip in read.clips.tolist()]
        augment, seed = experiment.model.augment, experiment.seed
        augmented, blank = spec_augment(read.features, read.frames, augment, audio_inputs, seed, read.epoch)
        return Batch.gathered(
            clip_ids,
            augmented,
            read.frames,
            captions,
            experiment.objective.scheme.draw(seed, read.epoch, names, torch.from_numpy(captions.mask)),
            experiment.data.languages,
            self.group,
            rows=torch.as_tensor(read.rows, dtype=torch.int64),
            clips=read.clips,
            epoch=read.epoch,
            step=read.epoch * self.steps_per_epoch + read.step,
            blank=blank,
        )
