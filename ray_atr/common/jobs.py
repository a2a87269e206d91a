"""Jobs done one after the other in this process, or by several processes through Ray Data: the same results either way."""

from __future__ import annotations

import math
import pickle
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ray_atr.common.runtime import await_room, is_inside_a_cluster, quiet_ray_data, start_ray, task_errors
from ray_atr.common.settings import refuse

RESTARTS_IN_A_CLUSTER = 3
"""Restarts of a process in a cluster, whose nodes may go away. On one machine it would die again for the same reason."""

Job = TypeVar("Job")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Resources:
    """Logical CPUs and GPUs (may be fractions) of each process, and the number of processes."""

    cpus: float = 1.0
    gpus: float = 0.0
    processes: int = 0  # 0: as many as fit into the cluster
    threads: int = 0  # torch's in each; 0: as Ray sets them
    setting: str = "processes"  # what an error calls `processes`
    labels: Mapping[str, str] = field(default_factory=dict)  # of the nodes that they may run on; none: any


def run_jobs(
    jobs: Sequence[Job], make_worker: Callable[[], Callable[[Job], Result]], *, ray: Resources | None = None
) -> Iterator[tuple[int, Result]]:
    """(the job's number, its result) of every job: in the jobs' order in this process, as they are done on Ray.

    `make_worker` makes the function that does the jobs, once per process, and only if there is a job. Jobs, results and
    `make_worker` must be picklable to run on Ray. A job has no time limit: a large model on a CPU may take hours.
    Raises the errors of jobs, ValueError if the requested processes do not fit into the cluster, TimeoutError if the resources
    of the first one do not become free, and ChildProcessError if a process dies.
    """
    if jobs and ray is not None:
        yield from _run_on_ray(jobs, make_worker, ray)
    elif jobs:
        worker = make_worker()
        yield from ((number, worker(job)) for number, job in enumerate(jobs))


def _run_on_ray(
    jobs: Sequence[Job], make_worker: Callable[[], Callable[[Job], Result]], resources: Resources
) -> Iterator[tuple[int, Result]]:
    start_ray()
    # Lifts the time limit of a silent job, also in a Ray that someone else has started.
    quiet_ray_data()
    import ray

    # As bytes: Arrow needs no type for them, and a process receives only its own jobs.
    rows = [{"number": number, "job": ray.cloudpickle.dumps(job)} for number, job in enumerate(jobs)]
    grows = is_inside_a_cluster()
    size = min(len(jobs), num_processes(resources, ray.cluster_resources(), grows=grows))
    most = len(jobs) if grows and not resources.processes else size
    waiting = ray.data.from_items(rows, override_num_blocks=len(jobs))
    await_room(resources.cpus, resources.gpus, what=resources.setting, labels=dict(resources.labels))
    with warnings.catch_warnings():
        # Ray deprecates `max_restarts` here and offers no replacement.
        warnings.filterwarnings("ignore", "`ray_remote_args` is deprecated")
        done = waiting.map(
            _Process,  # type: ignore[arg-type]
            fn_constructor_args=(make_worker, resources.threads),
            # One job at a time: another process could do a second one meanwhile.
            compute=ray.data.ActorPoolStrategy(min_size=size, max_size=most, max_tasks_in_flight_per_actor=1),
            num_cpus=resources.cpus,
            num_gpus=resources.gpus or None,
            label_selector=dict(resources.labels) or None,
            max_restarts=RESTARTS_IN_A_CLUSTER if grows else 0,
        )
    try:
        with task_errors():
            for row in done.iter_rows():
                yield int(row["number"]), pickle.loads(row["result"])
    except ray.exceptions.RayActorError as error:
        reason = "a process died; the system ends one that takes too much memory: allow fewer, or give each less to do"
        raise ChildProcessError(f"{resources.setting}: {reason}") from error


class _Process:
    """One of the processes. Its worker is made with the first job, since making it may take long or fail."""

    def __init__(self, make_worker: Callable[[], Callable[[Any], Any]], threads: int) -> None:
        self.make_worker, self.threads = make_worker, threads
        self.worker: Callable[[Any], Any] | None = None

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        if self.worker is None:
            if self.threads:
                # Imported only for jobs that use it.
                import torch

                torch.set_num_threads(self.threads)
            self.worker = self.make_worker()
        return {"number": row["number"], "result": pickle.dumps(self.worker(pickle.loads(row["job"])))}


def num_processes(resources: Resources, has: Mapping[str, float], *, grows: bool = False) -> int:
    """The processes asked for, or as many as fit into `has`. ValueError if they never fit: Ray would wait for ever."""
    each = {"CPU": resources.cpus, "GPU": resources.gpus}
    # 7 CPUs have room for 25 times .28, but 7 / .28 is less than 25 in floating point.
    fit = min((has.get(kind, 0.0) / takes + 1e-9 for kind, takes in each.items() if takes), default=math.inf)
    wanted = max(1, resources.processes)
    if not grows and fit < wanted:
        asked = f"{wanted} of {resources.cpus:g} CPUs and {resources.gpus:g} GPUs each"
        room = f"{has.get('CPU', 0):g} CPUs and {has.get('GPU', 0):g} GPUs"
        raise refuse(resources.setting, asked, f"what fits into {room}")
    return resources.processes or max(1, math.floor(min(fit, 1_000_000)))
