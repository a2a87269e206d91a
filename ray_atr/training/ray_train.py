"""One trial on Ray Train: any number of workers, restarted from the last checkpoint when one dies."""

from __future__ import annotations

import json
import logging
import os
import re
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ray_atr.common.caches import cache_key
from ray_atr.common.digests import DamagedCacheError
from ray_atr.common.jobs import Resources
from ray_atr.common.progress import silent
from ray_atr.common.ranks import Ranks, has_group
from ray_atr.common.redaction import redact
from ray_atr.common.runtime import WORKER_CPU_SHARE, this_node
from ray_atr.common.settings import shortened
from ray_atr.common.storage import Location, file_exists, is_local, locate, make_folder, write_text
from ray_atr.common.transfer import on_this_node
from ray_atr.objectives.knowledge.knowledge import KnowledgeBaseObjective
from ray_atr.training.checks import is_searched_in_parts, undividable
from ray_atr.training.epoch_validation import start_validator
from ray_atr.training.experiment import AUTO, Experiment, ScalingSettings, parse_labels
from ray_atr.training.group import WorkerGroup
from ray_atr.training.inputs import prepare
from ray_atr.training.knowledge_base.parts import part_of_worker
from ray_atr.training.loop import train_trial
from ray_atr.training.step import NonFiniteError

logger = logging.getLogger(__name__)

ERROR_FILE, TRACEBACK_FILE = "error.txt", "traceback.txt"
METRICS = "metrics"
SHARDED_FROM = 2**30
"""Bytes of embeddings from which a base over several nodes is divided into parts; a smaller one is copied to every node."""
ALWAYS_SHOWN = ("epoch", "is_final")
ASK_EVERY = 5.0
"""Seconds between two checks for preemption: in each, all workers wait for each other."""

LOW_MEMORY = "running low on memory"
"""Of Ray's memory monitor, which ended a process."""
ENDED_FOR_MEMORY = "Ray ended its process{}, because the memory of the node was nearly full"
SIGNS = (
    "OutOfMemoryError",  # torch's on a GPU, Ray's of a node
    "ObjectStoreFullError",
    "OutOfDiskError",  # Ray's, when objects fit neither into the object store nor on the disk
    "MemoryError",  # Python's and NumPy's
    "can't allocate memory",  # torch's on a CPU
    "OOM killer",  # Ray's guess for a process that was killed from outside
    LOW_MEMORY,
)
REMEDY = (
    "if memory was too small: lower train.embedding_chunk and train.language_chunk (the same gradient), train.batch_size, "
    "evaluation.batch_size, or --concurrency; objective.knowledge.storage=float16 halves a base; a larger object store is "
    "`ray start --object-store-memory`"
)


NODE_LOST = re.compile(r"\bnode (has )?died\b")
"""Ray's words for an actor whose node is gone."""
OF_LOST_PEERS = re.compile(r"\bgloo/|NCCL|process group|by peer|Broken pipe")
"""Errors of torch in an exchange with workers that are gone: a consequence of another error."""


class TrialError(RuntimeError):
    """A trial cannot continue: a mistake in its settings, numbers that are not finite, or workers that died too often."""


def run_trial(
    experiment: Experiment,
    folder: Location,
    home: Path,
    callbacks: list[Any],
    report_here: Any,
    shown: Sequence[str] = (),
) -> None:
    """Train one experiment to its end, resuming what `folder` holds.

    With `scaling.workers` of 1 or more, in a TorchTrainer: its reports reach `callbacks` in its controller, packed, with the
    metrics `shown`. With 0 (or auto, not decided), in this process, which calls `report_here(metrics)`. Raises TrialError,
    with the first cause, when workers died more often than allowed.
    """
    config = {"experiment": experiment, "folder": str(folder), "home": str(home), "shown": list(shown)}
    if not experiment.scaling.has_workers:
        _train_in_worker(config, report_here)
        return
    from ray.train import FailureConfig, RunConfig, ScalingConfig, WorkerGroupError
    from ray.train.torch import TorchConfig, TorchTrainer

    scaling = experiment.scaling
    gpus = {"GPU": scaling.gpus_per_worker} if scaling.gpus_per_worker else {}
    trainer = TorchTrainer(
        worker,
        train_loop_config=config,
        # NCCL needs a GPU for each worker, which a share of more than half guarantees.
        torch_config=TorchConfig(backend="nccl" if scaling.gpus_per_worker > 0.5 else "gloo"),
        # Ray's hints are those of the API before 2.60.
        scaling_config=ScalingConfig(  # type: ignore[call-arg]
            num_workers=num_workers(scaling),  # type: ignore[arg-type]
            use_gpu=scaling.gpus_per_worker > 0,
            resources_per_worker={"CPU": scaling.cpus_per_worker * WORKER_CPU_SHARE, **gpus},
            label_selector=parse_labels("scaling.worker_labels", scaling.worker_labels) or None,
        ),
        run_config=RunConfig(
            # The trial's name, without the time: Ray Train then treats a restarted trial as the same run.
            name=folder.name,
            storage_path=ray_storage(folder),
            # Restarts after a preemption are not counted as failures.
            failure_config=FailureConfig(  # type: ignore[call-arg]
                max_failures=scaling.max_failures, max_preemption_failures=-1
            ),
            callbacks=callbacks,
        ),
    )
    try:
        trainer.fit()
    except WorkerGroupError as error:
        raise TrialError(first_cause(error.worker_failures)) from error


