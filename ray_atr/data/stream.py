"""The order of an epoch's clips, planned before anything is read, and the stream of their features in that order.

The order is a permutation drawn from (seed, epoch, clip_id). A step's global batch is the same for any number of
workers, and a resumed run starts its stream at the step where the stopped one ended: the data position of a checkpoint
is a step number.

Cached features are streamed through Ray Data, or read in this process: the same batches in the same order. Tasks of
Ray Data read the rows ahead of the trainer on other cores; sharding among workers and resuming are slices of the plan.

Features that are not cached are computed from the audio in the data set's shards, by the same tasks. With a plan in the order
of the shards (`plan_in_shards`) each row group is read once in an epoch, by one worker.
"""

from __future__ import annotations

import heapq
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ray_atr.common.runtime import await_room, labels_of_this_node, quiet_ray_data, task_errors
from ray_atr.common.sampling import permutation
from ray_atr.common.settings import counted, refuse
from ray_atr.common.storage import is_local, locate
from ray_atr.data.features import FeatureSet, read_block
from ray_atr.data.padding import padded

logger = logging.getLogger(__name__)

BLOCK_BYTES = 16 << 20
"""Bytes that one task reads: many compared with the cost of a task, few enough for an early first batch."""
READER_CPUS = 0.2
"""CPUs of a reading task: one CPU has room for it, a worker, and the process that leads the trial."""
DECODER_CPUS = 0.5
"""CPUs of a task that decodes audio, as when features are computed before training."""
ROW_GROUPS_PER_TASK = 2
READY_SECONDS = 5
"""Seconds in which a task starts if there is room for it."""
READER_SECONDS = 60
"""Seconds that a trainer waits for room for its readers: trials that fill a node may leave none."""


@dataclass(frozen=True)
class EpochOrder:
    """The steps of one epoch for one worker: `rows[step]` are the row numbers of its share of the global batch.

    Where an epoch may have a clip twice, `names[step]` are other names of the clips, each of which it has once.
    """

    epoch: int
    rows: list[np.ndarray]
    names: list[list[str]] | None = None


def steps_per_epoch(num_clips: int, batch_size: int) -> int:
    """Complete global batches in an epoch. The remaining clips differ between epochs, whose orders differ."""
    return num_clips // batch_size


def check_batch_size(num_clips: int, batch_size: int, num_workers: int, *, evenly: bool = True) -> None:
    """ValueError if a global batch cannot be filled from the clips or divided among the workers.

    `evenly`: all shares must be equal, for a fixed number of workers; else a share may have one clip more than another.
    """
    if num_clips < 2:
        raise refuse("data.train_split", counted(num_clips, "clip"), "2 clips or more: a batch compares them")
    if batch_size > num_clips:
        raise refuse("train.batch_size", batch_size, f"at most {num_clips}, the number of training clips")
    if evenly and batch_size % max(num_workers, 1):
        raise refuse("train.batch_size", batch_size, f"a multiple of scaling.workers = {num_workers}")
    if batch_size < num_workers:
        raise refuse("train.batch_size", batch_size, f"at least scaling.workers = {num_workers}")


def training_plan(
    clip_ids: Sequence[str], *, seed: int, epoch: int, batch_size: int, rank: int = 0, num_workers: int = 1
) -> EpochOrder:
    """This worker's share of every global batch of one epoch; shares are contiguous (`share_sizes`)."""
    check_batch_size(len(clip_ids), batch_size, num_workers, evenly=False)
    order = permutation(clip_ids, seed, "epoch", epoch)
    sizes = share_sizes(batch_size, num_workers)
    starts = np.arange(steps_per_epoch(len(clip_ids), batch_size)) * batch_size + sum(sizes[:rank])
    return EpochOrder(epoch=epoch, rows=[order[start : start + sizes[rank]] for start in starts])


def check_parts(batch_size: int, parts: int, num_workers: int) -> None:
    """ValueError unless an order of the shards can be divided among workers: each has whole parts of a batch."""
    if batch_size % parts:
        raise refuse("data.order_parts", parts, f"a number that divides train.batch_size = {batch_size}")
    if parts % max(num_workers, 1):
        raise refuse("data.order_parts", parts, f"a multiple of scaling.workers = {num_workers}")


