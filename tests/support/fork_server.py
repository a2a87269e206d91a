"""One process that has imported torch and the package, which the processes of tests are forks of."""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from multiprocessing import forkserver, util
from multiprocessing.context import ForkServerContext
from pathlib import Path
from unittest import mock


def forks() -> ForkServerContext:
    """What makes such a fork: `forks().Process(target=function_of_a_module, args=what_can_be_pickled)`."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.preloaded"])
    return context


def run_program(
    program: str, *arguments: object, cwd: Path | None = None, forgets: Sequence[str] = ("ray_atr",)
) -> subprocess.CompletedProcess[str]:
    """`python -c program arguments` in a fork that has forgotten the modules of some packages, and imports them anew.

    It knows nothing of this process's tests. What it is to be proved not to import without need is among those that it forgets,
    with whatever may import that. A real process takes two to five seconds to import torch, transformers and MLflow.
    """
    with tempfile.TemporaryDirectory() as folder:
        given = (program, [str(one) for one in arguments], cwd, forgets, folder)
        process = forks().Process(target=_run_program, args=given)
        process.start()
        process.join()
        out, error = ((Path(folder) / name).read_text() for name in ("out", "error"))
    return subprocess.CompletedProcess(["python", "-c", program, *given[1]], process.exitcode or 0, out, error)


def _run_program(program: str, arguments: list[str], cwd: Path | None, forgets: Sequence[str], folder: str) -> None:
    for number, name in ((1, "out"), (2, "error")):
        os.dup2(os.open(f"{folder}/{name}", os.O_CREAT | os.O_WRONLY | os.O_APPEND), number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
    sys.argv = ["-c", *arguments]
    if cwd is not None:
        os.chdir(cwd)
    for name in list(sys.modules):
        if name.partition(".")[0] in forgets:
            del sys.modules[name]
    exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})


def start_server() -> None:
    """Make it a fork of this process, before a test has patched or computed anything.

    Else multiprocessing starts a new one, which takes four seconds of computing to import what is imported here already. What the
    forks need is imported before, as this process's own tests come to need it too.
    """
    importlib.import_module("tests.support.preloaded")
    forks()
    with mock.patch.object(util, "spawnv_passfds", _fork):
        forkserver.ensure_running()


def _fork(path: bytes, arguments: Sequence[str], kept: Sequence[int]) -> int:
    """In the place of `spawnv_passfds`: what a new process would run, `python -c arguments[-1]`, in a fork of this one."""
    if child := os.fork():
        return child
    try:
        # What is there stays, and a search for garbage in a fork would copy the memory of all of it.
        gc.freeze()
        # Among them are the pipes by which others learn that this process has ended. Their numbers stay taken: who closes one
        # later closes nothing else.
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            if descriptor not in (0, 1, 2, nothing, *kept):
                os.dup2(nothing, descriptor)
        # It imports what is still missing when it is first asked for a process.
        select.select(kept, [], [])
        exec(arguments[-1], {})
    finally:
        os._exit(0)