def first_cause(failures: Mapping[int, Exception]) -> str:
    """The cause of the workers' end, in one line, from their errors by rank.

    If a worker dies, the others fail too, in their exchange with it. Such an error is reported only if there is no other.
    """
    if died := {rank: how for rank, error in sorted(failures.items()) if (how := how_process_ended(error))}:
        ranks = " and ".join(map(str, died))
        return f"worker{'s' * (len(died) > 1)} {ranks} died: {next(iter(died.values()))}"
    messages = [_one_line(error) for _, error in sorted(failures.items())]
    causes = [words for words in messages if not OF_LOST_PEERS.search(words)]
    return causes[0] if causes else f"a worker was lost, and Ray does not say how; another one said {messages[0]}"


def how_process_ended(error: Exception) -> str | None:
    """How a worker's process ended, if this error of Ray Train is about its end; None for an error within the worker."""
    from ray.exceptions import OutOfMemoryError, RayActorError

    failure = getattr(error, "health_check_failure", None)
    if not isinstance(failure, RayActorError | OutOfMemoryError):
        return None
    text = str(failure)
    where = f" on {address[1]}" if (address := re.search(r"\bip: ([\w.:]+)", text)) else ""
    if isinstance(failure, OutOfMemoryError) or LOW_MEMORY in text:
        return ENDED_FOR_MEMORY.format(where)
    if NODE_LOST.search(text):
        return f"its node{where} is gone"
    return f"its process{where} was killed, as the system does where memory is full, or it crashed"


def _one_line(error: Exception) -> str:
    """An error as Python prints it, on one line."""
    return " ".join("".join(traceback.format_exception_only(error)).split())


def num_workers(scaling: ScalingSettings) -> int | tuple[int, int]:
    """The number of workers for Ray Train: a number, or the least and the most."""
    return scaling.workers if isinstance(scaling.workers, int) else (scaling.fewest_workers, scaling.most_workers)


def ray_storage(folder: Location) -> str:
    """The folder for Ray Train's own files. They are never read again, so with an object store they stay on this machine."""
    if is_local(folder):
        return str(folder / "ray")
    return os.path.join(tempfile.gettempdir(), "ray_atr", *folder.parts[1:], "ray")


def worker(config: dict[str, Any]) -> None:
    """The training function of each Ray Train worker."""
    import ray.train

    _train_in_worker(config, lambda metrics: ray.train.report(packed(metrics, config["shown"])))


def _train_in_worker(config: dict[str, Any], report: Any) -> None:
    try:
        _train_once(config, report)
    except DamagedCacheError as error:
        if config["experiment"].scaling.has_workers:
            # The other workers wait for this one: raised, so that Ray Train restarts all of them from the last checkpoint.
            raise
        logger.warning("%s; training continues from the last checkpoint", error)
        _train_once(config, report)


def _train_once(config: dict[str, Any], report: Any) -> None:
    import ray
    import ray.train

    experiment, folder = config["experiment"], locate(config["folder"])
    is_joined, has_others = has_group(), Ranks.here().size > 1
    if has_others and file_exists(folder / ERROR_FILE):
        # A worker's error ended the attempt before, and would end this one.
        return
    torch.set_num_threads(max(1, int(experiment.scaling.cpus_per_worker)))
    try:
        prepared = prepare(experiment, Path(config["home"]), use_ray=False, echo=silent)
        group, make_refresher = worker_group(experiment), actor_refresher if ray.is_initialized() else None
        with on_this_node(folder) as (local, sync):
            train_trial(
                experiment,
                prepared,
                local,
                report,
                group,
                use_ray_data=experiment.scaling.ray_data is True,
                make_refresher=make_refresher,
                make_validator=start_validator if experiment.scaling.validate_beside else None,
                sync=sync,
                is_preempted=PreemptionNotices(ray.train.get_preemption_info)
                if experiment.scaling.has_workers
                else None,
            )
    except DamagedCacheError:
        raise
    except (ValueError, NonFiniteError) as error:
        if is_joined and not has_group():
            # Another worker died, and Ray Train has destroyed this one's group to restart all of them. torch raises a ValueError
            # in the next exchange, which is no mistake in the settings.
            raise
        # Another attempt would end in the same way: written as the trial's error instead of raised, which would restart workers.
        write_error(folder, str(error))
        if has_others and isinstance(error, ValueError):
            # The others may have no such error and wait for this worker: raised, so that Ray Train ends them.
            raise
    except (MemoryError, RuntimeError) as error:
        reason = "".join(traceback.format_exception_only(error))
        if experiment.scaling.has_workers or not remedy(reason):
            raise
        write_error(folder, shortened(reason) + remedy(reason))


