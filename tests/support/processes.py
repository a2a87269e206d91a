"""Several processes that talk to each other by torch's gloo, for tests of what is computed across them."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from tests.support.fork_server import forks

SECONDS = 240
"""How long they may take."""


def run_processes(work: Callable[..., Any], size: int, folder: Path, *arguments: Any) -> list[Any]:
    """What `work(rank, size, folder, *arguments)` returned in each of `size` processes, which have met already.

    `work` is a function of a module, and what it is given can be pickled. The processes are forks of one that has imported
    torch and the package once and for all: each would need four seconds of computing for that.
    """
    folder.mkdir(parents=True, exist_ok=True)
    processes = [
        forks().Process(target=_process, args=(work, rank, size, folder, arguments), daemon=True)
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    try:
        ended = time.monotonic() + SECONDS
        # The others wait for ever for one that has died.
        while time.monotonic() < ended and not any(process.exitcode for process in processes):
            if not (running := [process.sentinel for process in processes if process.exitcode is None]):
                break
            wait(running, timeout=max(0.0, ended - time.monotonic()))
        errors = "\n".join(path.read_text() for path in sorted(folder.glob("*.error")))
        assert [process.exitcode for process in processes] == [0] * size, errors
    finally:
        for process in processes:
            process.kill()
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(size)]


def _process(work: Callable[..., Any], rank: int, size: int, folder: Path, arguments: tuple[Any, ...]) -> None:
    """One of the processes: meets the others, works, and saves what was found, or the error."""
    torch.set_num_threads(1)
    if hasattr(os, "SCHED_BATCH"):
        # Who is woken by a message does not take the core away from who computes. Else gloo's threads, kept from what they are
        # told of, ask for it again and again: four processes on two cores compute five times as long, nearly all for nothing.
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    try:
        if size > 1:
            store = distributed.FileStore(str(folder / "store"), size)
            distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
        torch.save(work(rank, size, folder, *arguments), folder / f"{rank}.pt")
        if distributed.is_initialized():
            distributed.barrier()
    except BaseException:  # noqa: BLE001
        (folder / f"{rank}.error").write_text(f"process {rank}:\n{traceback.format_exc()}")
        os._exit(1)
    # gloo's threads now and then abort the interpreter's own shutdown, when everything is said and saved.
    os._exit(0)
