"""Kills `ray-atr index build`, `index update` and `serve` at random moments; the next start must do as if nothing had been.

    uv run python tests/faults/live_search.py                       # 30 kills of each, some minutes
    uv run python tests/faults/live_search.py --of serve --kills 5

A build and an update are killed with SIGKILL and begun again by the same call until they end: the files of the index must be
those of one that nobody killed, byte for byte, and while an update is killed the folder must answer as the older index or as the
newer one. A server is killed under clients that ask all the time, and started again at the same port: every answer that came
whole must be the one of a server that nobody killed. Prints a line for each kind; the exit code is 1 if anything differs.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
os.environ["OMP_NUM_THREADS"] = "1"

import torch  # noqa: E402
import uvicorn  # noqa: E402, F401 so that a fork need not

from ray_atr.cli import main as command  # noqa: E402
from ray_atr.cli import serve  # noqa: E402, F401
from ray_atr.deploy.index.build import build_index, update_index  # noqa: E402
from ray_atr.deploy.index.opened import Index  # noqa: E402
from ray_atr.deploy.serve import app  # noqa: E402, F401
from tests.support.archives import TEXTS, make_tones, save_retriever  # noqa: E402
from tests.support.calls import call  # noqa: E402
from tests.support.own_ray import free_port  # noqa: E402
from tests.support.tiny import tone  # noqa: E402

SOUNDS, MORE, CLIENTS = 200, 60, 3
PART_SECONDS = 0.1
"""An unfinished build is written this often, so that most kills leave some of it."""


def forked(work: Callable[[], object], said: Path) -> int:
    """The id of a process that does the work; what it says goes to a file."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(output, 1)
            os.dup2(output, 2)
            work()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return child


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


class Work:
    """A folder with a retriever, an archive, and the indexes that nobody killed: of the archive, and of the archive later."""

    def __init__(self, home: Path) -> None:
        self.home, self.said = home, home / "said.txt"
        save_retriever(home / "model")
        self.audio = make_tones(home / "audio", SOUNDS)
        self.build("before")
        self.before = files_of(home / "before")

    def build(self, name: str) -> None:
        build_index(str(self.home / "model"), str(self.audio), str(self.home / name), part_seconds=PART_SECONDS)

    def change(self) -> None:
        """The archive loses some sounds, gets others, and one is another under its old name."""
        for number in range(0, MORE, 3):
            (self.audio / f"tone {number}.wav").unlink()
        for number in range(SOUNDS, SOUNDS + MORE):
            (self.audio / f"tone {number}.wav").write_bytes(tone(number % 4, number))
        (self.audio / "tone 1.wav").write_bytes(tone(3, 999))

    def update(self, name: str) -> None:
        update_index(str(self.home / name), part_seconds=PART_SECONDS)


def answers(folder: Path) -> list[object]:
    index = Index.open(folder)
    return [[(one.path, one.start, one.score) for one in index.search(text, top=5)] for text in TEXTS]


def seconds_of(work: Callable[[], object], said: Path) -> float:
    began = time.monotonic()
    _, status = os.waitpid(forked(work, said), 0)
    if status:
        raise RuntimeError(said.read_text()[-3000:])
    return time.monotonic() - began


def killed(work: Callable[[], object], said: Path, draw: random.Random, longest: float) -> bool:
    """Whether the work was killed at a random moment; False if it ended well before. RuntimeError if it failed."""
    child = forked(work, said)
    ends = time.monotonic() + draw.uniform(0, longest)
    while time.monotonic() < ends:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            if status:
                raise RuntimeError(said.read_text()[-3000:])
            return False
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def kills_of_writers(home: Work, kind: str, kills: int, draw: random.Random) -> str:
    """Kill a build, or an update, again and again; what differs, in words."""
    folder, old = home.home / "one", answers(home.home / "before")

    def start() -> None:
        """The folder as it is before the work."""
        shutil.rmtree(folder, ignore_errors=True)
        if kind == "update":
            shutil.copytree(home.home / "before", folder)

    if kind == "update":
        home.change()
    work = partial(home.update if kind == "update" else home.build, folder.name)
    start()
    longest = seconds_of(work, home.said)
    expected, new = files_of(folder), answers(folder)
    if kind == "build" and expected != home.before:
        return "two builds differ"
    done = rounds = 0
    while done < kills:
        start()
        rounds += 1
        while killed(work, home.said, draw, longest):
            done += 1
            if kind == "update" and answers(folder) not in (old, new):
                return f"after kill {done} the folder answers as neither index"
        found = files_of(folder)
        if found != expected:
            names = sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))
            return f"round {rounds}: other files: {', '.join(names)}"
    return f"{done} kills in {rounds} rounds of {longest:.1f} s: same"


