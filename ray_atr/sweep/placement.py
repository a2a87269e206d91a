"""How many trials of a size a cluster holds at once, and the refusal of one that it never can.

A trial's processes are its workers and the encoders of its knowledge base. A process runs on one node, a trial on one or several:
`--scaling.workers 1 --scaling.gpus_per_worker 1` runs as many one-GPU trials as there are GPUs, `--scaling.workers 16
--scaling.gpus_per_worker 1` one trial on sixteen of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ray_atr.experiment import Experiment
from ray_atr.objectives.knowledge.base import KnowledgeBaseObjective
from ray_atr.settings import refuse

Resources = Mapping[str, float]
"""`CPU` and `GPU`, in numbers of them."""

MOST = 1000
"""Trials at once beyond which nobody counts."""
TOLERANCE = 1e-9


def processes_of(experiment: Experiment, *, fewest: bool = False) -> list[Resources]:
    """What each process of a trial keeps busy; with `fewest`, of one that has the least workers that it can do with."""
    scaling = experiment.scaling
    processes: list[Resources] = [{"CPU": scaling.cpus_per_worker, "GPU": scaling.gpus_per_worker}]
    processes *= max(scaling.fewest_workers if fewest else scaling.most_workers, 1)
    if isinstance(experiment.objective.knowledge, KnowledgeBaseObjective):
        encoder: Resources = {"CPU": scaling.cpus_per_encoder, "GPU": scaling.gpus_per_encoder}
        processes += [encoder] * max(scaling.encoders, 1)
    return processes


def num_trials_that_fit(processes: Sequence[Resources], nodes: Sequence[Resources]) -> int:
    """How many trials of such processes the nodes hold at once, each process on the first node with room for it."""
    devices = [_devices(node) for node in nodes]
    for number in range(MOST):
        if not all(_place(process, devices) for process in processes):
            return number
    return MOST


def concurrent_trials(experiments: Sequence[Experiment], limit: int | None = None) -> int:
    """How many of these trials run at once, in any combination. ValueError for one that the cluster cannot hold.

    On a cluster that grows by itself, what it may grow to counts.
    """
    nodes = cluster_nodes()
    slots = MOST
    checked = set()
    for experiment in experiments:
        processes = processes_of(experiment)
        key = repr(processes)
        if key in checked:
            continue
        checked.add(key)
        least = processes_of(experiment, fewest=True)
        if num_trials_that_fit(least, nodes) == 0:
            raise _impossible(experiment, least, nodes)
        # A trial that can do with fewer workers takes what there is.
        slots = min(slots, max(1, num_trials_that_fit(processes, nodes)))
    return max(1, min(slots, limit or slots))


def cluster_nodes() -> list[Resources]:
    """The resources of each node there is; of the nodes there can be, as one, where a growing cluster can have more."""
    import ray
    from ray._private.state import state

    nodes: list[Resources] = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    # The only place where Ray says what an autoscaling cluster may grow to.
    largest = state.get_max_resources_from_cluster_config() or {}
    if any(largest.get(name, 0) > sum(node.get(name, 0) for node in nodes) for name in ("CPU", "GPU")):
        return [largest]
    return nodes


class _Devices:
    """What is free on a node: CPUs as one number, GPUs one by one, since a share of a GPU is a share of one GPU."""

    def __init__(self, cpus: float, gpus: int) -> None:
        self.cpus, self.gpus = cpus, [1.0] * gpus

    def take(self, cpus: float, gpus: float) -> bool:
        if cpus > self.cpus + TOLERANCE:
            return False
        share = min(gpus, 1.0)
        count = 0 if gpus == 0 else max(1, round(gpus))
        free = [number for number, left in enumerate(self.gpus) if left + TOLERANCE >= share]
        if len(free) < count:
            return False
        for number in free[:count]:
            self.gpus[number] -= share
        self.cpus -= cpus
        return True


def _devices(node: Resources) -> _Devices:
    return _Devices(node.get("CPU", 0.0), int(min(node.get("GPU", 0), MOST)))


def _place(process: Resources, nodes: Sequence[_Devices]) -> bool:
    return any(node.take(process["CPU"], process["GPU"]) for node in nodes)


def _impossible(experiment: Experiment, processes: Sequence[Resources], nodes: Sequence[Resources]) -> ValueError:
    workers = max(experiment.scaling.fewest_workers, 1)
    has = {name: sum(node.get(name, 0.0) for node in nodes) for name in ("CPU", "GPU")}
    for name, path in (("GPU", "scaling.gpus_per_worker"), ("CPU", "scaling.cpus_per_worker")):
        asked = sum(process[name] for process in processes)
        if asked > has[name] + TOLERANCE:
            got = getattr(experiment.scaling, path.split(".")[1])
            others = f" and {len(processes) - workers} encoders" if len(processes) > workers else ""
            return refuse(path, got, f"{workers} x that{others} within the {has[name]:g} {name}s of this cluster")
    each = "; ".join(f"{node.get('CPU', 0):g} CPUs, {node.get('GPU', 0):g} GPUs" for node in nodes)
    return refuse(
        "scaling.workers", experiment.scaling.workers, f"workers that each fit on one node (there are: {each})"
    )
