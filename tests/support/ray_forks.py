"""Workers of the session's Ray that are forks of a process which has imported torch and the package."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

SHELL = """#!/bin/sh
exec {python} -IS {shim} "$@"
"""
"""Starts the shim: the first line of a script cannot have a path with a space."""
SHIM = """
import json, os, socket, sys
words, variables, given = sys.argv[1:], dict(os.environ), "--serialized-runtime-env-context="
if words[0].endswith("setup_worker.py"):
    context = json.loads(next((word[len(given):] for word in words if word.startswith(given)), "{{}}"))
    more = context.get("env_vars") or {{}}
    variables.update(more)
    if not context.get("command_prefix") and not any("$" in value for value in more.values()):
        words = [word for word in words[1:] if not word.startswith((given, "--language="))]
if words[0].endswith("default_worker.py"):
    try:
        with socket.socket(socket.AF_UNIX) as asked:
            asked.connect({place!r})
            asked.sendall(json.dumps([words, variables, os.getcwd(), os.getpid()]).encode() + b"\\n")
            sys.exit(int(asked.recv(16) or 1))
    except OSError:
        pass
os.execv({python!r}, [{python!r}, *sys.argv[1:]])
"""
"""What Ray starts in the place of Python: for a worker it asks for a fork, and ends as that does. All else is Python itself.

A worker with variables of its own, as Tune's and Train's are, is asked for by way of `setup_worker.py`.
"""


@contextlib.contextmanager
def forked_workers() -> Iterator[None]:
    """A Ray that this process starts within has forks as workers, also those that it starts later."""
    with forking_python() as python, mock.patch.object(sys, "executable", str(python)):
        yield


@contextlib.contextmanager
def forking_python() -> Iterator[Path]:
    """What stands for Python's executable where a Ray is started whose workers are to be forks.

    Each would take three to five seconds of computing to import what nearly all of them need. The workers of a job with a
    working directory of its own do, and those of a system without `/proc`, from which a fork takes its output.
    """
    if not Path("/proc/self/fd").is_dir():
        yield Path(sys.executable)
        return
    with tempfile.TemporaryDirectory(prefix="ra") as folder:
        place, shim, python = f"{folder}/asked", Path(folder) / "shim.py", Path(folder) / "python"
        shim.write_text(SHIM.format(python=sys.executable, place=place), encoding="utf-8")
        python.write_text(
            SHELL.format(python=shlex.quote(sys.executable), shim=shlex.quote(str(shim))), encoding="utf-8"
        )
        python.chmod(0o700)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(place)
            listening.listen(64)
            # It imports while Ray starts. This process has imported Ray, which a fork must do by itself.
            server = subprocess.Popen(
                [sys.executable, "-c", f"from tests.support.ray_forks import serve; serve({listening.fileno()})"],
                pass_fds=[listening.fileno()], cwd=Path(__file__).parents[2], stdin=subprocess.DEVNULL,
            )  # fmt: skip
        try:
            yield python
        finally:
            server.kill()
            server.wait()


def serve(descriptor: int) -> None:
    """Make forks for all who ask.

    Ray is imported by each of them. Its library draws the seed of its identifiers once for all of a process's forks: two workers
    would give two tasks one name, and the actor that is asked for both ends with "Check failed: erased == 1".
    """
    importlib.import_module("tests.support.preloaded")
    assert "ray" not in sys.modules
    gc.freeze()
    # Its forks are nobody's to wait for.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=descriptor) as listening:
        while True:
            connection, _ = listening.accept()
            with connection, connection.makefile("r") as asked:
                arguments, environment, folder, asked_by = json.loads(asked.readline())
                if os.fork() == 0:
                    listening.close()
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    if (worker := os.fork()) == 0:
                        connection.close()
                        _be_worker(arguments, environment, folder, asked_by)
                    _, status = os.waitpid(worker, 0)
                    with contextlib.suppress(OSError):  # who asked has been killed
                        connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())
                    os._exit(0)


def _be_worker(arguments: list[str], environment: dict[str, str], folder: str, asked_by: int) -> None:
    code: Any = 1
    try:
        for number in (0, 1, 2):
            os.dup2(os.open(f"/proc/{asked_by}/fd/{number}", os.O_RDWR), number)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        sys.argv, sys.path[0] = arguments, str(Path(arguments[0]).parent)
        runpy.run_path(arguments[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code
    finally:
        os._exit(code if isinstance(code, int) else int(code is not None))
