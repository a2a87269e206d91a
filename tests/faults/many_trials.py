"""Hundreds of tiny trials on a live Ray, whose processes and driver are killed at random: nothing is lost, and nothing grows.

    uv run python tests/faults/many_trials.py --trials 300 --kill-every 5 --driver-kills 3

Prints a line every 20 seconds and at the end: trials that have ended, kills, and of the driver its memory, open files and
processes below it; then what is left on the disk and in the process table. The exit code is 1 if a trial is missing, an epoch
is there twice or not at all, something is left over, or no trial's process was killed: few trials end before the first kill.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from live import TINY, Run, family, kill_one

from ray_atr.training.run_folder import FINISHED, RunFolder
from tests.support.tiny import make_data

EPOCHS = 2
SAMPLE_SECONDS = 20.0


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--trials", type=int, default=300)
    options.add_argument(
        "--kill-every", type=float, default=5.0, help="seconds between kills of a trial's process, in the mean"
    )
    options.add_argument("--driver-kills", type=int, default=3)
    chosen = options.parse_args()
    words = {
        **TINY, "train.epochs": str(EPOCHS), "scaling.workers": "0", "scaling.ray_data": "false", "search": "random",
        "trials": str(chosen.trials), "space": "train.learning_rate=loguniform(1e-4,1e-2)", "concurrency": "2",
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="many-") as scratch:
        home = Path(scratch)
        make_data(home / "tones")
        watch = Watch(home / "runs" / "one", chosen)
        with contextlib.closing(Run(home, "sweep", words)) as run:
            while (code := run.go(watch)) != 0 and watch.starts < 40:
                watch.starts += 1
            time.sleep(5)
            left = [title for title, _ in family(os.getpid())]
        watch.sample(None)
        wrong = []
        for trial in RunFolder.open(run.folder).trials():
            status, epochs = trial.describe()["status"], [row["epoch"] for row in trial.epochs()]
            if status != FINISHED or epochs != [*range(1, EPOCHS + 1)]:
                wrong.append(trial)
                print(f"{trial.folder.name}: {status}, epochs {epochs}", flush=True)
        hidden = list(home.rglob(".*.????????????"))
        print(
            f"exit code {code}; {len(wrong)} trials wrong; {len(left)} processes and {len(hidden)} files aside left over"
        )
        if not watch.killed:
            print("no trial's process was killed: more --trials, or fewer --driver-kills")
        if code:
            print(run.said[-3000:])
    return int(bool(code or wrong or left or hidden or not watch.killed))


class Watch:
    """Kills trials' processes, and a few times the driver; says what the driver holds."""

    def __init__(self, folder: Path, chosen: argparse.Namespace) -> None:
        self.folder, self.every, self.draw = folder, chosen.kill_every, random.Random(0)
        self.driver_kills = [
            round(chosen.trials * (n + 1) / (chosen.driver_kills + 1)) for n in range(chosen.driver_kills)
        ]
        self.killed = self.drivers_killed = 0
        self.starts, self.began = 1, time.monotonic()
        self.next_kill, self.next_sample = self.began + 30, self.began

    def __call__(self, driver: int) -> None:
        now = time.monotonic()
        if now >= self.next_kill:
            self.killed += kill_one(driver, "trial")
            self.next_kill = now + self.draw.expovariate(1 / self.every)
        if now >= self.next_sample:
            self.sample(driver)
            self.next_sample = now + SAMPLE_SECONDS
        if self.driver_kills and self.ended() >= self.driver_kills[0]:
            self.driver_kills.pop(0)
            os.kill(driver, signal.SIGKILL)
            self.drivers_killed, self.next_kill = self.drivers_killed + 1, now + 30

    def ended(self) -> int:
        """Trials that have a result."""
        return sum(1 for _ in self.folder.glob("trials/*/result.json"))

    def sample(self, driver: int | None) -> None:
        line = f"{time.monotonic() - self.began:4.0f} s: {self.ended()} trials, {self.killed} processes and "
        line += f"{self.drivers_killed} drivers killed, {self.starts} starts"
        with contextlib.suppress(psutil.Error):
            if driver is not None:
                process = psutil.Process(driver)
                memory = process.memory_info().rss >> 20
                line += f"; driver {memory} MiB, {process.num_fds()} files; {len(list(family(driver)))} processes"
        size = sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file()) >> 10
        print(f"{line}; run folder {size} KiB", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
