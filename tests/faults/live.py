"""Kills a process of a live Ray at a random moment, again and again, and resumes: what is left must be what would have been.

    uv run python tests/faults/live.py --kills 30 --of worker base data trial driver node head --minutes 60

Each round trains the same tiny model (one worker, a knowledge base that refreshes, a stream of Ray Data, MLflow) in a home of its
own, kills one process with SIGKILL at a random moment, and runs `--resume` until the run ends. Then the final weights must be
those of a run that was never killed, bit for bit; each epoch must be in `metrics.jsonl` once, and in MLflow once. Prints a line
a round and a table; the exit code is 1 if any round differs. It takes a minute or so a round, so it is no part of the suite.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from own_ray import end_processes_of  # noqa: E402
from tiny import make_data  # noqa: E402

from ray_atr.run_folder import RunFolder  # noqa: E402
from ray_atr.training.checkpoint import load_checkpoint  # noqa: E402

EPOCHS = 6
TITLES = {
    "worker": ("RayTrainWorker",),
    "base": ("KnowledgeBase", "_Base", "KnowledgeActor"),
    "data": ("MapWorker", "ReadTask", "Map(", "_split_", "SplitCoordinator", "_StatsActor", "ray::Read"),
    "trial": ("ImplicitFunc", "TrainController", "_TrainFn"),
    "node": ("raylet/raylet",),
    "head": ("gcs_server",),
}
"""Kind -> what its processes' titles hold; `driver` is the command itself."""
TINY = {
    "data.languages": "eng,fra", "model.embedding_width": "16", "model.text.width": "16", "model.text.num_layers": "1",
    "model.text.vocab_size": "300", "train.epochs": str(EPOCHS), "train.batch_size": "8", "objective.knowledge": "ask",
    "train.checkpoint_every_steps": "2", "scaling.workers": "1",
}  # fmt: skip


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--kills", type=int, default=30, help="rounds for each kind")
    options.add_argument("--of", nargs="+", default=[*TITLES, "driver"], choices=[*TITLES, "driver"])
    options.add_argument("--minutes", type=float, default=600, help="start no round after this time")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--show", action="store_true", help="list the processes of a run that nobody kills")
    chosen = options.parse_args()
    deadline = time.monotonic() + 60 * chosen.minutes
    draw = random.Random(chosen.seed)
    outcomes: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory(prefix="live-") as scratch:
        before = Path(scratch) / "before"
        make_data(before / "tones")
        whole = Path(shutil.copytree(before, Path(scratch) / "whole"))
        started = time.monotonic()
        seconds = Run(whole).go(show=chosen.show)
        expected = result(whole)
        print(
            f"a run that nobody kills: {seconds:.0f} s after its first epoch began, {time.monotonic() - started:.0f} s in all"
        )
        for number in range(chosen.kills):
            for kind in chosen.of:
                if time.monotonic() > deadline:
                    break
                home = Path(shutil.copytree(before, Path(scratch) / f"{kind}-{number}"))
                outcome = one_round(home, kind, draw.uniform(0, seconds), expected)
                outcomes[kind, outcome] += 1
                print(f"{kind} {number}: {outcome}", flush=True)
                if outcome in ("same", "ended before it was found"):
                    shutil.rmtree(home, ignore_errors=True)
    print(*(f"{kind}\t{outcome}\t{count}" for (kind, outcome), count in sorted(outcomes.items())), sep="\n")
    return int(any(outcome not in ("same", "ended before it was found") for _, outcome in outcomes))


def one_round(home: Path, kind: str, after: float, expected: object) -> str:
    """Kill one process of a kind `after` seconds of training, resume until the run ends, and compare."""
    run = Run(home)
    is_killed = run.go(kind=kind, after=after) < 0
    resumed = 0
    while not run.is_finished():
        resumed += 1
        if resumed > 3:
            return f"not finished after 3 resumptions: {run.said[-300:]!r}"
        run.go()
    if not is_killed:
        return "ended before it was found"
    found = result(home)
    return "same" if found == expected else f"differs: {differences(found, expected)}"


