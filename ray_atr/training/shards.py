"""The sharded part of a run's checkpoints: each worker writes its part of the towers' tensors, in a thread, while the next steps
are computed (`torch.distributed.checkpoint`).

    last/state.pt      the rest, and which of the two folders belongs to it; written last, when the checkpoint is complete
    last/shards-0      shard-00001-....safetensors of each worker, and a sealed list of them
    last/shards-1      the one before, until the newer one is complete

Any number of workers reads them again, and one process without a group too. Files are safetensors: nothing is unpickled.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import checkpoint as torch_checkpoint
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from ray_atr.common.atomic import new_folder, remove_folder
from ray_atr.common.digests import check_file, digest_of_file, digests_of, seal_folder
from ray_atr.common.settings import shortened
from ray_atr.common.transfer import CheckpointSync
from ray_atr.training.group import WorkerGroup
from ray_atr.training.run_folder import LAST

SLOTS = ("shards-0", "shards-1")
IN_STEP = StagingOptions(
    use_pinned_memory=False, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False
)
Result = TypeVar("Result")


class ShardWriter:
    """Writes and reads the tensors that are sharded over the workers; all workers make the same calls.

    `folder` is the trial's: the same for all workers, or, with a `sync`, each worker's own copy of what a store holds.
    """

    def __init__(self, folder: Path, group: WorkerGroup, sync: CheckpointSync | None = None) -> None:
        self.folder, self.group, self.sync = folder / LAST, group, sync
        self.slot = SLOTS[1]
        """The folder of the last checkpoint."""
        # A group of its own, so that neither training nor the checkpoint waits for the other; it exchanges objects on the CPU.
        self._peers: Any = dist.new_group(backend="gloo") if group.size > 1 else None
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._writing: Future[None] | None = None

    def save(self, tensors: Mapping[str, Tensor], finish: Callable[[str], object]) -> None:
        """Begin to write the present values of tensors.

        The first worker calls `finish(slot)` in the thread when all parts are on disk. Then the checkpoint is valid, and the one
        before is removed.
        """
        self.wait()
        stager = DefaultStager(IN_STEP)
        staged: Any = stager.stage(dict(tensors))
        stager.close()
        self._writing = self._thread.submit(self._write, staged, SLOTS[self.slot == SLOTS[0]], finish)

    def wait(self) -> None:
        """Wait until the checkpoint that was begun is complete on all workers. Raises the error of its thread."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def listed(self, slot: str) -> dict[str, tuple[torch.Size, torch.dtype]]:
        """The shape and type of each tensor in a slot. ValueError, on every worker, if it is not complete."""
        place = self.folder / slot
        names = sorted(digests_of(place)) if place.is_dir() else []
        if not names:
            raise ValueError(f"{place}: not a complete checkpoint (the list of its files is missing)")

        def check() -> None:
            # Each worker reads its share of the files.
            for name in names[self.group.rank :: self.group.size]:
                check_file(place, name)

        self._together(check)
        metadata = HuggingFaceStorageReader(str(place)).read_metadata().state_dict_metadata
        return {name: (entry.size, entry.properties.dtype) for name, entry in metadata.items()}  # type: ignore[union-attr]

    def load(self, slot: str, tensors: dict[str, Tensor]) -> None:
        """Read a slot's tensors into these, which may be sharded in another way. Call `listed` before."""
        reader = HuggingFaceStorageReader(str(self.folder / slot))
        _checked(
            torch_checkpoint.load,
            tensors,
            storage_reader=reader,
            process_group=self._peers,
            no_dist=self._peers is None,
        )
        self.slot = slot

    def close(self) -> None:
        """Wait for the checkpoint that was begun; its errors are ignored."""
        with suppress(Exception):
            self.wait()
        self._thread.shutdown(wait=False)

    def _write(self, tensors: dict[str, Tensor], slot: str, finish: Callable[[str], object]) -> None:
        rank, is_first, is_own = self.group.rank, self.group.is_first, self.sync is not None
        with ExitStack() as stack:
            aside = new_folder(self.folder / slot, is_synced=True)
            owns = is_first or is_own
            folders = self._together(lambda: str(stack.enter_context(aside)) if owns else "")
            place = Path(folders[rank] or folders[0])
            writer = HuggingFaceStorageWriter(str(place), save_distributed=True)
            _checked(
                torch_checkpoint.save,
                tensors,
                storage_writer=writer,
                process_group=self._peers,
                no_dist=self._peers is None,
            )
            own = f"shard-{rank + 1:05d}-*"
            parts = self._together(lambda: {file.name: digest_of_file(file) for file in sorted(place.glob(own))})
            digests = {name: digest for part in parts for name, digest in part.items()}
            self._together(lambda: seal_folder(place, digests) if is_first else None)
            self._together(stack.close)
        sync, folder = self.sync, f"{LAST}/{slot}/"
        sent = self._together(lambda: sync.send(folder) if sync is not None and not is_first else {})

        def publish() -> None:
            if is_first:
                finish(slot)
            if owns:
                remove_folder(self.folder / SLOTS[slot == SLOTS[0]])
            if is_first and sync is not None:
                sync.put({name: digest for part in sent for name, digest in part.items()})

        self._together(publish)
        self.slot = slot

    def _together(self, work: Callable[[], Result]) -> list[Result]:
        """The results of each worker's `work`, by rank. If one fails, all raise."""
        if self._peers is None:
            return [work()]
        answers: list[Any] = [None] * self.group.size
        try:
            result = work()
        except Exception as error:
            dist.all_gather_object(answers, _Failed(str(error), isinstance(error, ValueError)), group=self._peers)
            raise
        dist.all_gather_object(answers, result, group=self._peers)
        for rank, answer in enumerate(answers):
            if isinstance(answer, _Failed):
                raise (ValueError if answer.is_value_error else RuntimeError)(f"worker {rank}: {answer.text}")
        return answers


class _Failed(NamedTuple):
    """The text of a worker's error, and whether it was a ValueError."""

    text: str
    is_value_error: bool


def _checked(call: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """Call torch; its CheckpointException, which is no `Exception`, is raised as the error that caused it."""
    try:
        with warnings.catch_warnings():
            # torch warns in every call without a group.
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            call(*arguments, **options)
    except CheckpointException as failed:
        rank, (error, _) = min(failed.failures.items())
        if isinstance(error, OSError | ValueError):
            raise error from None
        raise RuntimeError(f"worker {rank}: {shortened(str(error))}") from None
