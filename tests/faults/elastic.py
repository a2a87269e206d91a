"""A run on a live Ray whose nodes are taken away and added: its losses must be those of one process, and nothing may fail.

    uv run python tests/faults/elastic.py [--objective ask]

A cluster of several nodes on this machine: the head, where the command and the knowledge base are, and nodes for training
workers. With 4 workers on two of them, one is drained as a cloud drains what it takes back, and killed after the notice's time;
2 workers go on; then a node for one more is added. `scaling.max_failures` is 0, so a restart that counted as a failure would
end the run. The head has fewer CPUs than a worker takes, since Ray counts those of every node, whatever its labels. Takes
eight minutes or so, most of them Ray's own intervals.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from live import TINY  # noqa: E402

from ray_atr.common.override import override  # noqa: E402
from ray_atr.training.checkpoint import STATE_FILE, load_checkpoint  # noqa: E402
from ray_atr.training.experiment import Experiment  # noqa: E402
from ray_atr.training.loop import train_trial  # noqa: E402
from ray_atr.training.recipes import RECIPES  # noqa: E402
from ray_atr.training.run_folder import LAST, RunFolder, TrialFolder  # noqa: E402
from tests.support.own_ray import SWITCHES, end_processes_of, wait_until  # noqa: E402
from tests.support.tiny import make_data, prepared_for  # noqa: E402

CLIPS, EPOCHS = 96, 1000
"""An epoch is long enough that a checkpoint is seen within it, which only a notice makes; the run is stopped before it ends."""
NOTICE_SECONDS = 30.0
STARTING, RESIZING = 400.0, 300.0
"""Seconds that a start of workers, and Ray Train's next look at the cluster, may take."""
TOLERANCE = 1e-6
BASE, TRAINING = {"for": "base"}, {"for": "training"}
BASE_SETTINGS = {"prototypes": "1", "neighbours": "2", "refresh_lag": "1"}
"""One prototype: with four, rounding can decide to which of them a tone belongs, and the losses are then 2e-3 apart."""
SCALING = {
    "scaling.workers": "2:4",
    "scaling.cpus_per_worker": "2",
    "scaling.max_failures": "0",
    "scaling.worker_labels": "for=training",
    "scaling.encoder_labels": "for=base",
    "tracking.mlflow": "false",
}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--objective", default="ask")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="elastic-") as scratch:
        home = Path(scratch)
        data = make_data(home / "tones", num_train=CLIPS)
        run = elastic_run(settings_of(chosen.objective, data), home)
        trial = the_trial(run)
        found = [row["train/loss"] for row in trial.epochs()]
        expected = losses_alone(run.experiment_of(trial), home, len(found))
    worst = max(abs(one / other - 1) for one, other in zip(found, expected, strict=True))
    print(f"{len(found)} epochs; largest difference of a loss from one process: {worst:.1e} (at most {TOLERANCE:.0e})")
    return int(worst > TOLERANCE)


def settings_of(objective: str, data: Path) -> dict[str, str]:
    """The command's settings: a small knowledge base for objectives that have one."""
    small = (
        {f"objective.knowledge.{name}": value for name, value in BASE_SETTINGS.items()} if objective == "ask" else {}
    )
    return {**TINY, "data.source": str(data), "objective": objective, "train.epochs": str(EPOCHS), **small, **SCALING}


def the_trial(run: RunFolder) -> TrialFolder:
    return next(iter(run.trials()))


class EnoughError(Exception):
    """As many epochs are trained as were asked for."""


def losses_alone(experiment: Experiment, home: Path, epochs: int) -> list[float]:
    """The losses of the first epochs in this process, without Ray."""
    losses: list[float] = []

    def report(row: Any) -> None:
        losses.append(row["train/loss"])
        if len(losses) == epochs:
            raise EnoughError

    with contextlib.suppress(EnoughError):
        train_trial(experiment, prepared_for(experiment, home), home / "alone", report, use_ray_data=False)
    return losses


