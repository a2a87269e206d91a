"""Which clips every worker sees at every step of an epoch, decided before anything is read.

The order is a permutation drawn from (seed, epoch, clip_id). A step's global batch is the same for any number of
workers, and a resumed run starts its stream at the step where the stopped one ended: the data position of a checkpoint
is a step number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ray_atr.data.sampling import permutation
from ray_atr.settings import refuse


@dataclass(frozen=True)
class EpochOrder:
    """The steps of one epoch for one worker: `rows[step]` are the row numbers of its share of the global batch."""

    epoch: int
    rows: list[np.ndarray]


def steps_per_epoch(num_clips: int, batch_size: int) -> int:
    """Whole global batches in an epoch; the clips left over take their turn in another epoch's order."""
    return num_clips // batch_size


def check_batch_size(num_clips: int, batch_size: int, num_workers: int, *, evenly: bool = True) -> None:
    """ValueError if a global batch cannot be filled from the clips or divided among the workers.

    `evenly` is asked of a fixed number of workers; if it changes, a share may have one clip more than another.
    """
    if batch_size > num_clips:
        raise refuse("train.batch_size", batch_size, f"at most {num_clips}, the number of training clips")
    if evenly and batch_size % max(num_workers, 1):
        raise refuse("train.batch_size", batch_size, f"a multiple of scaling.workers = {num_workers}")
    if batch_size < num_workers:
        raise refuse("train.batch_size", batch_size, f"at least scaling.workers = {num_workers}")


def training_plan(
    clip_ids: Sequence[str], *, seed: int, epoch: int, batch_size: int, rank: int = 0, num_workers: int = 1
) -> EpochOrder:
    """This worker's share of every global batch of one epoch, in an order drawn from (seed, epoch, clip_id).

    Shares are contiguous and differ by at most one clip (`share_sizes`).
    """
    check_batch_size(len(clip_ids), batch_size, num_workers, evenly=False)
    order = permutation(clip_ids, seed, "epoch", epoch)
    sizes = share_sizes(batch_size, num_workers)
    starts = np.arange(steps_per_epoch(len(clip_ids), batch_size)) * batch_size + sum(sizes[:rank])
    return EpochOrder(epoch=epoch, rows=[order[start : start + sizes[rank]] for start in starts])


def share_sizes(batch_size: int, num_workers: int) -> list[int]:
    """Clips of a global batch that each worker has: the first ones have one more if it does not divide evenly."""
    least, more = divmod(batch_size, num_workers)
    return [least + (rank < more) for rank in range(num_workers)]


def evaluation_plan(num_clips: int, *, batch_size: int, rank: int = 0, num_workers: int = 1) -> EpochOrder:
    """A contiguous share of all rows for each worker, in file order; nothing is dropped or repeated."""
    mine = np.array_split(np.arange(num_clips), num_workers)[rank]
    return EpochOrder(epoch=0, rows=[mine[start : start + batch_size] for start in range(0, len(mine), batch_size)])
