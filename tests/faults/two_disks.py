"""Training on two nodes that share nothing but an S3: each has a home folder and temporary files of its own.

    sudo uv run python tests/faults/two_disks.py                        # root, for a mount that one node alone sees
    sudo uv run python tests/faults/two_disks.py --cases plain base

Prints a line a case; the exit code is 1 if a case fails, or its epochs' losses are not those of `plain` where they should be.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import s3fs
from moto.server import ThreadedMotoServer

from tests.support.own_ray import end_processes_of, environment_without_ray, free_port, ports_of_a_node, wait_until
from tests.support.tiny import make_data

ROOT = Path(__file__).resolve().parents[2]
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4}
TINY = {
    "data.source": "s3://bucket/tones", "data.languages": "eng,fra", "model.embedding_width": "16", "model.text.width": "16",
    "model.text.num_layers": "1", "model.text.vocab_size": "300", "train.epochs": "3", "train.batch_size": "8",
    "tracking.mlflow": "false", "scaling.max_failures": "0",
}  # fmt: skip
ON_THE_HEAD = {"scaling.workers": "1", "scaling.worker_labels": "disk=one"}
ASK = {"objective.knowledge": "ask", "objective.knowledge.prototypes": "4"}
STORE = {"scaling.feature_store": "s3://bucket/features"}
FROZEN = {"model.audio.adapt.is_frozen": "true", "model.text.adapt.is_frozen": "true"}
CASES = {
    "plain": ON_THE_HEAD,
    "worker elsewhere": {"scaling.workers": "1", "scaling.worker_labels": "disk=two"},
    "two workers": {"scaling.workers": "2"},
    "features in the store": {"scaling.workers": "2", **STORE},
    "base elsewhere": {**ON_THE_HEAD, **ASK, "scaling.encoder_labels": "disk=two"},
    "encoders": {**ON_THE_HEAD, **ASK, "scaling.encoders": "2", "scaling.cpus_per_encoder": "0.5"},
    "frozen": {"scaling.workers": "2", **FROZEN},
    "frozen, vectors in the store": {"scaling.workers": "2", **FROZEN, **STORE},
}
LIKE = {
    "worker elsewhere": "plain", "two workers": "plain", "features in the store": "plain", "encoders": "base elsewhere",
    "frozen, vectors in the store": "frozen",
}  # fmt: skip
"""Cases whose losses are those of another, but for rounding."""


@contextlib.contextmanager
def two_nodes(folder: Path, environment: dict[str, str]) -> Iterator[str]:
    """The address of a Ray of two nodes, the second with a home folder that only it sees."""
    ray, port = Path(sys.executable).with_name("ray"), free_port()
    common = [*ports_of_a_node(), "--disable-usage-stats"]
    for name in ("home", "one", "two"):
        (folder / name).mkdir()
    try:
        head = ["start", "--head", "--port", str(port), "--dashboard-port", str(free_port()), "--num-cpus", "1"]
        said = subprocess.run(
            [ray, *head, "--labels", "disk=one", *common],
            env={**environment, "TMPDIR": str(folder / "one")}, capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        (address,) = set(re.findall(rf"--address='([\d.]+:{port})'", said))
        second = [
            str(ray),
            "start",
            "--address",
            address,
            "--num-cpus",
            "4",
            "--labels",
            "disk=two",
            *ports_of_a_node(),
        ]
        mounted = f"mount -t tmpfs none {folder / 'home'} && exec {' '.join(second)} --disable-usage-stats --block"
        subprocess.Popen(
            ["unshare", "--mount", "bash", "-c", mounted],
            env={**environment, "TMPDIR": str(folder / "two")}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        wait_until(lambda: "disk: two" in listed(ray, address, environment), 90, "the second node")
        yield address
    finally:
        end_processes_of(environment["RAY_TMPDIR"])


def listed(ray: Path, address: str, environment: dict[str, str]) -> str:
    """What Ray tells of its nodes."""
    words = [ray, "list", "nodes", "--address", address, "--detail"]
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=False).stdout


def losses_of(run: str) -> list[float]:
    """Each epoch's training loss of the only trial of a run."""
    system = s3fs.S3FileSystem()
    (file,) = system.glob(f"{run}/trials/*/metrics.jsonl")
    return [json.loads(line)["train/loss"] for line in system.cat(file).splitlines()]


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--cases", nargs="+", choices=tuple(CASES), default=[*CASES])
    chosen = options.parse_args()
    if os.geteuid() != 0:
        print("error: only root may mount a folder that one node alone sees")
        return 2
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    store = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }  # fmt: skip
    os.environ.update(store)
    s3fs.S3FileSystem().mkdir("bucket")
    bad = 0
    with tempfile.TemporaryDirectory(prefix="td", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        make_data(folder / "tones")
        s3fs.S3FileSystem().put(str(folder / "tones"), "bucket/tones", recursive=True)
        (folder / "tones").rename(folder / "gone")
        own = {"RAY_ATR_HOME": str(folder / "home"), "RAY_TMPDIR": str(folder / "r")}
        (folder / "r").mkdir()
        environment = {**environment_without_ray(), **store, **TOKEN, **own}
        environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        found: dict[str, list[float]] = {}
        with two_nodes(folder, environment) as address:
            for case in chosen.cases:
                bad += run(case, {**environment, "RAY_ADDRESS": address, "TMPDIR": str(folder / "one")}, found)
    server.stop()
    return int(bad > 0)


def run(case: str, environment: dict[str, str], found: dict[str, list[float]]) -> int:
    """One case, printed; 0 if it is as it should be."""
    out = f"bucket/runs/{case.replace(' ', '-').replace(',', '')}"
    settings = [word for path, value in {**TINY, **CASES[case]}.items() for word in (f"--{path}", value)]
    words = [sys.executable, "pipelines/train.py", "--out", f"s3://{out}", *settings]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"{case}: failed\n{(done.stdout + done.stderr)[-2000:]}", flush=True)
        return 1
    found[case] = losses_of(out)
    expected = found.get(LIKE.get(case, case), found[case])
    apart = max(abs(a - b) / abs(b) for a, b in zip(found[case], expected, strict=True))
    is_right = apart < 1e-5 and all(map(math.isfinite, found[case]))
    print(f"{case}: {'right' if is_right else 'WRONG'}, losses {found[case]}, apart by {apart:.1e}", flush=True)
    return int(not is_right)


if __name__ == "__main__":
    raise SystemExit(main())
