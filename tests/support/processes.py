"""Several processes of one script that talk to each other by torch's gloo, for tests of what is computed across them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import distributed

ROOT = Path(__file__).parents[2]


def run_processes(script: str, size: int, folder: Path, *arguments: str) -> list[Any]:
    """What each of `size` processes `python script RANK SIZE FOLDER ...` left with `leave`; all must end well."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support")])
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    commands = [[sys.executable, script, str(rank), str(size), str(folder), *arguments] for rank in range(size)]
    processes = [subprocess.Popen(command, env=environment) for command in commands]
    assert [process.wait(timeout=240) for process in processes] == [0] * size
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(size)]


def join(rank: int, size: int, folder: Path) -> None:
    """Meet the other processes."""
    if size > 1:
        store = distributed.FileStore(str(folder / "store"), size)
        distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)


def leave(rank: int, size: int, folder: Path, found: Any) -> None:
    """Save what was found, and end the process."""
    torch.save(found, folder / f"{rank}.pt")
    if size > 1:
        distributed.barrier()
    # gloo's threads now and then abort the interpreter's own shutdown, when everything is said and saved.
    os._exit(0)