QUESTIONS = [
    *(("GET", "/search", None, {"text": text, "top": 3}) for text in TEXTS),
    ("POST", "/similar", tone(2, 2), {"top": 3}),
    ("GET", "/audio", None, {"path": "tone 2.wav", "start": 0.25}),
]


class Clients:
    """Threads that ask a server all the time, until it is gone."""

    def __init__(self, port: int, expected: list[object]) -> None:
        self.port, self.expected = port, expected
        self.asked = 0
        self.wrong: list[str] = []

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        self._is_over = False
        threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(CLIENTS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._is_over = True
            for thread in threads:
                thread.join()

    def _ask(self, number: int) -> None:
        while not self._is_over:
            number = (number + 1) % len(QUESTIONS)
            method, place, body, parameters = QUESTIONS[number]
            try:
                status, found = call(self.port, method, place, body, **parameters)
            except (OSError, http.client.HTTPException, ValueError):
                # Not there yet, or gone in the middle of an answer.
                time.sleep(0.01)
                continue
            self.asked += 1
            if status != 200 or not is_like(found, self.expected[number]):
                self.wrong.append(f"{status} {place}: {str(found)[:200]}")


def is_like(found: Any, expected: Any) -> bool:
    """Whether two answers are equal: scores to 1e-5, since texts that are asked for together are encoded together."""
    if isinstance(expected, float):
        return isinstance(found, float) and math.isclose(found, expected, rel_tol=1e-5)
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(is_like(found[name], expected[name]) for name in expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(is_like, found, expected))
    return bool(found == expected)


def kills_of_a_server(home: Work, kills: int, draw: random.Random) -> str:
    folder, port = home.home / "before", free_port()

    def work() -> None:
        command("serve", arguments=[str(folder), "--port", str(port)])

    def until_it_answers(child: int) -> float:
        began = time.monotonic()
        while time.monotonic() - began < 60:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if call(port, "GET", "/health")[0] == 200:
                    return time.monotonic() - began
            if os.waitpid(child, os.WNOHANG)[0]:
                raise RuntimeError(home.said.read_text()[-3000:])
            time.sleep(0.01)
        raise RuntimeError("the server did not answer within a minute")

    child = forked(work, home.said)
    longest = until_it_answers(child)
    expected = [call(port, method, place, body, **more)[1] for method, place, body, more in QUESTIONS]
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    clients, waits = Clients(port, expected), []
    for number in range(kills):
        child = forked(work, home.said)
        with clients.asking():
            # Every third is killed while it starts.
            if number % 3:
                waits.append(until_it_answers(child))
            time.sleep(draw.uniform(0, 1.5 if number % 3 else longest))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    child = forked(work, home.said)
    until_it_answers(child)
    again = [call(port, method, place, body, **more)[1] for method, place, body, more in QUESTIONS]
    os.kill(child, signal.SIGTERM)
    _, status = os.waitpid(child, 0)
    if clients.wrong or not is_like(again, expected) or files_of(folder) != home.before:
        return f"other: answers {clients.wrong[:3]}, {again} at the end, or files"
    return (
        f"{kills} kills, {clients.asked:,} answers, at the port again within {max(waits):.1f} s, SIGTERM then "
        f"{os.waitstatus_to_exitcode(status)}: same"
    )


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--kills", type=int, default=30)
    kinds = ("build", "serve", "update")
    options.add_argument("--of", nargs="+", default=kinds, choices=kinds)
    options.add_argument("--seed", type=int, default=0)
    chosen = options.parse_args()
    torch.set_num_threads(1)
    is_same = True
    with tempfile.TemporaryDirectory(prefix="live-search-") as scratch:
        home = Work(Path(scratch))
        # In this order: an update changes the archive.
        for kind in (one for one in kinds if one in chosen.of):
            draw = random.Random(f"{chosen.seed} {kind}")
            outcome = (
                kills_of_a_server(home, chosen.kills, draw)
                if kind == "serve"
                else kills_of_writers(home, kind, chosen.kills, draw)
            )
            is_same &= outcome.endswith("same")
            print(f"{kind}: {outcome}", flush=True)
    return int(not is_same)


if __name__ == "__main__":
    raise SystemExit(main())
