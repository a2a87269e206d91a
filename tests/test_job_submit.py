"""`ray start --head`, `ray job submit`, `ray job stop`, and a resubmission that resumes: for real."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[1]
SMALL = {
    "data.soundscapes.num_train": "64",
    "data.soundscapes.num_val": "16",
    "data.soundscapes.num_test": "16",
    "train.batch_size": "16",
    "train.epochs": "25",
}
SWEEP = [
    *("python", "pipelines/sweep_noise.py", "--objectives", "contrastive", "--noise", "0.2"),
    *(word for path, value in SMALL.items() for word in (f"--{path}", value)),
]


@dataclass(frozen=True)
class Head:
    """A Ray head of the test's own."""

    environment: dict[str, str]
    address: str
    home: Path

    def ray(self, *words: str, timeout: int = 240) -> str:
        done = self.run(*words, timeout=timeout)
        # The dashboard answers before the node's job agent has registered with it; nothing was submitted then.
        deadline = time.monotonic() + 150
        while "No available agent" in done.stderr + done.stdout and time.monotonic() < deadline:
            time.sleep(2)
            done = self.run(*words, timeout=timeout)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
        return done.stdout

    def run(self, *words: str, timeout: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [Path(sys.executable).with_name("ray"), *words],
            cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip

    def job(self, verb: str, *words: str) -> str:
        return self.ray("job", verb, "--address", self.address, *words)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    home = tmp_path_factory.mktemp("home")
    # Socket names must stay short, so not under pytest's own long folder.
    with tempfile.TemporaryDirectory(prefix="ra", ignore_cleanup_errors=True) as temporary:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": "0123456789abcdef" * 4,
            "RAY_TMPDIR": temporary,
            "RAY_ATR_HOME": str(home),
            # As ray_atr sets it for a Ray it starts itself: stay on the loopback address.
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        }
        port = free_port()
        started = Head(environment, f"http://127.0.0.1:{port}", home)
        # The agent that takes jobs has a fixed default port, which the session's own Ray may hold; it then serves no jobs.
        ports = {
            "--port": free_port(),
            "--dashboard-port": port,
            "--dashboard-agent-listen-port": free_port(),
            "--dashboard-agent-grpc-port": free_port(),
            "--runtime-env-agent-port": free_port(),
            "--metrics-export-port": free_port(),
        }
        words = (*(word for name, number in ports.items() for word in (name, str(number))), "--num-cpus", "2")
        try:
            started.ray("start", "--head", *words, "--disable-usage-stats")
            wait_until(lambda: answers(started.address), 60, "the dashboard to answer")
            yield started
        finally:
            # `ray stop` would end every Ray of the machine; this ends the processes of this one.
            subprocess.run(["pkill", "-TERM", "-f", temporary], check=False)
            time.sleep(2)
            subprocess.run(["pkill", "-KILL", "-f", temporary], check=False)


def answers(address: str) -> bool:
    try:
        urllib.request.urlopen(address, timeout=2)
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def wait_until(condition: object, seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s for {what}"
        time.sleep(0.2)


def epochs_of(home: Path) -> list[dict[str, float]]:
    return [json.loads(line) for path in home.glob("runs/*/trials/*/metrics.jsonl") for line in path.open()]


@pytest.mark.timeout(500)
def test_a_submitted_sweep_is_stopped_and_resumed_where_it_was(head: Head) -> None:
    submitted = head.job("submit", "--no-wait", "--submission-id", "first", "--working-dir", ".", "--", *SWEEP)
    assert "submitted successfully" in submitted
    wait_until(lambda: len(epochs_of(head.home)) >= 2, 200, "two epochs")
    head.job("stop", "first")
    before = epochs_of(head.home)
    assert 2 <= len(before) < 25, "the job should have been stopped in mid-run"
    (run,) = (head.home / "runs").glob("sweep_noise-*")

    output = head.job("submit", "--working-dir", ".", "--", *SWEEP, "--resume", str(run))
    assert "1 trials finished, 0 failed" in output
    after = epochs_of(head.home)
    assert [row["epoch"] for row in after] == list(range(1, 26))
    assert after[: len(before)] == before, "an epoch that was finished has been run again"
    assert (run / "report" / "report.html").is_file()