def elastic_run(settings: dict[str, str], home: Path) -> RunFolder:
    """Train on 4, then 2, then 3 workers, and say what happened when."""
    # The features are made before: Ray would first start processes for them.
    prepared_for(override(RECIPES["from_scratch"](), settings), home)
    with cluster() as nodes, command(settings, home, nodes.address) as process:
        folder = home / "runs" / "one"
        told = Teller()

        def is_training(workers: int) -> bool:
            assert process.poll() is None, f"the command ended: {(home / 'said.txt').read_text()[-3000:]}"
            return len(nodes.homes_of("RayTrainWorker")) == workers

        wait_until(lambda: is_training(4), STARTING, "4 workers")
        run = RunFolder.open(folder)
        state = the_trial(run).folder / LAST / STATE_FILE
        wait_until(state.is_file, STARTING, "the first epoch")
        told("4 workers train")
        told(f"workers are on {nodes.homes_of('RayTrainWorker')}, the base on {nodes.homes_of('LeadingActor')}")
        assert set(nodes.homes_of("RayTrainWorker")) == {"a", "b"}
        assert set(nodes.homes_of("LeadingActor")) <= {"head"}
        nodes.drain("b", NOTICE_SECONDS)
        noticed = time.monotonic()
        told("notice for node b")
        wait_until(lambda: step_in_epoch(state) > 0, NOTICE_SECONDS, "the notice's checkpoint")
        told(f"checkpoint within the epoch, {time.monotonic() - noticed:.1f} s after the notice")
        time.sleep(max(0.0, noticed + NOTICE_SECONDS - time.monotonic()))
        nodes.remove("b")
        told("node b is gone")
        wait_until(lambda: is_training(2), STARTING, "2 workers")
        epoch = epochs_done(state)
        wait_until(lambda: epochs_done(state) > epoch + 1, STARTING, "an epoch of 2 workers")
        told("2 workers train")
        nodes.add("c", 2, TRAINING)
        told("node c is there")
        wait_until(lambda: is_training(3), RESIZING, "3 workers")
        epoch = epochs_done(state)
        wait_until(lambda: epochs_done(state) > epoch + 1, STARTING, "an epoch of 3 workers")
        told(f"3 workers train, after {epochs_done(state)} epochs")
        assert process.poll() is None
        return run


class Teller:
    """Prints what happened, with the seconds since the start."""

    def __init__(self) -> None:
        self.began = time.monotonic()

    def __call__(self, what: str) -> None:
        print(f"{time.monotonic() - self.began:6.1f} s  {what}", flush=True)


class Nodes:
    """The nodes of a cluster by names of ours."""

    def __init__(self, cluster: Any) -> None:
        self.cluster, self.address = cluster, cluster.address
        self.by_name = {"head": cluster.head_node}

    def add(self, name: str, cpus: int, labels: dict[str, str]) -> None:
        self.by_name[name] = self.cluster.add_node(num_cpus=cpus, labels=labels, object_store_memory=80 << 20)

    def remove(self, name: str) -> None:
        self.cluster.remove_node(self.by_name.pop(name), allow_graceful=False)

    def drain(self, name: str, seconds: float) -> None:
        """Tell Ray that a node is taken away, as an operator or autoscaler does for its cloud."""
        from ray._raylet import GcsClient  # type: ignore[attr-defined]
        from ray.core.generated import autoscaler_pb2

        reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")  # type: ignore[attr-defined]
        deadline = int(1000 * (time.time() + seconds))
        is_accepted, why = GcsClient(address=self.address).drain_node(
            self.by_name[name].node_id, reason, "taken back", deadline
        )
        assert is_accepted, why

    def homes_of(self, actor_class: str) -> list[str]:
        """The names of the nodes of a class's living actors."""
        from ray._private.state import actors

        names = {node.node_id: name for name, node in self.by_name.items()}
        living = [one for one in actors().values() if one["State"] == "ALIVE" and one["ActorClassName"] == actor_class]
        return sorted(names.get(one["Address"]["NodeID"], "?") for one in living)


@contextlib.contextmanager
def cluster() -> Iterator[Nodes]:
    """A head for the driver and the base, and two nodes for two training workers each."""
    # Socket names must stay short.
    with tempfile.TemporaryDirectory(prefix="ra", ignore_cleanup_errors=True) as temporary:
        os.environ.update(SWITCHES, RAY_TMPDIR=temporary)
        import ray
        from ray.cluster_utils import Cluster

        health = {
            "health_check_initial_delay_ms": 0,
            "health_check_period_ms": 1000,
            "health_check_failure_threshold": 10,
        }
        head = {"num_cpus": 1, "labels": BASE, "include_dashboard": False, "_system_config": health}
        started = Cluster(initialize_head=True, head_node_args={**head, "object_store_memory": 160 << 20})
        nodes = Nodes(started)
        try:
            nodes.add("a", 4, TRAINING)
            nodes.add("b", 4, TRAINING)
            ray.init(address=started.address, log_to_driver=False, logging_level="ERROR")
            yield nodes
        finally:
            ray.shutdown()
            started.shutdown()
            end_processes_of(temporary)


@contextlib.contextmanager
def command(settings: dict[str, str], home: Path, address: str) -> Iterator[subprocess.Popen[bytes]]:
    """The training command on a cluster; ended, if it has not, on the way out."""
    words = [word for path, value in settings.items() for word in (f"--{path}", value)]
    environment = {**os.environ, "RAY_ADDRESS": address, "RAY_ATR_HOME": str(home), "OMP_NUM_THREADS": "1"}
    with (home / "said.txt").open("w") as said:
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "pipelines" / "train.py"), "--out", str(home / "runs" / "one"), *words],
            cwd=home, env=environment, stdout=said, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def epochs_done(state: Path) -> int:
    return int(load_checkpoint(state.parent)["progress"]["epoch"])


def step_in_epoch(state: Path) -> int:
    return int(load_checkpoint(state.parent)["progress"]["step_in_epoch"])


if __name__ == "__main__":
    raise SystemExit(main())
