"""Kills processes of a live Ray at random moments, and resumes: what is left must be what would have been.

    uv run python tests/faults/live.py --of worker base data --each 10 --epochs 400 --rounds 3
    uv run python tests/faults/live.py --of trial driver node head --rounds 30
    uv run python tests/faults/live.py --parts 2 --of worker part base --each 3 --rounds 10

Each round trains the same tiny model (a knowledge base, a stream of Ray Data, MLflow) in a home of its own, kills processes of
the named kinds with SIGKILL, in random order and at random moments, and runs `--resume` whenever the command has ended, until it
ends well. Then the final weights must be those of a run without Ray that was never killed, bit for bit; each epoch must be in
`metrics.jsonl` once, and in MLflow once. With `--parts N` there are N workers and the base is in as many parts; the run that
nobody kills is then one on Ray too, since the gradients of N workers are summed in another order than those of one. Prints a
line a kill and a round, and a table; the exit code is 1 if any round differs. It takes minutes a round, so it is no part of the
suite; `TMPDIR=/dev/shm` leaves out waiting for the disk.
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
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.support.own_ray import SWITCHES, end_processes_of  # noqa: E402

# Read when these libraries are imported. Ray gives a head that is gone a minute to come back; here five seconds.
os.environ |= {"OMP_NUM_THREADS": "1", "RAY_gcs_rpc_server_reconnect_timeout_s": "5", **SWITCHES}

import mlflow  # noqa: E402, F401 so that a fork need not
import psutil  # noqa: E402
import torch  # noqa: E402
from ray import tune  # noqa: E402, F401

from ray_atr.cli import main as command  # noqa: E402
from ray_atr.cli import running  # noqa: E402, F401
from ray_atr.training.checkpoint import load_checkpoint  # noqa: E402
from ray_atr.training.run_folder import METRICS_FILE, RunFolder  # noqa: E402
from tests.support.tiny import make_data  # noqa: E402

TITLES = {
    "worker": ("ray::RayTrainWorker",),
    "base": ("ray::LeadingActor",),
    "part": ("ray::ShardActor",),
    # A task of milliseconds is seldom seen at work: between two, its process is idle.
    "data": ("ray::Map", "ray::_MapWorker", "ray::IDLE"),
    "trial": ("ray::ImplicitFunc", "ray::run_in_tune", "ray::TrainController"),
    "node": ("raylet/raylet",),
    "head": ("gcs_server",),
    "driver": (),
}
"""Kind -> how its processes are called; the driver is the command itself."""
SILENT_SECONDS = 240.0
"""A command that neither ends nor trains an epoch for so long hangs."""
TINY = {
    "data.languages": "eng,fra", "model.embedding_width": "16", "model.text.width": "16", "model.text.num_layers": "1",
    "model.text.vocab_size": "300", "train.batch_size": "8",
}  # fmt: skip
PARTED_CLIPS = 1_100
"""A part begins at an entry whose number is a multiple of 1,024: the second of two has the rest."""
WITH_A_BASE = {
    "train.checkpoint_every_steps": "2", "objective.knowledge": "ask", "objective.knowledge.prototypes": "4",
    "objective.knowledge.refresh_every_epochs": "2",
}  # fmt: skip


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--rounds", type=int, default=1)
    kinds = [kind for kind in TITLES if kind != "part"]
    options.add_argument("--of", nargs="+", default=kinds, choices=[*TITLES])
    options.add_argument("--parts", type=int, default=1, help="workers, each with a part of the base")
    options.add_argument("--each", type=int, default=1, help="kills of each kind in a round")
    options.add_argument("--epochs", type=int, default=40)
    options.add_argument("--every", type=float, default=10, help="seconds between two kills, at most")
    options.add_argument("--minutes", type=float, default=600, help="start no round after this time")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument(
        "--expected", type=Path, help="keep the run that nobody kills in this folder, or find it there"
    )
    options.add_argument("--show", action="store_true", help="list the processes as they appear")
    chosen = options.parse_args()
    started, draw = time.monotonic(), random.Random(chosen.seed)
    outcomes: Counter[tuple[str, str]] = Counter()
    settings = {**TINY, **WITH_A_BASE, "train.epochs": str(chosen.epochs)}
    # A trial without workers of its own starts sooner.
    on_ray = {**settings, "scaling.workers": "1" if "worker" in chosen.of else "0", "scaling.max_failures": "100"}
    nobody, clips = {**settings, "ray": "never"}, 24
    if chosen.parts > 1:
        in_parts = {"scaling.workers": str(chosen.parts), "scaling.base_shards": str(chosen.parts)}
        on_ray |= {**in_parts, "train.batch_size": "64"}
        nobody, clips = on_ray, PARTED_CLIPS
    with tempfile.TemporaryDirectory(prefix="live-") as scratch:
        whole = (chosen.expected or Path(scratch)) / f"of-{chosen.epochs}-epochs-in-{chosen.parts}"
        if not whole.exists():
            make_data(whole / "tones", num_train=clips)
            with contextlib.closing(Run(whole, "train", nobody)) as run:
                if run.go(lambda driver: None) != 0:
                    print(run.said[-3000:])
                    return 1
            print(f"a run that nobody kills: {time.monotonic() - started:.0f} s", flush=True)
        expected = result(whole)
        for number in range(chosen.rounds):
            if time.monotonic() - started > 60 * chosen.minutes:
                break
            home = Path(scratch) / f"round-{number}"
            # With the features of the run that nobody killed: computing them is tested elsewhere.
            shutil.copytree(whole, home, ignore=shutil.ignore_patterns("runs", "said.txt"))
            kinds = chosen.of * chosen.each
            with contextlib.closing(Run(home, "train", on_ray)) as run:
                order = draw.sample(kinds, len(kinds))
                kills = Kills(order, draw, chosen.every, run.folder, set() if chosen.show else None)
                outcome = one_round(run, kills, expected)
                outcomes.update((kind, outcome) for kind in kills.done)
                print(f"round {number}: {len(kills.done)} kills, {kills.starts} starts: {outcome}", flush=True)
                if outcome != "same":
                    print(run.said[-6000:])
            shutil.rmtree(home, ignore_errors=True)
    print(*(f"{kind}\t{outcome}\t{count}" for (kind, outcome), count in sorted(outcomes.items())), sep="\n")
    return int(any(outcome != "same" for _, outcome in outcomes))


def one_round(run: Run, kills: Kills, expected: dict[str, object]) -> str:
    """Kill a process of each kind, resume until the command ends well, and compare."""
    for _ in range(len(kills.waiting) + 3):
        kills.begin()
        code = run.go(kills)
        if code == 0:
            found = result(run.home)
            return "same" if found == expected else f"differs: {differences(found, expected)}"
        print(f"  ended with {code} {time.monotonic() - kills.last:.1f} s later", flush=True)
    return "not finished"


class Run:
    """A command in a home, with a Ray of its own each time that it starts or resumes."""

    def __init__(self, home: Path, command: str, settings: Mapping[str, str]) -> None:
        self.home, self.folder, self.command, self.settings = home, home / "runs" / "one", command, settings
        self._temporaries: list[str] = []

    def close(self) -> None:
        """End what is left of every Ray. Not before: who resumes at once does not wait for it either."""
        for temporary in self._temporaries:
            end_processes_of(temporary)
            shutil.rmtree(temporary, ignore_errors=True)

    @property
    def said(self) -> str:
        return (self.home / "said.txt").read_text()

    def go(self, each: Callable[[int], None]) -> int:
        """Start or resume until the command ends; its exit code. `each(its process)` is called all the time."""
        # Socket names must stay short.
        self._temporaries.append(tempfile.mkdtemp(prefix="ra"))
        process = os.fork()
        if process == 0:
            self._command()
        while True:
            time.sleep(0.02)
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            each(process)

    def _command(self) -> NoReturn:
        """The command, in a fork of this process, which has imported all that it imports."""
        said = os.open(self.home / "said.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(said, 1)
        os.dup2(said, 2)
        os.chdir(self.home)
        os.environ.update(RAY_TMPDIR=self._temporaries[-1], RAY_ATR_HOME=str(self.home))
        code = 1
        try:
            command(self.command, arguments=self._words())
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _words(self) -> list[str]:
        if (self.folder / "sweep.json").is_file():
            # `train` has one trial, and runs it again anyway.
            return ["--resume", str(self.folder), *(["--retry-failed"] if self.command == "sweep" else [])]
        settings = {"data.source": str(self.home / "tones"), **self.settings}
        return ["--out", str(self.folder), *(word for path, value in settings.items() for word in (f"--{path}", value))]


class Kills:
    """Kills one process of each kind, in this order, at random moments of a command that may start again in between."""

    def __init__(
        self, kinds: Sequence[str], draw: random.Random, every: float, folder: Path, shown: set[str] | None
    ) -> None:
        self.waiting, self.draw, self.every, self.folder, self.shown = list(kinds), draw, every, folder, shown
        self.done: list[str] = []
        self.starts = 0

    def begin(self) -> None:
        """The command starts."""
        self.starts += 1
        self.began = self.last = time.monotonic()
        self.moment = self.began + self.draw.uniform(0, 3 * self.every)

    def __call__(self, driver: int) -> None:
        now = time.monotonic()
        if self.shown is not None:
            for title in {title[:90] for title, _ in family(driver)} - self.shown:
                self.shown.add(title)
                print(f"    {now - self.began:5.1f} s  {title}", flush=True)
        if self.waiting and now >= self.moment and kill_one(driver, self.waiting[0]):
            self.done.append(self.waiting.pop(0))
            print(f"  {self.done[-1]} killed {now - self.began:.1f} s after the start", flush=True)
            self.last, self.moment = now, now + self.draw.uniform(0, self.every)
        if now - self.last > SILENT_SECONDS and not self._has_trained(SILENT_SECONDS):
            print("  hangs; killed", flush=True)
            os.kill(driver, signal.SIGKILL)
            self.last = now

    def _has_trained(self, seconds: float) -> bool:
        """Whether an epoch has ended in the last seconds."""
        ends = (file.stat().st_mtime for file in self.folder.glob(f"trials/*/{METRICS_FILE}"))
        return time.time() - max(ends, default=0.0) < seconds


def kill_one(driver: int, kind: str) -> bool:
    """Whether a process of the kind was there to kill."""
    if kind == "driver":
        os.kill(driver, signal.SIGKILL)
        return True
    for title, process in family(driver):
        if any(part in title for part in TITLES[kind]):
            with contextlib.suppress(psutil.Error):
                process.kill()
                return True
    return False


def family(driver: int) -> Iterator[tuple[str, psutil.Process]]:
    """The title of each process that a command has started, directly or not, and the process."""
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(driver).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                yield " ".join(process.cmdline()), process


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
        f"{name} ({str(found[name])[:300]})" if name == "epochs" else name
        for name in expected
        if found[name] != expected[name]
    )


if __name__ == "__main__":
    raise SystemExit(main())
