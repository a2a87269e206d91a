"""What a sweep's driver does for each trial, without the training: search, run folder, events.

    python benchmarks/bench_controller.py                      # 1,000 trials of 10 epochs, 64 at a time, by each search
    python benchmarks/bench_controller.py --trials 10000 --searches random
    python benchmarks/bench_controller.py --trials 10000 --parts 10 --repeats 3   # a thousand at a time, and whether that grows
    python benchmarks/bench_controller.py --proposals 100000   # proposals alone, with that many points known

Trials are simulated: their events go through the queue and the recording as those of Ray Tune do. Prints CPU milliseconds
of the driver for a trial, in each fifth of the sweep (a cost that grows with the number of trials shows as a rise), how often
files of the run folder are opened for a trial, and what resuming the finished sweep takes. Then, over `--repeats` sweeps, the
median of each part, the last part's against the median part's, and the slope of a line through them with its 95% interval.
Every write waits for the disk: `TMPDIR=/dev/shm` leaves that out.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scipy import stats
from side_by_side import compared

from ray_atr.sweep import SEARCHES, Goal, SpaceSearch, SweepPlan
from ray_atr.sweep.recording import ConsoleProgress, Recording
from ray_atr.sweep.search import History, Observation
from ray_atr.sweep.space import Space
from ray_atr.sweep.trial_queue import TrialQueue
from ray_atr.training.experiment import Experiment
from ray_atr.training.run_folder import FINISHED, RUNNING, RunFolder

GOAL = Goal("text_to_audio/mean/recall_at_1")
RANGES = [
    "train.learning_rate=loguniform(1e-5,1e-2)",
    "train.weight_decay=uniform(0,0.1)",
    "objective=choice(contrastive,m_ltm)",
]


def space_of(search: str, points: int) -> Space:
    if search != "grid":
        return Space.parse(RANGES, Experiment())
    seeds = ",".join(str(number) for number in range(1, -(-points // 10) + 1))
    widths = ",".join(str(number) for number in range(16, 26))
    return Space.parse([f"train.epochs=grid({seeds})", f"train.batch_size=grid({widths})"], Experiment())


def search_of(name: str, points: int) -> SpaceSearch:
    return SEARCHES[name](space_of(name, points), (GOAL,), 0)


def simulated(name: str, trials: int, epochs: int, at_once: int, parts: int, opened: list[int]) -> list[float]:
    """CPU milliseconds a trial of each part of one sweep; `opened[0]` counts the files opened."""
    drawn, size = random.Random(0), max(1, trials // parts)
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder.create(Path(folder) / "run", Experiment(), {"name": "simulated"})
        plan = SweepPlan(search_of(name, trials), (), trials)
        opened[0], began = 0, time.process_time()
        queue = TrialQueue(run, plan, lambda point: None)
        prepared = time.process_time() - began
        progress = ConsoleProgress(epochs, echo=lambda line: None)
        progress.sweep_started(trials, 0)
        recording = Recording([progress])
        working: deque[tuple[Any, int]] = deque()
        ended = 0
        marks = [time.process_time()]
        while True:
            while len(working) < at_once and (trial := queue.next()) is not None:
                recording.started(trial)
                working.append((trial, 1))
            if not working:
                break
            trial, epoch = working.popleft()
            recall = drawn.random()
            recording.reported(trial, {"epoch": epoch, GOAL.metric: recall, "seconds/train": float(epoch)})
            if epoch < epochs:
                working.append((trial, epoch + 1))
                continue
            recording.reported(trial, {"is_final": True, "best_epoch": epoch, "epoch": epoch})
            recording.ended(trial)
            ended += 1
            if ended % size == 0:
                marks.append(time.process_time())
        files = opened[0] / ended
        shares = [1e3 * (after - before) / size for before, after in itertools.pairwise(marks)]
        opened[0], began = 0, time.process_time()
        again = TrialQueue(RunFolder.open(run.path), plan, lambda point: None)
        assert again.is_done
        resumed, read = time.process_time() - began, opened[0] / ended
        shown = ", ".join(f"{value:.1f}" for value in shares)
        print(
            f"{name}: {ended} trials of {epochs} epochs, {at_once} at a time: {shown} ms of CPU a trial by parts; queue "
            f"{prepared:.1f} s; {files:.0f} files opened a trial; resuming {resumed:.1f} s, {read:.1f} files a trial",
            flush=True,
        )
        return shares


def growth(name: str, sweeps: Sequence[Sequence[float]]) -> None:
    """How the cost of a trial grows from part to part: medians over the sweeps, and a line through them."""
    medians = [statistics.median(part) for part in zip(*sweeps, strict=True)]
    usual = statistics.median(medians)
    compared(f"driver, {name}: last part against the median part", medians[-1], usual, "median part")
    if len(medians) < 3:
        return
    for first in (1, 2):
        numbers = range(first, len(medians) + 1)
        line = stats.linregress(numbers, medians[first - 1 :])
        margin = stats.t.ppf(0.975, len(numbers) - 2) * line.stderr
        slope, low, high = (100 * value / usual for value in (line.slope, line.slope - margin, line.slope + margin))
        print(
            f"{name}, parts {first} to {len(medians)}: {slope:+.2f}% [{low:+.2f}, {high:+.2f}] of the median a part",
            flush=True,
        )
    shown = ", ".join(f"{value:.2f}" for value in medians)
    print(f"{name}: medians of {len(sweeps)}: {shown} ms; last / median {medians[-1] / usual:.3f}", flush=True)


def proposals(points: int) -> None:
    """CPU seconds of what the searches propose with so many points known."""
    drawn, space = random.Random(0), space_of("optuna", points)
    history = History(Observation(space.draw(drawn), FINISHED, (drawn.random(),)) for _ in range(points))
    asked = search_of("optuna", points).proposals(history)
    began = time.process_time()
    history.add(Observation(next(asked), RUNNING))
    first, took = time.process_time() - began, []
    for _ in range(5):
        began = time.process_time()
        point = next(asked)
        took.append(time.process_time() - began)
        history.observations[-1] = Observation(history.observations[-1].point, FINISHED, (drawn.random(),))
        history.add(Observation(point, RUNNING))
    print(
        f"optuna, {points:,} points known: {first:.2f} s for the first proposal, then {sorted(took)[2]:.3f} s",
        flush=True,
    )
    for name in ("grid", "random"):
        began, filled = time.process_time(), History()
        for point in itertools.islice(search_of(name, points).proposals(filled), points):
            filled.add(Observation(point, RUNNING))
        print(f"{name}, {len(filled):,} points: {time.process_time() - began:.1f} s in all", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--parts", type=int, default=5, help="of the sweep, whose costs are printed")
    parser.add_argument("--repeats", type=int, default=1, help="sweeps of each search")
    parser.add_argument("--searches", nargs="+", choices=tuple(SEARCHES), default=list(SEARCHES))
    parser.add_argument("--proposals", type=int, default=0)
    options = parser.parse_args()
    if options.proposals:
        proposals(options.proposals)
        return
    opened = [0]

    def count(event: str, arguments: Any) -> None:
        opened[0] += event == "open" and "/run/" in str(arguments[0])

    sys.addaudithook(count)
    how = (options.trials, options.epochs, options.at_once, options.parts, opened)
    for search in options.searches:
        growth(search, [simulated(search, *how) for _ in range(options.repeats)])


if __name__ == "__main__":
    main()
