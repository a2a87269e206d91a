"""Cached features streamed in a plan's order: through Ray Data for trainers, or plainly in this process.

Both give the same batches in the same order. Through Ray Data, tasks read the rows ahead of the trainer, at the same time on
other cores; the plan's rows are the data set's items, so sharding among workers and resuming are slices of the plan.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ray_atr.data.epoch_order import EpochOrder
from ray_atr.data.features import FeatureSet, read_block
from ray_atr.runtime import await_room, labels_of_this_node, quiet_ray_data

logger = logging.getLogger(__name__)

# Steps read by one task: enough that a task is worth its start, few enough that the first batch comes soon.
BLOCK_BYTES = 16 << 20
# One CPU holds it beside a worker and the process that leads its trial.
READER_CPUS = 0.2
READER_SECONDS = 60
"""How long a trainer waits for room for its readers: trials that were packed onto one node may leave none."""


@dataclass(frozen=True)
class FeatureBatch:
    """One worker's share of a step: clips' row numbers `[b]`; of the m windows that are heard of them, features `[m, T, F]`
    float32, frames `[m]`, and the place of each one's clip in the share, `clips` `[m]`, in order."""

    epoch: int
    step: int
    rows: np.ndarray
    features: Tensor
    frames: Tensor
    clips: Tensor


def stream(
    features: FeatureSet,
    plans: list[EpochOrder],
    *,
    first_step: int = 0,
    use_ray: bool,
    seed: int = 0,
    windows: int = 1,
) -> Iterator[FeatureBatch]:
    """The batches of consecutive epochs' plans, from `first_step` of the first plan on.

    A clip of several windows is heard by at most `windows` of them, drawn from (seed, epoch, clip_id).
    One Ray Data execution serves all plans, so an epoch's end does not drain the pipeline.
    """
    steps = [
        (plan.epoch, step, rows, features.windows_heard(rows, seed, plan.epoch, windows))
        for number, plan in enumerate(plans)
        for step, rows in enumerate(plan.rows)
        if number or step >= first_step
    ]
    read = _read_through_ray(features, steps) if use_ray else _read_here(features, steps)
    for epoch, step, rows, heard, array, frames in read:
        yield FeatureBatch(
            epoch=epoch,
            step=step,
            rows=rows,
            features=torch.from_numpy(array.astype(np.float32)),
            frames=torch.from_numpy(frames.astype(np.int64)),
            clips=torch.from_numpy(np.nonzero(heard >= 0)[0]),
        )


Step = tuple[int, int, np.ndarray, np.ndarray]
Read = tuple[int, int, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def _read_here(features: FeatureSet, steps: list[Step]) -> Iterator[Read]:
    for epoch, step, rows, windows in steps:
        yield epoch, step, rows, windows, *features.of_windows(rows, windows)


def _read_through_ray(features: FeatureSet, steps: list[Step]) -> Iterator[Read]:
    import ray

    if not steps:
        return
    quiet_ray_data()
    # The features lie on this node's disk, and other nodes need not have them.
    here = labels_of_this_node()
    try:
        await_room(READER_CPUS, what="readers of the training data", labels=here, seconds=READER_SECONDS)
    except TimeoutError as error:
        logger.warning("%s; the trainer reads the features itself, which is slower and gives the same batches", error)
        yield from _read_here(features, steps)
        return
    context = ray.data.DataContext.get_current()
    # Batches must come in the plan's order, whichever task ends first.
    context.execution_options.preserve_order = True
    items = [{"epoch": epoch, "step": step, "rows": rows, "windows": windows} for epoch, step, rows, windows in steps]
    planned = ray.data.from_items(items, override_num_blocks=_num_blocks(features, steps))
    dataset = planned.map_batches(
        read_block,  # type: ignore[arg-type]
        fn_kwargs={"folder": str(features.folder), "split": features.split},
        batch_size=None,
        num_cpus=READER_CPUS,
        label_selector=here,
    )
    for row in dataset.iter_rows():
        yield int(row["epoch"]), int(row["step"]), row["rows"], row["windows"], row["features"], row["frames"]


def _num_blocks(features: FeatureSet, steps: list[Step]) -> int:
    sample, _ = features.features(steps[0][2][:1])
    bytes_per_step = sample.nbytes * len(steps[0][2])
    steps_per_block = max(1, min(BLOCK_BYTES // max(bytes_per_step, 1), 32))
    return -(-len(steps) // steps_per_block)
