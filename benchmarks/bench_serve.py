"""A served index under many clients: every answer is the index's own or 503, none is lost, and how fast they come.

    python benchmarks/bench_serve.py INDEX [--clients 64 --seconds 60]

`ray-atr serve` runs in a process of its own. Each client asks for one text after the other, over one connection; what it is
answered is compared with what the index answers here. Prints how many requests were answered, refused (503), wrong and lost,
requests a second beside one client that asks in a loop, and the 50th and 95th percentile of one client's requests beside those
of a direct call.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from urllib.parse import urlencode

from side_by_side import compared

from ray_atr.deploy.index import Index

TEXTS = [
    f"{what} {where}"
    for what in ("a dog barks", "rain falls", "un oiseau chante", "eine Glocke läutet", "ein Kind lacht", "llueve")
    for where in ("outside", "in a hall", "far away", "la nuit", "twice", "with music", "im Wald", "")
]
TOP = 5


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
    parser.add_argument("index")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--port", type=int, default=8765)
    options = parser.parse_args()
    index = Index.open(options.index)
    right = {text: [f"{one.path} {one.start}" for one in index.search(text, top=TOP)] for text in TEXTS}
    direct = []
    for number in range(200):
        began = time.perf_counter()
        index.search(TEXTS[number % len(TEXTS)], top=TOP)
        direct.append(time.perf_counter() - began)
    command = [sys.executable, "-m", "ray_atr.cli", "serve", options.index, "--port", str(options.port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            for _ in range(600):
                try:
                    ask(http.client.HTTPConnection("127.0.0.1", options.port, timeout=60), "x")
                    break
                except OSError:
                    time.sleep(0.1)
            alone = loop(options.port, 10.0)
            found = load(options.port, options.clients, options.seconds, right)
        finally:
            server.terminate()
    print(f"direct call: {percentiles(direct)}")
    print(f"one client:  {percentiles(alone)}, {len(alone) / sum(alone):.0f} requests a second")
    each = found["right"] / options.seconds
    print(f"{options.clients} clients for {options.seconds:g} s: {dict(found)}, {each:.0f} right answers a second")
    cut = statistics.quantiles(alone, n=20)[18], statistics.quantiles(direct, n=20)[18]
    print(f"one client's p95 over a direct call's: {1e3 * (cut[0] - cut[1]):.1f} ms")
    compared("requests a second, many clients", each, len(alone) / sum(alone), "one client in a loop", unit="1/s")
    if found["wrong"] or found["lost"] or any(name.startswith("status") for name in found):
        sys.exit(1)


if __name__ == "__main__":
    main()
