"""Workers of the session's Ray that are forks of a process which has imported torch, Ray and the package."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

SHIM = """#!{python} -IS
import json, os, socket, sys
if sys.argv[1].endswith("default_worker.py"):
    try:
        with socket.socket(socket.AF_UNIX) as asked:
            asked.connect("{place}")
            asked.sendall(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd(), os.getpid()]).encode() + b"\\n")
            said = asked.recv(16)
    except OSError:
        said = b"no"
    if said != b"no":
        sys.exit(int(said or 1))
os.execv("{python}", ["{python}", *sys.argv[1:]])
"""
"""What Ray starts in the place of Python: for a worker it asks for a fork, and ends as that does. All else is Python itself."""
READ_ON_IMPORT = ("RAY_JOB_ID", "RAY_RAYLET_PID")
"""What Ray's library reads of its environment once, when it is imported: the same for all workers of a driver."""
WITH_RAY = ("ray.train", "ray.tune", "ray.data", "ray_atr.training.ray_train", "ray_atr.sweep.tune_bridge")


@contextlib.contextmanager
def forked_workers() -> Iterator[None]:
    """A Ray that is started within has forks as workers, also those that it starts later.

    Each would take three to five seconds of computing to import what nearly all of them need. The workers of `own_ray` do, and
    those of a system without `/proc`, from which a fork takes its output.
    """
    if not Path("/proc/self/fd").is_dir():
        yield
        return
    with tempfile.TemporaryDirectory(prefix="ra") as folder:
        place, shim = f"{folder}/asked", Path(folder) / "python"
        shim.write_text(SHIM.format(python=sys.executable, place=place))
        shim.chmod(0o700)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(place)
            listening.listen(64)
            # It imports while Ray starts. This process has imported Ray, for another environment.
            server = subprocess.Popen(
                [sys.executable, "-c", f"from tests.support.ray_forks import serve; serve({listening.fileno()})"],
                pass_fds=[listening.fileno()], cwd=Path(__file__).parents[2], stdin=subprocess.DEVNULL,
            )  # fmt: skip
        try:
            with mock.patch.object(sys, "executable", str(shim)):
                yield
        finally:
            server.kill()
            server.wait()


def serve(descriptor: int) -> None:
    """Make forks for all who ask."""
    importlib.import_module("tests.support.preloaded")
    # Its forks are nobody's to wait for.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    known: list[str | None] = []
    with socket.socket(fileno=descriptor) as listening:
        while True:
            connection, _ = listening.accept()
            with connection, connection.makefile("r") as asked:
                arguments, environment, folder, asked_by = json.loads(asked.readline())
                if not known:
                    known = [environment.get(name) for name in READ_ON_IMPORT]
                    os.environ.update({name: value for name, value in environment.items() if name.startswith("RAY_")})
                    for name in WITH_RAY:
                        importlib.import_module(name)
                    gc.freeze()
                if known != [environment.get(name) for name in READ_ON_IMPORT]:
                    connection.sendall(b"no")
                elif os.fork() == 0:
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
