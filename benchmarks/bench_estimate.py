"""What `--estimate` says of a trial against what the trial then takes: CPU time, disk and memory, in ten cases.

    python benchmarks/bench_estimate.py

Objectives, batches, towers and data differ. Each estimate and each trial is a fork of its own, with one thread; data and features
are prepared before. CPU time is that of all threads of the fork, so that other programs disturb it little.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from side_by_side import compared, peak_resident_bytes

from ray_atr.common.override import override
from ray_atr.training.experiment import Experiment
from ray_atr.training.inputs import prepare
from ray_atr.training.loop import train_trial
from ray_atr.training.recipes import RECIPES
from ray_atr.training.trial_cost import measure_trial

DATA = {
    "data.soundscapes.num_train": 320,
    "data.soundscapes.num_val": 80,
    "data.soundscapes.num_test": 80,
    "scaling.workers": 0,
    "scaling.ray_data": False,
    "train.epochs": 6,
}
FEW = {"data.soundscapes.num_train": 160, "data.soundscapes.languages": "eng,deu", "data.languages": "eng,deu"}
CASES: dict[str, tuple[str, Mapping[str, Any]]] = {
    "contrastive": ("from_scratch", {"objective": "contrastive"}),
    "kcl, batches of 32": ("from_scratch", {"objective": "kcl", "train.batch_size": 32}),
    "m_ltm": ("from_scratch", {"objective": "m_ltm"}),
    "m_ltm_pot, 12 epochs": ("from_scratch", {"objective": "m_ltm_pot", "train.epochs": 12}),
    "ask": ("from_scratch", {"objective": "ask", "objective.knowledge.prototypes": 32}),
    "ml_clap, batches of 16, two languages": ("from_scratch", {**FEW, "objective": "ml_clap", "train.batch_size": 16}),
    "small_loss, 40% wrong": ("from_scratch", {"objective.correspondence": "small_loss", "data.noise.ratio": 0.4}),
    "kcl, frozen towers, 20 epochs": ("quickstart", {"objective": "kcl", "train.epochs": 20}),
    "moco, frozen towers, batches of 128": (
        "quickstart",
        {"objective": "moco", "train.batch_size": 128, "train.epochs": 20},
    ),
    "late interaction, two languages": (
        "from_scratch",
        {**FEW, "objective": "contrastive", "model.interaction": "late", "evaluation.every_epochs": 2},
    ),
}


def in_fork(work: Callable[[], list[float]]) -> list[float]:
    """What the work returns, in a process whose peak of memory is its own."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        try:
            os.write(writer, json.dumps(work()).encode())
            os._exit(0)
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return list(json.loads(text))


def made_ready(experiment: Experiment, home: Path) -> list[float]:
    """Data, features and tokeniser are there."""
    prepare(experiment, home, use_ray=False, echo=lambda message: None)
    return []


def estimated(experiment: Experiment, home: Path) -> list[float]:
    """CPU seconds, bytes on the disk, bytes of memory."""
    with tempfile.TemporaryDirectory() as folder:
        cost = measure_trial(experiment, home, Path(folder))
    return [cost.total(experiment).cpu, cost.disk_of(experiment), cost.memory]


def taken(experiment: Experiment, home: Path) -> list[float]:
    """The same of the trial itself."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        prepared = prepare(experiment, home, use_ray=False, echo=lambda message: None)
        train_trial(experiment, prepared, Path(folder), lambda row: None, use_ray_data=False)
        seconds = time.process_time() - began
        disk = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    return [seconds, disk, peak_resident_bytes()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=tuple(CASES), default=list(CASES), metavar="CASE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(os.environ.get("RAY_ATR_HOME", folder))
        for name in options.cases:
            recipe, changes = CASES[name]
            experiment = override(RECIPES[recipe](), {**DATA, **changes})
            in_fork(partial(made_ready, experiment, home))
            said, took = (in_fork(partial(what, experiment, home)) for what in (estimated, taken))
            ratios = [f"{ours / theirs:.2f}" for ours, theirs in zip(said, took, strict=True)]
            print(
                f"{name}: CPU {said[0]:.1f} s estimated, {took[0]:.1f} s taken ({ratios[0]}); disk {said[1] / 1e6:.2f} and "
                f"{took[1] / 1e6:.2f} MB ({ratios[1]}); memory {said[2] / 1e6:.0f} and {took[2] / 1e6:.0f} MB ({ratios[2]})",
                flush=True,
            )
            compared(f"estimate of CPU time, {name}", said[0], took[0], "the trial", unit="s")


if __name__ == "__main__":
    main()
