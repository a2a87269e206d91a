"""A base on a node of its own that is killed while it builds a version, and one that a label sends away from its worker.

Run as a program: a cluster is no session's Ray.

python -m tests.support.killed_node FOLDER
"""

from __future__ import annotations

import faulthandler
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import ray
from ray import cloudpickle
from ray.cluster_utils import Cluster
from ray.exceptions import ObjectLostError
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from ray_atr.common.jobs import Resources
from ray_atr.common.runtime import NAMESPACE
from ray_atr.objectives.knowledge.knowledge import SnapshotSettings
from ray_atr.training.knowledge_base.actor import ActorRefresher, start_knowledge_base
from ray_atr.training.knowledge_base.refresher import SnapshotClient
from tests.support import encoders
from tests.support.encoders import SPEC, Turn, weights

# A dead process refuses at once, so a dead node is found in two seconds; a live one has as long to answer as ever, or a
# busy machine would lose its living nodes.
HEALTH = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 4}
HEAD = {"num_cpus": 1, "include_dashboard": False, "dashboard_agent_listen_port": None, "_system_config": HEALTH}
STORE = {"object_store_memory": 80 << 20}
BASE = {"for": "base"}
NODE: dict[str, Any] = {"num_cpus": 1, "labels": BASE, **STORE}


@ray.remote(num_cpus=0.75)
class Worker:
    """Takes what a training worker does of its node, so that the base has no room beside it."""

    def ready(self) -> None: ...

    def start_a_base(self, start: Callable[..., ActorRefresher], *given: Any, **options: Any) -> str:
        """Start a base where the label says; whether it has the version, once it answers.

        What it starts is given, or the other worker would import it too, and with it torch.
        """
        return str(start("labelled", *given, **options).wait(1, 0.0).state)


def main(folder: Path) -> None:
    faulthandler.dump_traceback_later(150, exit=True)
    cloudpickle.register_pickle_by_value(encoders)
    cluster = Cluster(initialize_head=True, head_node_args={**HEAD, **STORE})
    doomed = cluster.add_node(**NODE)
    ray.init(address=cluster.address, namespace=NAMESPACE, log_to_driver=False)
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    remote: Any = Worker
    is_sent_away(remote)
    trainer = remote.options(scheduling_strategy=here).remote()
    ray.get(trainer.ready.remote())
    gate = folder / "go"
    gate.touch()
    refresher = start_knowledge_base(
        "killed", Turn(gate=str(gate)), SnapshotSettings(prototypes=5), folder / "base", takes=Resources(cpus=1)
    )
    client = SnapshotClient(refresher, SPEC, 2, poll_seconds=0.5)
    client.refresh(0, weights(0), lag=0)
    client.before_step(0)
    assert client.searcher is not None
    held = client.searcher.snapshot
    before = held.audio.copy()
    client.refresh(0, weights(1))
    client.wait_until_built()
    # The answer has come, what it refers to has not been fetched.
    asked = refresher.actors[0].reference.remote(2)
    ray.wait([asked])
    gate.unlink()
    client.refresh(1, weights(2))
    # Calls of one process may overtake each other.
    while refresher.wait(3, 0.0).state == "unknown":
        time.sleep(0.05)
    assert refresher.wait(3, 0.0).state == "building"

    cluster.remove_node(doomed, allow_graceful=False)
    client.before_step(1)
    assert client.version == 1, "training goes on with what it holds"
    assert np.array_equal(held.audio, before)

    cluster.add_node(**NODE)
    client.before_step(2)
    assert client.version == 2, "the new base has what was in the folder"
    assert client.searcher is not None
    assert np.allclose(client.searcher.snapshot.audio, turned(1), atol=1e-6)
    gate.touch()
    client.before_step(3)
    assert client.version == 3, "what was being built is sent to it again"
    assert np.allclose(client.searcher.snapshot.audio, turned(2), atol=1e-6)
    assert np.array_equal(held.audio, before)

    is_lost(ray.get(asked)[0])
    answers = [refresher.actors[0].reference.remote(2), asked]
    late = ActorRefresher("killed")
    late.actors = [SimpleNamespace(reference=SimpleNamespace(remote=lambda version: answers.pop()))]
    assert np.allclose(late.get(2).audio, turned(1), atol=1e-6)
    assert not answers, "a reference that its node took with it is asked for again"
    ray.shutdown()
    cluster.shutdown()


def is_sent_away(worker: Any) -> None:
    """Ray Train's workers are in a group of theirs, into which Ray also puts what they start."""
    group = placement_group([{"CPU": 1, "node:__internal_head__": 0.001}])
    inside = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
    starter = worker.options(scheduling_strategy=inside).remote()
    given = (start_knowledge_base, Turn(), SnapshotSettings(), Path("unused"))
    takes = Resources(cpus=0.0, labels=BASE)
    assert ray.get(starter.start_a_base.remote(*given, takes=takes), timeout=60) == "unknown"
    ray.kill(starter)
    ray.util.remove_placement_group(group)


def turned(seed: int) -> np.ndarray:
    """What the base holds of the clips for `weights(seed)`."""
    rows = encoders.clips()[0] @ weights(seed)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def is_lost(reference: ray.ObjectRef) -> None:
    try:
        ray.get(reference, timeout=30)
    except ObjectLostError:
        return
    raise AssertionError("the snapshot outlived its node")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
