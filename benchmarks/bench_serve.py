"""A served index under many clients: every answer is the index's own or 503, none is lost, and how fast they come.

    python benchmarks/bench_serve.py [INDEX] [--clients 64 --seconds 60]

Without an index it makes one, of soundscapes, with a retriever that it trains on them.
`ray-atr serve` runs in a process of its own. Each client asks for one text after the other, over one connection. Its answers
are compared with those of the index opened here. Prints how many requests were answered, refused (503), wrong and lost,
requests a second beside one client that asks in a loop, and the 50th and 95th percentile of one client's requests beside those
of a direct call.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlencode

from side_by_side import compared

from ray_atr.common.override import override
from ray_atr.data.soundscapes import ensure_soundscapes
from ray_atr.deploy.index.build import build_index
from ray_atr.deploy.index.opened import Index
from ray_atr.training.inputs import prepare
from ray_atr.training.loop import train_trial
from ray_atr.training.recipes import RECIPES
from ray_atr.training.run_folder import BEST

TEXTS = [
    f"{what} {where}"
    for what in ("a dog barks", "rain falls", "un oiseau chante", "eine Glocke läutet", "ein Kind lacht", "llueve")
    for where in ("outside", "in a hall", "far away", "la nuit", "twice", "with music", "im Wald", "")
]
TOP = 5


def make_index(folder: Path, clips: int) -> str:
    """An index of soundscapes: small towers from scratch, an epoch long, as what is found does not matter here."""
    settings = {
        "data.soundscapes.num_train": clips,
        "data.soundscapes.num_val": 16,
        "data.soundscapes.num_test": 16,
        "train.epochs": 1,
    }
    experiment = override(RECIPES["from_scratch"](), settings)
    prepared = prepare(experiment, folder, use_ray=False, echo=lambda message: None)
    train_trial(experiment, prepared, folder / "run", lambda metrics: None, use_ray_data=False)
    data = ensure_soundscapes(experiment.data.soundscapes, folder / "data")
    build_index(str(folder / "run" / BEST), str(data), str(folder / "index"))
    return str(folder / "index")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def ask(connection: http.client.HTTPConnection, text: str) -> tuple[int, list[str]]:
    """Status and paths of one request."""
    connection.request("GET", "/search?" + urlencode({"text": text, "top": TOP}))
    answer = connection.getresponse()
    content = json.loads(answer.read())
    return answer.status, [f"{one['path']} {one['start']}" for one in content.get("matches", [])]


def percentiles(times: list[float]) -> str:
    cuts = statistics.quantiles(times, n=20)
    return f"median {1e3 * statistics.median(times):.1f} ms, p95 {1e3 * cuts[18]:.1f} ms"


def loop(port: int, seconds: float) -> list[float]:
    """Seconds of each request of one client."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    times: list[float] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.perf_counter()
        assert ask(connection, TEXTS[len(times) % len(TEXTS)])[0] == 200
        times.append(time.perf_counter() - began)
    return times


def load(port: int, clients: int, seconds: float, right: dict[str, list[str]]) -> Counter[str]:
    """What became of the requests of many clients at once."""
    found: Counter[str] = Counter()
    lock, until = threading.Lock(), time.monotonic() + seconds

    def client(number: int) -> None:
        connection, asked, own = http.client.HTTPConnection("127.0.0.1", port, timeout=60), number, Counter[str]()
        while time.monotonic() < until:
            text = TEXTS[asked % len(TEXTS)]
            asked += 1
            try:
                status, paths = ask(connection, text)
            except (OSError, http.client.HTTPException, ValueError):
                own["lost"] += 1
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                continue
            if status == 200:
                own["right" if paths == right[text] else "wrong"] += 1
            else:
                own["refused" if status == 503 else f"status {status}"] += 1
        with lock:
            found.update(own)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index", nargs="?", help="folder of an index (default: one is made)")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--alone", type=float, default=10.0, help="seconds of one client that asks in a loop")
    parser.add_argument("--clips", type=int, default=400, help="training clips of the index that is made")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-serve-") as folder:
        measure(options.index or make_index(Path(folder), options.clips), options)


def measure(place: str, options: argparse.Namespace) -> None:
    """Print and record what a server of the index at a place does. Exit code 1 if an answer was wrong or lost."""
    index, port = Index.open(place), free_port()
    right = {text: [f"{one.path} {one.start}" for one in index.search(text, top=TOP)] for text in TEXTS}
    direct = []
    for number in range(200):
        began = time.perf_counter()
        index.search(TEXTS[number % len(TEXTS)], top=TOP)
        direct.append(time.perf_counter() - began)
    command = [sys.executable, "-m", "ray_atr", "serve", place, "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            for _ in range(600):
                try:
                    ask(http.client.HTTPConnection("127.0.0.1", port, timeout=60), "x")
                    break
                except OSError:
                    time.sleep(0.1)
            alone = loop(port, options.alone)
            found = load(port, options.clients, options.seconds, right)
        finally:
            server.terminate()
    print(f"direct call: {percentiles(direct)}")
    print(f"one client:  {percentiles(alone)}, {len(alone) / sum(alone):.0f} requests a second")
    each = found["right"] / options.seconds
    print(f"{options.clients} clients for {options.seconds:g} s: {dict(found)}, {each:.0f} right answers a second")
    cut = statistics.quantiles(alone, n=20)[18], statistics.quantiles(direct, n=20)[18]
    beyond = 1e3 * (cut[0] - cut[1])
    print(f"one client's p95 over a direct call's: {beyond:.1f} ms")
    compared("one client's p95 over a direct call's", beyond, 5.0, "the goal", at_most=1.0)
    took = 1e3 / each if each else math.inf
    compared("a right answer, many clients", took, 1e3 * statistics.mean(alone), "one client in a loop", at_most=1 / 3)
    if found["wrong"] or found["lost"] or any(name.startswith("status") for name in found):
        sys.exit(1)


if __name__ == "__main__":
    main()
