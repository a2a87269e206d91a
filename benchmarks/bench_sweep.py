"""What Ray costs around a training loop, how busy a sweep keeps the cores, and what its driver holds on to.

uv run python benchmarks/bench_sweep.py loop         one worker of Ray Train against the same loop without Ray, in turn
uv run python benchmarks/bench_sweep.py efficiency   16 short trials: seconds of their work over wall seconds times cores
uv run python benchmarks/bench_sweep.py memory       the driver's memory over 200 tiny trials

Goals: at most 1.05 x after start-up; at least 0.9 with trials of 30 s and more, 0.8 with shorter ones; flat.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import psutil
import tyro
from side_by_side import compared

from ray_atr.common.override import override
from ray_atr.common.runtime import start_ray
from ray_atr.common.storage import read_json
from ray_atr.sweep import SweepListener, sweep
from ray_atr.training.experiment import Experiment
from ray_atr.training.inputs import Prepared, prepare
from ray_atr.training.loop import train_trial
from ray_atr.training.recipes import RECIPES
from ray_atr.training.run_folder import RunFolder, TrialFolder


@dataclass(frozen=True)
class Options:
    """Measure Ray around training."""

    what: Annotated[Literal["loop", "efficiency", "memory"], tyro.conf.Positional]
    home: Annotated[Path | None, tyro.conf.arg(help="folder for data and runs (default: a temporary one)")] = None
    rounds: Annotated[int, tyro.conf.arg(help="of `loop`")] = 3
    epochs: Annotated[int, tyro.conf.arg(help="of each trial of `loop` and `efficiency`")] = 8
    validate_every: Annotated[int, tyro.conf.arg(help="epochs, of each trial of `efficiency`")] = 1
    trials: Annotated[int | None, tyro.conf.arg(help="of `efficiency` (16) and `memory` (200)")] = None
    cores: Annotated[int, tyro.conf.arg(help="that Ray has, of `loop` and `efficiency`")] = 2


def main() -> None:
    options = tyro.cli(Options)
    with tempfile.TemporaryDirectory() as aside:
        home = options.home or Path(aside)
        home.mkdir(parents=True, exist_ok=True)
        {"loop": measure_loop, "efficiency": measure_efficiency, "memory": measure_memory}[options.what](options, home)


def small_towers(epochs: int, **changes: Any) -> Experiment:
    changed = {path.replace("__", "."): value for path, value in changes.items()}
    return override(RECIPES["from_scratch"](), {"train.epochs": epochs, "objective": "m_ltm_pot", **changed})


def measure_loop(options: Options, home: Path) -> None:
    """Seconds from the end of the first epoch to the end of the last, with one worker of Ray Train and without Ray."""
    experiment = small_towers(options.epochs)
    prepared = prepare(experiment, home, use_ray=False)
    start_ray(num_cpus=options.cores)
    took: dict[str, list[float]] = {"Ray, 1 worker": [], "without Ray": []}
    for number in range(options.rounds):
        took["without Ray"].append(
            seconds_without_ray(experiment, prepared, home / f"plain-{number}-{time.time():.0f}")
        )
        took["Ray, 1 worker"].append(seconds_with_a_worker(experiment, home, f"ray-{number}-{time.time():.0f}"))
        print("  ".join(f"{name} {seconds[-1]:.2f} s" for name, seconds in took.items()), flush=True)
    ratios = [ray / plain for ray, plain in zip(took["Ray, 1 worker"], took["without Ray"], strict=True)]
    compared(
        "an epoch of one Ray Train worker",
        statistics.median(ratios),
        1.0,
        "the same loop without Ray",
        unit="x",
        at_most=1.05,
    )
    print(
        f"{options.epochs - 1} epochs; ratio of each round {', '.join(f'{ratio:.3f}' for ratio in ratios)}; "
        f"median {statistics.median(ratios):.3f}"
    )


def seconds_without_ray(experiment: Experiment, prepared: Prepared, folder: Path) -> float:
    import torch

    torch.set_num_threads(1)
    ends: list[float] = []
    train_trial(experiment, prepared, folder, lambda metrics: ends.append(time.time()), use_ray_data=False)
    return ends[experiment.train.epochs - 1] - ends[0]


def seconds_with_a_worker(experiment: Experiment, home: Path, name: str) -> float:
    run = RunFolder.create(home / "runs" / name, override(experiment, {"scaling.workers": 1}), {"name": "bench"})
    sweep(run, [{}], home, echo=lambda message: None)
    rows = next(iter(run.trials())).epochs()
    return float(rows[-1]["time"] - rows[0]["time"])


def measure_efficiency(options: Options, home: Path) -> None:
    """The work of all trials over the wall seconds of the sweep times the cores, Ray's start included.

    Work is training, validation, and the test of the best epoch, which the report's table is made of.
    """
    experiment = small_towers(options.epochs, evaluation__every_epochs=options.validate_every)
    prepare(experiment, home, use_ray=False)
    run = RunFolder.create(home / "runs" / f"efficiency-{time.time():.0f}", experiment, {"name": "bench"})
    began = time.perf_counter()
    points = [{"seed": seed} for seed in range(options.trials or 16)]
    watch = Watch()
    # Else a sweep takes all cores of the machine.
    start_ray(num_cpus=options.cores)
    result = sweep(run, points, home, listeners=[watch])
    wall = time.perf_counter() - began
    results = [read_json(trial.folder / "result.json") for trial in run.trials()]
    training = sum(one["train_seconds"] for one in results)
    validation = sum(row.get("seconds/validation", 0.0) for trial in run.trials() for row in trial.epochs())
    ends = [(trial.folder / "result.json").stat().st_mtime - trial.epochs()[-1]["time"] for trial in run.trials()]
    capacity, work = wall * options.cores, training + validation + sum(ends)
    compared(
        f"wall of {len(results)} trials of {training / len(results):.0f} s",
        capacity,
        work,
        "their training, validation and test alone",
        unit="core s",
        at_most=1 / (0.9 if training / len(results) > 30 else 0.8),
    )
    shares = {
        "training": training,
        "with validation": training + validation,
        "and the test": work,
        "with all that a trial does, its start included": sum(watch.seconds.values()),
    }
    print(
        f"{len(result.finished)} trials of {training / len(results):.1f} s, wall {wall:.1f} s, of {options.cores} cores: "
        + ", ".join(f"{name} {seconds / capacity:.3f}" for name, seconds in shares.items())
    )


class Watch(SweepListener):
    """The driver's resident memory after each trial, in MiB, and the seconds that each trial took."""

    def __init__(self) -> None:
        self.megabytes: list[float] = []
        self.seconds: dict[str, float] = {}

    def trial_started(self, trial: TrialFolder) -> None:
        self.seconds[trial.trial_id] = -time.perf_counter()

    def trial_finished(self, trial: TrialFolder) -> None:
        self.seconds[trial.trial_id] += time.perf_counter()
        self.megabytes.append(psutil.Process().memory_info().rss / 2**20)


def measure_memory(options: Options, home: Path) -> None:
    """The driver's memory after the 20th, 40th, ... of many tiny trials."""
    experiment = small_towers(
        1,
        objective="contrastive",
        data__soundscapes__num_train=64,
        data__soundscapes__num_val=16,
        data__soundscapes__num_test=16,
        train__batch_size=32,
        data__languages="eng",
    )
    run = RunFolder.create(home / "runs" / f"memory-{time.time():.0f}", experiment, {"name": "bench"})
    watch = Watch()
    sweep(run, [{"seed": seed} for seed in range(options.trials or 200)], home, listeners=[watch])
    seen = watch.megabytes
    print("driver, MiB after trial: " + ", ".join(f"{n} {seen[n - 1]:.0f}" for n in range(20, len(seen) + 1, 20)))


if __name__ == "__main__":
    main()
