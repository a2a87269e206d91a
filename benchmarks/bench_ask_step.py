"""What ASK costs a training run end to end: the same run without it, with refreshes in the background, and waiting for them.

    python benchmarks/bench_ask_step.py [--epochs 5 --rounds 2 --lag 12]

Small towers from scratch on soundscapes; training in this process on one thread, the base as an actor of its own on another
core. Wall seconds, since who waits for whom is the question: measure on a machine that does nothing else; and CPU seconds of
the training process, which other load disturbs less. The runs take turns; the first epoch of each is left out, in which the
actor starts, and the last, which is validated. What a refresh costs besides its encoding is `bench_refresh.py`'s.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import torch
from side_by_side import compared

from ray_atr.common.override import override
from ray_atr.common.runtime import home, start_ray
from ray_atr.training.experiment import Experiment
from ray_atr.training.inputs import Prepared, prepare
from ray_atr.training.loop import train_trial
from ray_atr.training.ray_train import actor_refresher
from ray_atr.training.recipes import RECIPES

GOAL_STEP = 1.10


def epochs_of(experiment: Experiment, prepared: Prepared) -> list[dict[str, Any]]:
    """The reports of a run's epochs but its first and last, each with the wall and CPU seconds that it added."""
    reports: list[dict[str, Any]] = []

    def report(metrics: dict[str, Any]) -> None:
        reports.append({**metrics, "cpu": time.process_time()})

    with tempfile.TemporaryDirectory() as folder:
        train_trial(
            experiment, prepared, Path(folder) / "run", report, use_ray_data=False, make_refresher=actor_refresher
        )
    # Last come the epoch that is validated, and the final report.
    return [
        {**epoch, "wall": epoch["seconds/train"] - before["seconds/train"], "cpu": epoch["cpu"] - before["cpu"]}
        for before, epoch in itertools.pairwise(reports[:-2])
    ]


def compare_steps(base: Experiment, prepared: Prepared, steps: int, rounds: int, lag: int) -> None:
    """Medians over epochs: of the median step, of an epoch's wall and CPU seconds a step (stalls, diagnostics, checkpoints)."""
    ask = override(base, {"objective.knowledge": "ask"})
    runs = {
        "without ASK": base,
        f"refreshed in the background, lag {lag}": override(ask, {"objective.knowledge.refresh_lag": lag}),
        "training waits for the refresh": override(ask, {"objective.knowledge.refresh_lag": 0}),
    }
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, experiment in runs.items():
            found[name] += epochs_of(experiment, prepared)
    plain = next(iter(runs))
    columns: dict[str, Callable[[dict[str, Any]], float]] = {
        "median step": lambda epoch: epoch["seconds/step"],
        "epoch a step": lambda epoch: epoch["wall"] / steps,
        "CPU a step": lambda epoch: epoch["cpu"] / steps,
    }
    print(f"{steps} steps an epoch, {len(found[plain])} epochs each")
    print(f"{'':40s}" + "".join(f"{title:>23s}" for title in columns) + "   stall of each epoch (s)")
    for name, epochs in found.items():
        cells = []
        for value in columns.values():
            mine, other = (statistics.median(map(value, found[run])) for run in (name, plain))
            cells.append(f"{1e3 * mine:10.1f} ms {mine / other:6.3f} x")
        stalls = [f"{epoch['knowledge/stall_seconds']:.3f}" for epoch in epochs if "knowledge/version" in epoch]
        print(f"{name:40s}" + " ".join(cells) + "   " + (", ".join(stalls) or "-"))
    background = list(found)[1]
    for title, value in columns.items():
        mine, other = (1e3 * statistics.median(map(value, found[run])) for run in (background, plain))
        # All that is computed, the refreshes' encoding included, has no goal: it is what the knowledge base is.
        goal = None if title == "CPU a step" else GOAL_STEP
        compared(f"ASK refreshed in the background, {title}", mine, other, "the run without ASK", at_most=goal)
    print(f"goal: {GOAL_STEP:.2f} x with refreshes in the background, and no stall")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--clips", type=int, help="of training (default: the recipe's)")
    parser.add_argument("--lag", type=int, default=12, help="steps; more than a refresh takes, fewer than an epoch has")
    options = parser.parse_args()
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    settings = {
        "data.languages": "eng",
        "train.epochs": options.epochs,
        "evaluation.every_epochs": options.epochs,
        # How far the base has drifted is a diagnosis that encodes the source once more an epoch; ASK does without.
        "evaluation.probe_clips": 0,
        "scaling.workers": 0,
        **({"data.soundscapes.num_train": options.clips} if options.clips else {}),
    }
    base = override(RECIPES["from_scratch"](), settings)
    start_ray(num_cpus=2)
    prepared = prepare(base, home())
    steps = base.data.soundscapes.num_clips("train") // base.train.batch_size
    compare_steps(base, prepared, steps, options.rounds, options.lag)


if __name__ == "__main__":
    main()
