"""The number of trials that a cluster can run at once, and errors for trials that it cannot run.

A trial's processes are its workers, the one that validates beside them, and the encoders of its knowledge base. A process runs
on one node, a trial on one or several:
`--scaling.workers 1 --scaling.gpus_per_worker 1` runs as many one-GPU trials as there are GPUs, `--scaling.workers 16
--scaling.gpus_per_worker 1` one trial on sixteen of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ray_atr.common.settings import counted, refuse
from ray_atr.objectives import KnowledgeBaseObjective
from ray_atr.training.experiment import Experiment, parse_labels

Resources = Mapping[str, float]  # numbers of `CPU` and `GPU`


@dataclass(frozen=True)
class Placed:
    """The resources of a process and the labels that its node must have; or the resources and labels of a node."""

    resources: Resources
    labels: Mapping[str, str] | None = field(default_factory=dict)
    """None for future nodes, whose labels are unknown."""

    def takes(self, process: Placed) -> bool:
        """Whether the process may run on this node."""
        return self.labels is None or not process.labels or process.labels.items() <= self.labels.items()


MOST = 1000  # largest number of trials at once that is computed
TOLERANCE = 1e-9


def processes_of(experiment: Experiment, *, fewest: bool = False) -> list[Placed]:
    """The resources and labels of each process of a trial; with `fewest`, for its least number of workers."""
    scaling = experiment.scaling

    def placed(cpus: float, gpus: float, role: str = "") -> Placed:
        # A trial that trains in its own process has no worker.
        name = f"{role}_labels"
        labels = parse_labels(f"scaling.{name}", getattr(scaling, name)) if role and scaling.workers != 0 else {}
        return Placed({"CPU": cpus, "GPU": gpus}, labels)

    worker = placed(scaling.cpus_per_worker, scaling.gpus_per_worker, "worker")
    processes = [worker] * max(scaling.fewest_workers if fewest else scaling.most_workers, 1)
    workers = len(processes)
    if scaling.validate_beside:
        processes.append(placed(scaling.cpus_per_validation, scaling.gpus_per_validation))
    if isinstance(experiment.objective.knowledge, KnowledgeBaseObjective):
        encoders = max(scaling.encoders, min(scaling.least_shards, workers))
        processes += [placed(scaling.cpus_per_encoder, scaling.gpus_per_encoder, "encoder")] * encoders
    return processes


def num_trials_that_fit(processes: Sequence[Placed], nodes: Sequence[Placed]) -> int:
    """Number of trials with these processes that fit on the nodes, each process on the first node with room."""
    free = [(node, _Devices(node.resources)) for node in nodes]
    for number in range(MOST):
        for process in processes:
            if not any(node.takes(process) and devices.take(process.resources) for node, devices in free):
                return number
    return MOST


def concurrent_trials(
    experiments: Sequence[Experiment], limit: int | None = None, nodes: Sequence[Placed] | None = None
) -> int:
    """How many of these trials run at once on some nodes, in any combination. ValueError for one that they cannot hold.

    None: those of the cluster. On one that grows by itself, what it may grow to counts.
    """
    nodes = cluster_nodes() if nodes is None else nodes
    slots = MOST
    # Also by scaling: trials with equal processes may differ in whether the number of workers may change.
    for experiment in {repr((trial.scaling, processes_of(trial))): trial for trial in experiments}.values():
        processes = processes_of(experiment)
        if experiment.scaling.is_elastic:
            _refuse_other_room(experiment, processes[0], nodes)
        least = processes_of(experiment, fewest=True)
        if num_trials_that_fit(least, nodes) == 0:
            raise _impossible(experiment, least, nodes)
        # An elastic trial starts with fewer workers if there is no room for all.
        slots = min(slots, max(1, num_trials_that_fit(processes, nodes)))
    return max(1, min(slots, limit or slots))


def cluster_nodes() -> list[Placed]:
    """The nodes of the cluster; for a cluster that can grow, all of its possible nodes as one."""
    import ray
    from ray._private.state import state

    nodes = [Placed(node["Resources"], node["Labels"]) for node in ray.nodes() if node["Alive"]]
    # Ray exposes the limits of an autoscaling cluster only here.
    largest = state.get_max_resources_from_cluster_config() or {}
    if any(largest.get(name, 0) > sum(node.resources.get(name, 0) for node in nodes) for name in ("CPU", "GPU")):
        return [Placed(largest, None)]
    return nodes


def living_nodes() -> set[str]:
    """Ray's names of the cluster's nodes."""
    import ray

    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}


def free_room_of_dead_processes() -> None:
    """Remove those of this command's placement groups whose creator has died: the room of a killed trial's workers.

    Ray frees it only at the end of the command, so the next trials would wait for ever. Ray Train starts a process that frees
    it, but this process asks the dashboard, which `start_ray` does not start.
    """
    import ray
    from ray._private.state import state
    from ray.core.generated.gcs_pb2 import PlacementGroupTableData as Group  # type: ignore[attr-defined]
    from ray.util.placement_group import PlacementGroup, remove_placement_group

    job = ray.get_runtime_context().get_job_id()
    # Ray's public table of groups does not say who made them.
    for content in state._connect_and_get_accessor().get_placement_group_table():
        group = Group.FromString(content)
        # A group of this process, such as Tune's, has a job as its creator, and no actor.
        is_of_actor = not ray.ActorID(group.creator_actor_id).is_nil()
        is_here = group.creator_job_id.hex() == job and group.state != Group.REMOVED
        if is_here and is_of_actor and group.creator_actor_dead:
            remove_placement_group(PlacementGroup(ray.PlacementGroupID(group.placement_group_id)))


class _Devices:
    """The free resources of a node: CPUs as one number, GPUs one by one, since a share of a GPU is a share of a single GPU."""

    def __init__(self, has: Resources) -> None:
        self.cpus, self.gpus = has.get("CPU", 0.0), [1.0] * int(min(has.get("GPU", 0), MOST))

    def take(self, needs: Resources) -> bool:
        cpus, gpus = needs["CPU"], needs["GPU"]
        if cpus > self.cpus + TOLERANCE:
            return False
        share = min(gpus, 1.0)
        count = 0 if gpus == 0 else max(1, round(gpus))
        free = [number for number, share_left in enumerate(self.gpus) if share_left + TOLERANCE >= share]
        if len(free) < count:
            return False
        for number in free[:count]:
            self.gpus[number] -= share
        self.cpus -= cpus
        return True


def _refuse_other_room(experiment: Experiment, worker: Placed, nodes: Sequence[Placed]) -> None:
    """ValueError where a worker has room on nodes that lack its labels. Ray 2.60 counts their CPUs too when it decides
    how many workers an elastic trial resumes with, and waits forever for those that have no place.
    """
    anywhere = Placed(worker.resources)
    if others := [node for node in nodes if not node.takes(worker) and num_trials_that_fit([anywhere], [node])]:
        allowed = (
            f"with a range of workers, labels that every node with room for a worker has; {len(others)} of those nodes "
            "lack them: start these with fewer CPUs (`ray start --num-cpus`) than a worker takes"
        )
        raise refuse("scaling.worker_labels", experiment.scaling.worker_labels, allowed)


def _impossible(experiment: Experiment, processes: Sequence[Placed], nodes: Sequence[Placed]) -> ValueError:
    scaling = experiment.scaling
    workers = max(scaling.fewest_workers, 1)
    labelled = []
    for name, process in (("scaling.worker_labels", processes[0]), ("scaling.encoder_labels", processes[-1])):
        labels, able = getattr(scaling, name.split(".")[1]), sum(node.takes(process) for node in nodes)
        if not able:
            return refuse(name, labels, "labels of a node of this cluster: none has them")
        if labels and able < len(nodes):
            labelled.append(f"{able} of them with {name}")
    has = {name: sum(node.resources.get(name, 0.0) for node in nodes) for name in ("CPU", "GPU")}
    for name, path in (("GPU", "scaling.gpus_per_worker"), ("CPU", "scaling.cpus_per_worker")):
        required = sum(process.resources[name] for process in processes)
        if required > has[name] + TOLERANCE:
            got = getattr(scaling, path.split(".")[1])
            beside = len(processes) - workers
            words = counted(beside, "process that encodes or validates", "processes that encode or validate")
            others = f", and {words}," if beside else ""
            return refuse(path, got, f"{workers} x that{others} within the {has[name]:g} {name}s of this cluster")
    each = [f"{node.resources.get('CPU', 0):g} CPUs, {node.resources.get('GPU', 0):g} GPUs" for node in nodes]
    there_are = "; ".join(each + labelled)
    return refuse("scaling.workers", scaling.workers, f"workers that each fit on one node (there are: {there_are})")