def steps_in_shards(groups: np.ndarray, batch_size: int, parts: int) -> int:
    """Global batches in an epoch in the order of the shards, the same in each epoch. `groups` [N] is each sample's row group.

    Each row group is assigned to the part with the fewest samples, so that parts differ by at most the largest group. The samples
    that fill no batch are fewer than the largest group for each part and one batch; they differ between epochs. ValueError if not
    even one batch is sure to be filled.
    """
    _, counts = np.unique(groups, return_counts=True)
    fewest = (len(groups) - (parts - 1) * int(counts.max(initial=0))) / parts
    steps = int(fewest // (batch_size // parts))
    if steps < 1:
        allowed = (
            f"fewer: {len(groups):,} samples in {len(counts):,} row groups of up to {counts.max(initial=0):,} may leave a part "
            f"without its {batch_size // parts} samples of a batch; or data.order=exact, which suits a set of this size"
        )
        raise refuse("data.order_parts", parts, allowed)
    return steps


def plan_in_shards(
    sample_ids: Sequence[str],
    groups: np.ndarray,
    *,
    seed: int,
    epoch: int,
    batch_size: int,
    parts: int,
    mixed: int,
    rank: int = 0,
    num_workers: int = 1,
) -> EpochOrder:
    """This worker's share of every global batch of one epoch whose clips are mixed within `mixed` row groups.

    Row groups, in an order drawn from (seed, epoch), are assigned to the parts of a batch; a part goes through `mixed` groups at
    a time, with their samples in an order drawn from (seed, epoch, id). A worker has complete parts, so no other worker reads its
    row groups, and the batches are the same for any number of workers.
    """
    check_parts(batch_size, parts, num_workers)
    steps, size = steps_in_shards(groups, batch_size, parts), batch_size // parts
    turn = np.empty(len(sample_ids), np.int64)
    turn[permutation(sample_ids, seed, "epoch", epoch)] = np.arange(len(sample_ids))
    numbers, counts = np.unique(groups, return_counts=True)
    # Samples by row group, each group in the drawn order.
    by_group = np.split(np.lexsort((turn, groups)), np.cumsum(counts)[:-1])
    of_parts: list[list[np.ndarray]] = [[] for _ in range(parts)]
    dealt = [(0, part) for part in range(parts)]
    for place in permutation([str(number) for number in numbers.tolist()], seed, "row groups", epoch).tolist():
        number, part = heapq.heappop(dealt)
        of_parts[part].append(by_group[place])
        heapq.heappush(dealt, (number + int(counts[place]), part))
    share = parts // max(num_workers, 1)
    orders = []
    for chosen in of_parts[rank * share : (rank + 1) * share]:
        mixed_groups = [np.concatenate(chosen[first : first + mixed]) for first in range(0, len(chosen), mixed)]
        order = np.concatenate([samples[np.argsort(turn[samples])] for samples in mixed_groups])
        orders.append(order[: steps * size].reshape(steps, size))
    return EpochOrder(epoch=epoch, rows=list(np.concatenate(orders, axis=1)))


def share_sizes(batch_size: int, num_workers: int) -> list[int]:
    """Number of clips of a global batch for each worker; the first ones have one more if it does not divide evenly."""
    least, more = divmod(batch_size, num_workers)
    return [least + (rank < more) for rank in range(num_workers)]


def evaluation_plan(num_clips: int, *, batch_size: int, rank: int = 0, num_workers: int = 1) -> EpochOrder:
    """A contiguous share of all rows for each worker, in file order; nothing is dropped or repeated."""
    mine = np.array_split(np.arange(num_clips), num_workers)[rank]
    return EpochOrder(epoch=0, rows=[mine[start : start + batch_size] for start in range(0, len(mine), batch_size)])


@dataclass(frozen=True)
class FeatureBatch:
    """One worker's share of a step: the clips' row numbers `[b]`; and for m windows of them, features `[m, T, F]` float32,
    frames `[m]`, and the index of each window's clip in the share, `clips` `[m]`, ascending.
    """

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

    At most `windows` windows of a clip are used, drawn from (seed, epoch, clip_id). One Ray Data execution reads all plans, so
    that the pipeline is not empty at an epoch's end.
    """
    steps = [
        (
            plan.epoch,
            step,
            rows,
            features.drawn_windows(rows, seed, plan.epoch, windows, plan.names[step] if plan.names else None),
        )
        for number, plan in enumerate(plans)
        for step, rows in enumerate(plan.rows)
        if number or step >= first_step
    ]
    if features.source:
        read = _read_from_shards(features, steps, use_ray)
    else:
        read = _read_through_ray(features, steps) if use_ray and steps else _read_here(features, steps)
    for (epoch, step, rows, drawn), (array, frames) in zip(steps, read, strict=True):
        clips = torch.from_numpy(np.nonzero(drawn >= 0)[0])
        tensors = torch.from_numpy(array.astype(np.float32)), torch.from_numpy(frames.astype(np.int64)), clips
        yield FeatureBatch(epoch, step, rows, *tensors)


Step = tuple[int, int, np.ndarray, np.ndarray]
"""Epoch, number in the epoch, rows of clips, and the windows of each."""
Read = Iterator[tuple[np.ndarray, np.ndarray]]
"""Features and frames, in the order of what was asked for."""


def _read_here(features: FeatureSet, steps: list[Step]) -> Read:
    return (features.of_windows(rows, windows) for *_, rows, windows in steps)


def _read_from_shards(features: FeatureSet, steps: list[Step], use_ray: bool) -> Read:
    """The steps' features, from row groups that are read in the order of their first use, each once in an epoch, and held until
    their last clip is used.
    """
    uses: Counter[tuple[int, int]] = Counter()  # by epoch and clip, in the order of need
    for epoch, _, rows, _ in steps:
        uses.update((epoch, row) for row in rows.tolist())
    needed: dict[tuple[int, int], list[int]] = {}
    for epoch, row in uses:
        needed.setdefault((epoch, int(features.groups[row])), []).append(row)
    units = [(epoch, np.array(rows)) for (epoch, _), rows in needed.items()]
    read = _units_through_ray(features, units) if use_ray and units else _units_here(features, units)
    arriving = zip(units, read, strict=True)
    decoded: dict[tuple[int, int], np.ndarray] = {}
    for epoch, _, rows, _ in steps:
        while any((epoch, row) not in decoded for row in rows.tolist()):
            (of_epoch, of_unit), (contents, frames) = next(arriving)
            # Copies, because a view would hold the features of all of the group.
            decoded |= {
                (of_epoch, row): content[:length].copy()
                for row, content, length in zip(of_unit.tolist(), contents, frames, strict=True)
            }
        arrays = [decoded[epoch, row] for row in rows.tolist()]
        for row in rows.tolist():
            uses[epoch, row] -= 1
            if not uses[epoch, row]:
                del decoded[epoch, row]
        yield padded(arrays, features.num_features, features.dtype)


Units = list[tuple[int, np.ndarray]]
"""(epoch, rows of clips of one row group)."""


def _units_here(features: FeatureSet, units: Units) -> Read:
    return (features.features(rows) for _, rows in units)


def _units_through_ray(features: FeatureSet, units: Units) -> Read:
    """As `_units_here`, read and decoded ahead by tasks: on this node if the shards are on its disk, else on any."""
    # Imported here because decoders are heavy.
    from ray_atr.data.audio import FrontEnd
    from ray_atr.data.row_groups import read_units

    labels = labels_of_this_node() if is_local(locate(features.source)) else None
    # Fewer CPUs for a task if the workers leave no room.
    cpus = _room({DECODER_CPUS: READY_SECONDS, READER_CPUS: READER_SECONDS}, labels, "decodes the audio")
    if cpus is None:
        return _units_here(features, units)
    items = []
    for _, rows in units:
        locations = features.locations_of(rows)
        file, group, _ = locations[0]
        items.append({"file": file, "group": group, "within": np.array([row for *_, row in locations])})
    options = {"folder": features.source, "front_end": FrontEnd(**features.front_end)}
    return _through_ray(items, ROW_GROUPS_PER_TASK, read_units, options, cpus, labels)


def _read_through_ray(features: FeatureSet, steps: list[Step]) -> Read:
    # The features are on this node's disk, and other nodes need not have them.
    labels = labels_of_this_node()
    cpus = _room({READER_CPUS: READER_SECONDS}, labels, "reads the features")
    if cpus is None:
        return _read_here(features, steps)
    items = [{"rows": rows, "windows": windows} for *_, rows, windows in steps]
    sample, _ = features.features(steps[0][2][:1])
    steps_per_block = max(1, min(BLOCK_BYTES // max(sample.nbytes * len(steps[0][2]), 1), 32))
    options = {"folder": str(features.folder), "split": features.split}
    return _through_ray(items, steps_per_block, read_block, options, cpus, labels)


def _room(seconds: dict[float, float], labels: dict[str, str] | None, otherwise: str) -> float | None:
    """The first number of CPUs for which a task starts within the given seconds; None, with a warning, if there is none."""
    late: TimeoutError | None = None
    for cpus, limit in seconds.items():
        try:
            await_room(cpus, what="readers of the training data", labels=labels, seconds=limit)
            return cpus
        except TimeoutError as error:
            late = error
    logger.warning("%s; the trainer %s itself, which is slower and gives the same batches", late, otherwise)
    return None


def _through_ray(
    items: list[dict[str, Any]],
    per_task: int,
    read: Callable[..., dict[str, Any]],
    options: dict[str, Any],
    cpus: float,
    labels: dict[str, str] | None,
) -> Read:
    """The features and frames that tasks read for the items, several in a task, in the order of the items."""
    import ray

    quiet_ray_data()
    ray.data.DataContext.get_current().execution_options.preserve_order = True
    planned = ray.data.from_items(items, override_num_blocks=-(-len(items) // per_task))
    done = planned.map_batches(read, fn_kwargs=options, batch_size=None, num_cpus=cpus, label_selector=labels)
    with task_errors():
        yield from ((row["features"], row["frames"]) for row in done.iter_rows())
