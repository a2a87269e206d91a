"""A sweep's driver on a cluster of many nodes: Ray's own raylets on this machine, trials that only report.

    python benchmarks/bench_cluster.py                                   # 1,000 trials of 10 epochs, 32 at a time, on 64 nodes
    python benchmarks/bench_cluster.py --nodes 4 --trials 40 --at-once 8

Each node is a raylet with its two agents, as on a machine of its own; it takes some 200 MB and seconds of CPU to start. Ray
Tune places the trials on the nodes, runs them in processes there, and hands their reports to the run folder. Prints CPU
milliseconds of the driver for a trial in each fifth of the sweep, wall seconds, and the driver's memory.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.cluster_utils import Cluster
from side_by_side import compared

from ray_atr.common.override import override
from ray_atr.common.runtime import prepare_environment, quiet_ray_data
from ray_atr.sweep import SEARCHES, Goal, SweepListener, SweepPlan, tune_bridge
from ray_atr.sweep.recording import Recording
from ray_atr.sweep.space import Space
from ray_atr.sweep.trial_queue import TrialQueue, status_of
from ray_atr.training.experiment import Experiment
from ray_atr.training.run_folder import FINISHED, RunFolder, TrialFolder

RECALL = "text_to_audio/mean/recall_at_1"
NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 * 2**20}


def simulated(epochs: int) -> Any:
    """What a trial's process does in place of training: report every epoch, then the result."""

    def run(config: Mapping[str, Any], run: str, home: str, shown: Sequence[str]) -> None:
        import json

        import ray
        from ray import tune

        node = ray.get_runtime_context().get_node_id()
        # By value, without a module of ours: a process that imported torch would take ten times the memory.
        for epoch in range(1, epochs + 1):
            row = {"epoch": epoch, RECALL: 1 / epoch, "seconds/train": float(epoch), "node": node}
            tune.report({"epoch": epoch, RECALL: row[RECALL], "metrics": json.dumps(row)})
        final = {"is_final": True, "best_epoch": epochs, "epoch": epochs}
        tune.report({"epoch": epochs, "is_final": True, "metrics": json.dumps(final)})

    return run


class Marks(SweepListener):
    """When trials ended, and how much CPU the driver had taken by then."""

    def __init__(self) -> None:
        self.cpu, self.wall = [time.process_time()], [time.monotonic()]

    def trial_finished(self, trial: TrialFolder) -> None:
        self.cpu.append(time.process_time())
        self.wall.append(time.monotonic())


def started_cluster(nodes: int) -> Cluster:
    """A head and further nodes, this process connected to the head."""
    began, cpu = time.monotonic(), psutil.cpu_times()
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    for number in range(2, nodes + 1):
        cluster.add_node(**NODE)
        if number % 8 == 0 or number == nodes:
            print(f"{number} nodes after {time.monotonic() - began:.0f} s", flush=True)
    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    quiet_ray_data()
    used = psutil.cpu_times()
    print(f"all started: {used.user - cpu.user + used.system - cpu.system:.0f} s of CPU", flush=True)
    return cluster


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--at-once", type=int, default=32)
    options = parser.parse_args()
    prepare_environment()
    cluster = started_cluster(options.nodes)
    try:
        sweep_on(options)
    finally:
        ray.shutdown()
        cluster.shutdown()


def sweep_on(options: argparse.Namespace) -> None:
    """Run the simulated trials and print what they took."""
    experiment = override(Experiment(), {"scaling.workers": 0, "scaling.cpus_per_worker": 1})
    space = Space.parse(["train.learning_rate=loguniform(1e-5,1e-2)"], experiment)
    plan = SweepPlan(SEARCHES["random"](space, (Goal(RECALL),), 0), (), options.trials)
    tune_bridge.run_in_tune = simulated(options.epochs)
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder.create(Path(folder) / "run", experiment, {"name": "simulated"})
        queue, marks = TrialQueue(run, plan, lambda point: None), Marks()
        recording = Recording([marks])
        tune_bridge.run_with_tune(
            queue, Path(folder), options.at_once, None, recording, lambda: recording.common_failure is not None
        )
        states = [status_of(trial) for trial in run.trials()]
        nodes = {row["node"] for trial in run.trials() for row in trial.epochs()}
    assert recording.common_failure is None, recording.common_failure
    assert states == [FINISHED] * options.trials, f"{states.count(FINISHED)} of {options.trials} trials finished"
    size = max(1, options.trials // 5)
    fifths = [
        (1e3 * (cpu_after - cpu) / size, (wall_after - wall) / size)
        for (cpu, wall), (cpu_after, wall_after) in itertools.pairwise(
            zip(marks.cpu[::size], marks.wall[::size], strict=True)
        )
    ]
    memory = psutil.Process(os.getpid()).memory_info().rss / 2**20
    print(
        f"{options.trials} trials of {options.epochs} epochs, {options.at_once} at a time, on {options.nodes} nodes, "
        f"{len(nodes)} of which ran trials: {', '.join(f'{cpu:.1f}' for cpu, _ in fifths)} ms of the driver's CPU a trial by "
        f"fifths; {', '.join(f'{wall:.2f}' for _, wall in fifths)} s a trial; {marks.wall[-1] - marks.wall[0]:.0f} s; "
        f"the driver ends with {memory:.0f} MiB"
    )
    label = f"driver of {options.trials} trials on {options.nodes} nodes: last fifth against first"
    compared(label, fifths[-1][0], fifths[0][0], "first fifth", unit="ms")


if __name__ == "__main__":
    main()
