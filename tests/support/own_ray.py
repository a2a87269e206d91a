"""A Ray of a test's own, of one or several nodes on this machine, with ports and sockets that no other Ray uses."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import psutil

from tests.support.ray_forks import forking_python

Found = TypeVar("Found")
ROOT = Path(__file__).resolve().parents[2]
SWITCHES = {
    # Else Ray packages the working directory under `uv run` and starts each worker through uv.
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    # Ray's workers give way to every other process by default: beside other tests they would take five times as long.
    "RAY_worker_niceness": "0",
    # Else Ray sends its makers what is used, for which Ray Data starts a process.
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""What every Ray of a test starts with."""
RAY = "import sys; from ray.scripts.scripts import main; sys.argv[0], sys.executable = 'ray', sys.argv.pop(1); main()"


@dataclass(frozen=True)
class Head:
    """A Ray head of the test's own: where its dashboard and its nodes are found."""

    environment: dict[str, str]
    address: str
    home: Path
    ray_address: str = ""

    def ray(self, *words: str, timeout: int = 240) -> str:
        done = self.run(*words, timeout=timeout)
        # The dashboard answers before the node's job agent has registered with it; nothing was submitted then.
        deadline = time.monotonic() + 150
        while "No available agent" in done.stderr + done.stdout and time.monotonic() < deadline:
            time.sleep(2)
            done = self.run(*words, timeout=timeout)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        return done.stdout

    def run(
        self, *words: str, timeout: int, python: Path | None = None, within: Sequence[str] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Ray's command, which starts Ray's processes by `python` if that is given. `within` starts the command itself."""
        ray = [Path(sys.executable).with_name("ray")] if python is None else [sys.executable, "-c", RAY, python]
        return subprocess.run(
            [*within, *ray, *words],
            cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip

    def job(self, verb: str, *words: str) -> str:
        return self.ray("job", verb, "--address", self.address, *words)


def environment_without_ray() -> dict[str, str]:
    """This process's environment with none of its Ray's variables but the switches of every test."""
    return {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | SWITCHES


@contextlib.contextmanager
def own_ray(
    home: Path, *, nodes: int = 1, cpus: int = 2, takes_jobs: bool = True, hidden: Path | None = None
) -> Iterator[Head]:
    """Start `nodes` nodes of `cpus` CPUs each, every one with an object store of its own; ends them and nothing else.

    Without `takes_jobs` there is no dashboard, what runs there is told `ray_address`, and workers are forks. The folder `hidden`
    is empty for the processes of all nodes but the first, none of which are forks.
    """
    # Ray waits 30 s for a node to register and no setting of it changes that; a busy machine can take longer.
    # A fork would have the folders of the process that it is a fork of.
    forks = not takes_jobs and hidden is None
    with forking_python() if forks else contextlib.nullcontext() as python:
        for starts_left in (2, 1, 0):
            with started_ray(home, nodes=nodes, cpus=cpus, takes_jobs=takes_jobs, python=python, hidden=hidden) as said:
                if isinstance(said, Head):
                    yield said
                    return
            assert "timed out during startup" in said, said
            assert starts_left > 0, said


@contextlib.contextmanager
def started_ray(
    home: Path, *, nodes: int, cpus: int, takes_jobs: bool, python: Path | None, hidden: Path | None
) -> Iterator[Head | str]:
    """One try of `own_ray`: the head, or what Ray printed when it did not start."""
    # Socket names must stay short, so not under pytest's own long folder.
    with tempfile.TemporaryDirectory(prefix="ra", ignore_cleanup_errors=True) as temporary:
        environment = {
            **environment_without_ray(),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": "0123456789abcdef" * 4,
            "RAY_TMPDIR": temporary,
            "RAY_ATR_HOME": str(home),
            # As ray_atr sets it for a Ray it starts itself: stay on the loopback address. Ray lets no second node in then.
            **({"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"} if nodes == 1 else {}),
        }
        port, dashboard = free_ports(2)
        head = Head(environment, f"http://127.0.0.1:{dashboard}", home)
        has_dashboard = ("--include-dashboard", str(takes_jobs).lower(), "--dashboard-port", str(dashboard))
        node: tuple[str, ...] = ("--head", "--port", str(port), *has_dashboard)
        try:
            for number in range(nodes):
                size = ("--num-cpus", str(cpus), "--disable-usage-stats")
                within = without(hidden) if number and hidden is not None else ()
                done = head.run("start", *node, *ports_of_a_node(), *size, timeout=240, python=python, within=within)
                if done.returncode != 0:
                    break
                if node[0] == "--head":
                    (address,) = set(re.findall(rf"--address='([\d.]+:{port})'", done.stdout)) or {""}
                    node = ("--address", address)
                # With the head's folder, a node's agent would remove the working directory of a job that runs on another.
                node = (*node[:2], "--temp-dir", f"{temporary}/{number + 1}")
            if done.returncode == 0:
                if takes_jobs:
                    wait_until(lambda: answers(head.address), 60, "the dashboard to answer")
                yield replace(head, ray_address=address)
            else:
                yield done.stdout[-4000:] + done.stderr[-4000:]
        finally:
            # `ray stop` would end every Ray of the machine.
            end_processes_of(temporary)


def output_of_cluster(module: str, *words: str, seconds: float, **variables: str) -> str:
    """What a program prints that starts a cluster of its own and ends without an error. The cluster's processes are ended."""
    # Socket names must stay short, so not under pytest's own long folder.
    with tempfile.TemporaryDirectory(prefix="ra", ignore_cleanup_errors=True) as temporary:
        environment = {
            **environment_without_ray(),
            "RAY_TMPDIR": temporary,
            "RAY_AUTH_MODE": "disabled",
            # Ray lets several nodes in.
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",
        }
        try:
            done = subprocess.run(
                [sys.executable, "-m", module, *words],
                cwd=ROOT, env=environment | variables, capture_output=True, text=True, timeout=seconds, check=False,
            )  # fmt: skip
        finally:
            end_processes_of(temporary)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def without(folder: Path) -> list[str]:
    """What a command runs within, by which it finds this folder empty, as on a machine with disks of its own."""
    hides = 'mount -t tmpfs none "$0" && exec "$@"'
    return ["unshare", "--map-root-user", "--mount", "sh", "-c", hides, str(folder)]


def ports_of_a_node() -> list[str]:
    """Options that give a node ports of its own: the agent that takes jobs has a fixed one else, and is mute if it is taken."""
    agents = (
        "--dashboard-agent-listen-port",
        "--dashboard-agent-grpc-port",
        "--runtime-env-agent-port",
        "--metrics-export-port",
    )
    chosen = [word for name, port in zip(agents, free_ports(len(agents)), strict=True) for word in (name, str(port))]
    return [*chosen, "--min-worker-port", "0", "--max-worker-port", "0"]


def end_processes_of(temporary: str) -> None:
    """End the processes whose RAY_TMPDIR this is, and those that they started: a title that Ray gives may cover the variable."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("RAY_TMPDIR") == temporary:
                found[process.pid] = process
    for process in list(found.values()):
        with contextlib.suppress(psutil.Error):
            found.update({child.pid: child for child in process.children(recursive=True)})
    mine = list(found.values())
    for process in mine:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    # Some of Ray's own take longer than three seconds to end, with nothing left that anybody reads.
    _, alive = psutil.wait_procs(mine, timeout=0.5)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()


def free_port() -> int:
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Ports that nobody has, no two of them the same: each is held until all are chosen."""
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def answers(address: str) -> bool:
    try:
        urllib.request.urlopen(address, timeout=2)
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def wait_until(condition: Callable[[], Found], seconds: float, what: str) -> Found:
    """What the condition returns as soon as that is true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s for {what}"
        time.sleep(0.2)
    return found
