"""Ranks as threads of this process, for tests of what is computed across ranks.

What one sends lies in memory at once: a sum takes a tenth of what gloo's processes compute for it, and a plan takes hundreds.
Trainings need processes, `run_processes`: what draws from torch's random state, or changes a module, does so for all threads.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor, distributed
from torch._C._distributed_c10d import _create_work_from_future
from torch.distributed.distributed_c10d import _store_based_barrier
from torch.futures import Future
from torch.testing._internal.distributed import multi_threaded_pg as threaded

SECONDS = 60.0
"""How long they may take."""


def run_threads(work: Callable[..., Any], size: int, *arguments: Any) -> list[Any]:
    """What `work(rank, size, *arguments)` returned on each of `size` ranks, which are a group of torch.distributed."""
    found: list[Any] = [None] * size
    errors: list[str] = []
    store = distributed.HashStore()

    def act(rank: int) -> None:
        try:
            distributed.init_process_group(_Threads.NAME, store=store, rank=rank, world_size=size)
            found[rank] = work(rank, size, *arguments)
            # Whoever still asks for something meets the others here, and fails.
            distributed.barrier()
        except SystemExit:
            pass  # It waited for one that has failed.
        except BaseException as error:  # noqa: BLE001
            errors.append(f"rank {rank}:\n{traceback.format_exc()}")
            threaded.ProcessLocalGroup.exception_handle(error)

    threads = [threading.Thread(target=act, args=(rank,), daemon=True) for rank in range(size)]
    torch._C._distributed_c10d._set_thread_isolation_mode(True)  # type: ignore[attr-defined]
    threaded._install_threaded_pg()
    try:
        ended = time.monotonic() + SECONDS
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, ended - time.monotonic()))
        if any(thread.is_alive() for thread in threads):
            errors.append(f"ranks have not ended after {SECONDS} s")
            threaded.ProcessLocalGroup.exception_handle(None)
    finally:
        threaded._uninstall_threaded_pg()
        torch._C._distributed_c10d._set_thread_isolation_mode(False)  # type: ignore[attr-defined]
        threaded.ProcessLocalGroup.reset()
        _LETTERS.clear()
    assert not errors, "\n".join(errors)
    return found


class _Threads(threaded.ProcessLocalGroup):
    """torch's group of threads, with messages from one rank to another."""

    NAME = "threads"

    def send(self, tensors: list[Tensor], to: int, tag: int) -> distributed.Work:
        self._letters(self._rank, to).put(tensors[0].detach().clone())
        return _done(tensors)

    def recv(self, tensors: list[Tensor], sender: int, tag: int) -> distributed.Work:
        tensors[0].copy_(self._letters(sender, self._rank).get(timeout=SECONDS))
        return _done(tensors)

    def _letters(self, sender: int, to: int) -> SimpleQueue[Tensor]:
        return _LETTERS.setdefault((self.pg_name, sender, to), SimpleQueue())

    def _get_backend(self, device: torch.device) -> Any:
        return self


_LETTERS: dict[tuple[str, int, int], SimpleQueue[Tensor]] = {}


def _make(store: distributed.Store, rank: int, size: int, timeout: timedelta) -> _Threads:
    # As torch's own does: a group is there when all of its ranks are.
    _store_based_barrier(rank, store, "", size, timeout)  # type: ignore[arg-type]  # a type that torch 2.9 lacks
    return _Threads(rank, size)


def _done(value: Any) -> distributed.Work:
    future: Future[Any] = Future()
    future.set_result(value)
    return _create_work_from_future(future)


distributed.Backend.register_backend(_Threads.NAME, _make, devices=["cpu"])