def actor_refresher(knowledge: Any, encode: Any, folder: Path, group: Any) -> Any:
    """The run's knowledge base as named actors, one for each part: the first worker that searches a part starts its actor.

    The actor encodes with the resources of one encoder, or `scaling.encoders` processes do.
    """
    from ray_atr.training.knowledge_base import actor

    # The trial's name is for people; the hash of its folder distinguishes runs with equal trial names.
    run_name = f"{folder.parent.name}-{cache_key(str(folder))}"
    # With an object store each worker has its own folder: the first worker's name is used.
    name = str(group.of_first(run_name))
    experiment = encode.experiment
    settings, scaling = knowledge.snapshot_settings(experiment.seed), experiment.scaling
    labels = parse_labels("scaling.encoder_labels", scaling.encoder_labels)
    cpus, gpus = scaling.cpus_per_encoder, scaling.gpus_per_encoder
    takes = Resources(cpus, gpus, scaling.encoders, max(1, int(cpus)), "scaling.encoders", labels)
    if scaling.encoders:
        encode.processes, takes = takes, replace(actor.ENCODES_FOR_FREE, labels=labels)
    part = part_of_worker(group.rank, group.size, base_shards(experiment, encode, group))
    if group.rank == part.workers(group.size).start:
        refresher = actor.start_knowledge_base(name, encode, settings, folder, part, takes=takes, clients=group.size)
    else:
        refresher = actor.ActorRefresher(name, part)
    group.barrier()
    if group.is_first:
        refresher.restore(folder)
    group.barrier()
    return refresher


def base_shards(experiment: Experiment, encode: Any, group: WorkerGroup) -> int:
    """Number of parts of the base, the same on all workers: `scaling.base_shards`, at most one part for each worker.

    `auto` is one part for each node, for a base of `SHARDED_FROM` bytes or more that can be searched in parts and whose encoders
    fit beside the workers; else 1.
    """
    scaling, knowledge = experiment.scaling, experiment.objective.knowledge
    if scaling.base_shards != AUTO:
        return min(scaling.least_shards, group.size)
    nodes = len(set(group.gather_objects(this_node())))
    if nodes == 1 or undividable(experiment) or scaling.cpus_per_encoder:
        return 1
    if scaling.gpus_per_encoder and scaling.gpus_per_encoder + scaling.gpus_per_worker > 1:
        return 1
    assert isinstance(knowledge, KnowledgeBaseObjective), "only a base is divided"
    entries, languages = group.of_first(encode.size if group.is_first else None)
    if not is_searched_in_parts(knowledge, entries):
        return 1
    each = experiment.model.embedding_width * np.dtype(knowledge.storage).itemsize
    return nodes if entries * (1 + languages) * each >= SHARDED_FROM else 1


def write_error(folder: Location, message: str) -> None:
    """Write why a trial ended, for the process that started it."""
    make_folder(folder)
    write_text(folder / ERROR_FILE, " ".join(redact(message).split()) + "\n", is_private=True)


def worker_group(experiment: Experiment) -> WorkerGroup:
    """The trial's workers as this process sees them, with its rank and device."""
    device = torch.device("cpu")
    if experiment.scaling.gpus_per_worker and torch.cuda.is_available():
        from ray.train.torch import get_device

        device = get_device() if experiment.scaling.has_workers else torch.device("cuda")
    ranks = Ranks.here()
    return WorkerGroup(rank=ranks.rank, size=ranks.size, device=device)


def remedy(text: str) -> str:
    """`; if memory was too small: ...` if an error's text (with its type) is about memory, else empty."""
    return f"; {REMEDY}" if any(sign in text for sign in SIGNS) else ""


def packed(metrics: Mapping[str, Any], shown: Iterable[str] = ()) -> dict[str, Any]:
    """A worker's report to the driver: the metrics as one text, and those in `shown` as numbers too.

    Tune stores statistics of every number that a trial ever reported: hundreds of metrics for each trial would fill the
    driver's memory (NOTEBOOK.md).
    """
    numbers = {name: metrics[name] for name in (*ALWAYS_SHOWN, *shown) if name in metrics}
    return {**numbers, METRICS: json.dumps(dict(metrics))}


def unpacked(result: Mapping[str, Any]) -> dict[str, Any]:
    """The packed metrics, without what Tune adds to a result; empty if it has none."""
    return dict(json.loads(result[METRICS])) if METRICS in result else {}


class PreemptionNotices:
    """True once for each node that will be preempted: then a checkpoint is due. Called by all workers after the same steps.

    Clouds announce it some 30 to 120 seconds before. `ask` is `ray.train.get_preemption_info`, which returns None or the nodes.
    It waits for every worker, so the workers first agree to call it.
    """

    def __init__(
        self, ask: Callable[[], Any], *, every: float = ASK_EVERY, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.ask, self.every, self.clock = ask, every, clock
        self.asked = clock()
        self.nodes: set[str] = set()

    def __call__(self, group: WorkerGroup) -> bool:
        if not group.any(self.clock() - self.asked >= self.every):
            return False
        self.asked = self.clock()
        info = self.ask()
        new = set(info.preempted_node_to_ranks) - self.nodes if info is not None else set()
        self.nodes |= new
        return bool(new)
