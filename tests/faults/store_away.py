"""A store that is gone, silent or slow for a minute in the middle of a sweep: the sweep waits, and ends as if nothing had been.

    uv run python tests/faults/store_away.py                            # gone, silent and slow, some minutes
    uv run python tests/faults/store_away.py --how gone --seconds 60

An S3 server of its own on the loopback address, and between it and the command a relay that can refuse connections (gone), hold
them without a word (silent), or wait with every piece (slow). Data, run folder, checkpoints and models are on the store. Prints a
line a case; the exit code is 1 if a sweep fails, or its epochs' losses are not those of a sweep whose store was never away.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import s3fs
from moto.server import ThreadedMotoServer

from tests.support.own_ray import end_processes_of, environment_without_ray, wait_until
from tests.support.tiny import make_data

ROOT = Path(__file__).resolve().parents[2]
HOWS = ("gone", "silent", "slow")
PIECE_SECONDS = 0.3
"""What a slow store waits with every piece."""
TINY = {
    "data.source": "s3://bucket/tones", "data.languages": "eng,fra", "model.embedding_width": "16", "model.text.width": "16",
    "model.text.num_layers": "1", "model.text.vocab_size": "300", "train.batch_size": "8", "tracking.mlflow": "false",
}  # fmt: skip


class Relay:
    """Passes connections on to a server; `how` says what it does instead."""

    def __init__(self, port: int) -> None:
        self.how, self.server = "open", port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self.listener.accept()
            if self.how == "gone":
                client.close()
                continue
            server = socket.create_connection(("127.0.0.1", self.server))
            for pair in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError), source, target:
            while piece := source.recv(1 << 16):
                if self.how == "gone":
                    return
                while self.how == "silent":
                    time.sleep(0.1)
                if self.how == "slow":
                    time.sleep(PIECE_SECONDS)
                target.sendall(piece)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--how", nargs="+", default=[*HOWS], choices=HOWS)
    options.add_argument("--seconds", type=float, default=60)
    options.add_argument("--epochs", type=int, default=30)
    chosen = options.parse_args()
    # The server's log of each request.
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    relay = Relay(server.get_host_and_port()[1])
    with tempfile.TemporaryDirectory(prefix="ra") as home:
        environment = {
            **environment_without_ray(),
            "RAY_ATR_HOME": home,
            "RAY_TMPDIR": home,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{relay.port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        os.environ |= environment
        store = s3fs.S3FileSystem(skip_instance_cache=True, use_listings_cache=False)
        store.mkdir("bucket")
        make_data("s3://bucket/tones")
        settings = {**TINY, "train.epochs": str(chosen.epochs)}
        atexit.register(end_processes_of, home)
        expected, failed = losses(store, started(environment, "whole", settings), "whole"), 0
        if not expected:
            return 1
        for how in chosen.how:
            command, began = started(environment, how, settings), time.monotonic()
            wait_until(partial(has_trained, store, how), 200, "two epochs")
            relay.how = how
            time.sleep(chosen.seconds)
            relay.how = "open"
            found = losses(store, command, how)
            failed += found != expected
            outcome = (
                "as if nothing had been"
                if found == expected
                else f"exit code {command.returncode}, {len(found)} trials"
            )
            print(f"{how} for {chosen.seconds:.0f} s: {outcome}; {time.monotonic() - began:.0f} s in all", flush=True)
    return int(failed > 0)


def started(environment: Mapping[str, str], name: str, settings: Mapping[str, str]) -> subprocess.Popen[str]:
    """A sweep of two trials with its run folder on the store."""
    words = [word for path, value in settings.items() for word in (f"--{path}", value)]
    points = ["--objectives", "contrastive", "--noise", "0.2", "0.4", "--seeds", "0", "--recipe", "from_scratch"]
    return subprocess.Popen(
        [sys.executable, "pipelines/sweep_noise.py", *points, "--out", f"s3://bucket/{name}", *words],
        cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def has_trained(store: s3fs.S3FileSystem, name: str) -> bool:
    """Whether a sweep has two epochs."""
    return len(rows(store, name)) >= 2


def losses(store: s3fs.S3FileSystem, command: subprocess.Popen[str], name: str) -> dict[str, list[float]]:
    """Each trial's losses by epoch, once the command has ended; none if it failed."""
    said, _ = command.communicate()
    if command.returncode != 0:
        print(said[-3000:])
        return {}
    found: dict[str, list[float]] = {}
    for trial, row in rows(store, name):
        found.setdefault(trial, []).append(row["train/loss"])
    return found


def rows(store: s3fs.S3FileSystem, name: str) -> list[tuple[str, dict[str, float]]]:
    """Every trial's name and row of `metrics.jsonl`."""
    return [
        (Path(path).parent.name, json.loads(line))
        for path in sorted(store.glob(f"bucket/{name}/trials/*/metrics.jsonl"))
        for line in store.cat(path).decode().splitlines()
    ]


if __name__ == "__main__":
    raise SystemExit(main())