class Run:
    """The command in a home, with a Ray of its own each time."""

    def __init__(self, home: Path) -> None:
        self.home, self.folder, self.said = home, home / "runs" / "one", ""

    def is_finished(self) -> bool:
        return (self.folder / "sweep.json").is_file() and all(
            t.is_finished for t in RunFolder.open(self.folder).trials()
        )

    def go(self, kind: str = "", after: float = 0.0, *, show: bool = False) -> float:
        """Start or resume until the command ends; the seconds from its first epoch's begin to its end, -1 if it was killed."""
        # Socket names must stay short.
        with tempfile.TemporaryDirectory(prefix="ra", ignore_cleanup_errors=True) as temporary:
            environment = {
                **{name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "MLFLOW_"))},
                "RAY_TMPDIR": temporary, "RAY_ATR_HOME": str(self.home), "OMP_NUM_THREADS": "1",
            }  # fmt: skip
            with (self.home / "said.txt").open("w") as said:
                process = subprocess.Popen(
                    [sys.executable, str(ROOT / "pipelines" / "train.py"), *self._words()],
                    cwd=self.home, env=environment, stdout=said, stderr=subprocess.STDOUT,
                )  # fmt: skip
                try:
                    return self._watch(process, kind, after, show)
                finally:
                    process.kill()
                    process.wait()
                    end_processes_of(temporary)
                    self.said = (self.home / "said.txt").read_text()

    def _words(self) -> list[str]:
        if (self.folder / "sweep.json").is_file():
            return ["--resume", str(self.folder), "--retry-failed"]
        settings = {"data.source": str(self.home / "tones"), **TINY}
        return ["--out", str(self.folder), *(word for path, value in settings.items() for word in (f"--{path}", value))]

    def _watch(self, process: subprocess.Popen[bytes], kind: str, after: float, show: bool) -> float:
        began, shown, is_killed = 0.0, set(), False
        limit = time.monotonic() + 400
        while process.poll() is None and time.monotonic() < limit:
            time.sleep(0.05)
            if not began and any(self.folder.glob("trials/*/last/state.pt")):
                began = time.monotonic()
            if show:
                for title in (" ".join(one.cmdline())[:90] for one in family(process.pid)):
                    if title not in shown:
                        shown.add(title)
                        print("   ", title)
            if kind and not is_killed and began and time.monotonic() - began >= after:
                is_killed = kill_one(process.pid, kind)
        return -1.0 if is_killed else time.monotonic() - (began or time.monotonic())


def kill_one(driver: int, kind: str) -> bool:
    """Whether a process of the kind was there to kill."""
    if kind == "driver":
        os.kill(driver, signal.SIGKILL)
        return True
    for process in family(driver):
        with contextlib.suppress(psutil.Error):
            title = " ".join(process.cmdline())
            if any(part in title for part in TITLES[kind]):
                process.kill()
                return True
    return False


def family(driver: int) -> Iterator[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(driver).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                process.cmdline()
                yield process


def result(home: Path) -> dict[str, object]:
    """Final weights, the epochs of `metrics.jsonl`, and MLflow's rows, all as plain values."""
    (trial,) = RunFolder.open(home / "runs" / "one").trials()
    weights = load_checkpoint(trial.folder / "last")["model"]
    return {
        "weights": {name: value.contiguous().reshape(-1).view(torch.uint8).tolist() for name, value in weights.items()},
        "epochs": [row["epoch"] for row in trial.epochs()],
        "losses": [row["train/loss"] for row in trial.epochs()],
        "mlflow": in_mlflow(home),
    }


def in_mlflow(home: Path) -> list[tuple[str, int, float]]:
    """The rows of what was measured on the validation split, in a process that ends: a client keeps the database open."""
    code = (
        "import json, sys; from mlflow import MlflowClient\n"
        "client = MlflowClient('sqlite:///' + sys.argv[1])\n"
        "runs = client.search_runs([one.experiment_id for one in client.search_experiments()])\n"
        "print(json.dumps(sorted([row.key, row.step, row.value] for run in runs for key in run.data.metrics\n"
        "  if key.startswith('validation/') for row in client.get_metric_history(run.info.run_id, key))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(home / "runs" / "mlflow.db")], capture_output=True, text=True, check=True
    )
    return [tuple(row) for row in json.loads(done.stdout.splitlines()[-1])]


def differences(found: dict[str, object], expected: dict[str, object]) -> str:
    return ", ".join(
        f"{name} ({str(found[name])[:80]})" if name == "epochs" else name
        for name in expected
        if found[name] != expected[name]
    )


if __name__ == "__main__":
    raise SystemExit(main())
