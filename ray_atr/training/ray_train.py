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
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ray_atr.common.caches import cache_key
from ray_atr.common.digests import DamagedCacheError
from ray_atr.common.jobs import Resources
from ray_atr.common.progress import silent
from ray_atr.common.redaction import redact
from ray_atr.common.runtime import WORKER_CPU_SHARE, this_node
from ray_atr.common.settings import shortened
from ray_atr.common.storage import Location, is_local, locate, make_folder, write_text
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

ERROR_FILE = "error.txt"
METRICS = "metrics"
SHARDED_FROM = 2**30
"""Bytes of embeddings from which a base over several nodes is held in parts: smaller ones are cheaper to have everywhere."""
ALWAYS_SHOWN = ("epoch", "is_final")
ASK_EVERY = 5.0
"""Seconds between two questions whether a node is to be taken away: each makes all workers wait for each other."""

SIGNS = (
    "OutOfMemoryError",  # torch's on a GPU, Ray's of a node
    "ObjectStoreFullError",
    "OutOfDiskError",  # Ray's, when what does not fit into the object store does not fit on the disk either
    "MemoryError",  # Python's and NumPy's
    "can't allocate memory",  # torch's on a CPU
    "OOM killer",  # what Ray thinks of a process that was killed from outside
)
REMEDY = (
    "if memory was too small: lower train.embedding_chunk and train.language_chunk (the same gradient), train.batch_size, "
    "evaluation.batch_size, or --concurrency; objective.knowledge.storage=float16 halves a base; a larger object store is "
    "`ray start --object-store-memory`"
)


OF_LOST_PEERS = re.compile(r"\bgloo/|NCCL|process group|by peer|Broken pipe")
"""What torch says of an exchange with workers that are gone: an error that follows from another one."""


class TrialError(RuntimeError):
    """A trial that cannot continue: a mistake in its settings, numbers that are not finite, workers that died too often."""


def run_trial(
    experiment: Experiment,
    folder: Location,
    home: Path,
    callbacks: list[Any],
    report_here: Any,
    shown: Sequence[str] = (),
) -> None:
    """Train one experiment to its end, resuming what `folder` holds.

    With `scaling.workers` of 1 or more through a TorchTrainer, whose reports reach `callbacks` in its controller, packed,
    with the metrics `shown`; with 0 (or auto, not decided) in this process, calling `report_here(metrics)`. Raises
    TrialError, with the first cause, when workers died more often than allowed.
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
        # NCCL wants a GPU for each worker: two shares of more than half are never of the same one.
        torch_config=TorchConfig(backend="nccl" if scaling.gpus_per_worker > 0.5 else "gloo"),
        # Ray's hints are those of the API before 2.60.
        scaling_config=ScalingConfig(  # type: ignore[call-arg]
            num_workers=num_workers(scaling),  # type: ignore[arg-type]
            use_gpu=scaling.gpus_per_worker > 0,
            resources_per_worker={"CPU": scaling.cpus_per_worker * WORKER_CPU_SHARE, **gpus},
            label_selector=parse_labels("scaling.worker_labels", scaling.worker_labels) or None,
        ),
        run_config=RunConfig(
            # Named after the trial, never after the time: a restarted trial is the same run to Ray Train.
            name=folder.name,
            storage_path=ray_storage(folder),
            # A node that its cloud takes back is no failure: such a restart is not counted.
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
    """What ended the workers, in a line, from the errors of those that had one, by rank.

    If a worker dies, the others fail too: their exchange with it breaks. Such errors are told only where there is no other.
    """
    if died := {rank: how for rank, error in sorted(failures.items()) if (how := how_it_died(error))}:
        ranks = " and ".join(map(str, died))
        return f"worker{'s' * (len(died) > 1)} {ranks} died: {next(iter(died.values()))}"
    told = [_last_words(error) for _, error in sorted(failures.items())]
    own = [words for words in told if not OF_LOST_PEERS.search(words)]
    return own[0] if own else f"a worker was lost, and Ray does not say how; another one said {told[0]}"


def how_it_died(error: Exception) -> str | None:
    """How a worker's process ended, if this error of Ray Train tells that it did; None for an error of its own."""
    from ray.exceptions import OutOfMemoryError, RayActorError

    failure = getattr(error, "health_check_failure", None)
    if not isinstance(failure, RayActorError | OutOfMemoryError):
        return None
    said = str(failure)
    where = f" on {found[1]}" if (found := re.search(r"\bip: ([\w.:]+)", said)) else ""
    if isinstance(failure, OutOfMemoryError) or "running low on memory" in said:
        return f"Ray ended its process{where}, because the memory of the node was nearly full"
    if "node has died" in said or "node died" in said:
        return f"its node{where} is gone"
    return f"its process{where} was killed, as the system does where memory is full, or it crashed"


def _last_words(error: Exception) -> str:
    """An error as Python prints it, in a line."""
    return " ".join("".join(traceback.format_exception_only(error)).split())


def num_workers(scaling: ScalingSettings) -> int | tuple[int, int]:
    """How many workers, as Ray Train takes it: a number, or the least and the most."""
    return scaling.workers if isinstance(scaling.workers, int) else (scaling.fewest_workers, scaling.most_workers)


def ray_storage(folder: Location) -> str:
    """Where Ray keeps notes of its own on a run. Nothing is read from them again, so with an object store they stay here."""
    if is_local(folder):
        return str(folder / "ray")
    return os.path.join(tempfile.gettempdir(), "ray_atr", *folder.parts[1:], "ray")


def worker(config: dict[str, Any]) -> None:
    """What each Ray Train worker runs."""
    import ray.train

    _train_in_worker(config, lambda metrics: ray.train.report(packed(metrics, config["shown"])))


def _train_in_worker(config: dict[str, Any], report: Any) -> None:
    try:
        _train_once(config, report)
    except DamagedCacheError as error:
        if config["experiment"].scaling.has_workers:
            # The other workers wait for this one: Ray Train starts all of them again, from the last checkpoint.
            raise
        logger.warning("%s; training continues from the last checkpoint", error)
        _train_once(config, report)


def _train_once(config: dict[str, Any], report: Any) -> None:
    import ray
    import ray.train

    experiment, folder = config["experiment"], locate(config["folder"])
    is_joined = has_group()
    torch.set_num_threads(max(1, int(experiment.scaling.cpus_per_worker)))
    try:
        prepared = prepare(experiment, Path(config["home"]), use_ray=False, say=silent)
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
            # Another worker died, so Ray Train has taken this one's group away to start all of them again. The next exchange
            # is a ValueError to torch, and no mistake in the settings.
            raise
        # Trying again would end the same way, so this ends the trial instead of counting as a worker that died.
        write_error(folder, str(error))
    except (MemoryError, RuntimeError) as error:
        what = "".join(traceback.format_exception_only(error))
        if experiment.scaling.has_workers or not remedy(what):
            raise
        write_error(folder, shortened(what) + remedy(what))


def actor_refresher(knowledge: Any, encode: Any, folder: Path, group: Any) -> Any:
    """The run's knowledge base as named actors, one for each part: started by the first worker that searches it, found by others.

    It encodes by itself, on the resources of one encoder, or leaves that to `scaling.encoders` processes.
    """
    from ray_atr.training.knowledge_base import actor

    # The trial's name for people, its folder's for two runs whose trials are called alike.
    own = f"{folder.parent.name}-{cache_key(str(folder))}"
    # Beside an object store each worker has a folder of its own.
    name = str(group.gather_objects(own)[0])
    experiment = encode.experiment
    settings, scaling = knowledge.snapshot_settings(experiment.seed), experiment.scaling
    labels = parse_labels("scaling.encoder_labels", scaling.encoder_labels)
    cpus, gpus, encodes_itself = scaling.cpus_per_encoder, scaling.gpus_per_encoder, scaling.encoders == 0
    if not encodes_itself:
        encode.processes = Resources(cpus, gpus, scaling.encoders, max(1, int(cpus)), "scaling.encoders", labels)
    own_cpus, own_gpus = (cpus, gpus) if encodes_itself else (0.0, 0.0)
    place = actor.ActorPlace(own_cpus, own_gpus, clients=group.size, labels=labels)
    part = part_of_worker(group.rank, group.size, base_shards(experiment, encode, group))
    if group.rank == part.workers(group.size).start:
        refresher = actor.start_knowledge_base(name, encode, settings, folder, place, part)
    else:
        refresher = actor.ActorRefresher(name, part)
    group.barrier()
    if group.is_first:
        refresher.give_back(folder)
    group.barrier()
    return refresher


def base_shards(experiment: Experiment, encode: Any, group: WorkerGroup) -> int:
    """In how many parts the workers hold the base, the same on all of them: `scaling.base_shards`, or what auto stands for.

    Auto is one part a node, of a base that takes `SHARDED_FROM` or more, can be searched in parts and encoded beside the
    workers. Never more than there are workers.
    """
    scaling, knowledge = experiment.scaling, experiment.objective.knowledge
    if scaling.base_shards != AUTO:
        return min(scaling.least_shards, group.size)
    nodes = len(set(group.gather_objects(this_node())))
    if nodes == 1 or undividable(experiment) or scaling.cpus_per_encoder:
        return 1
    if scaling.gpus_per_encoder and scaling.gpus_per_encoder + scaling.gpus_per_worker > 1:
        return 1
    assert isinstance(knowledge, KnowledgeBaseObjective), "what has a base"
    entries, languages = group.gather_objects(encode.size if group.is_first else None)[0]
    if not is_searched_in_parts(knowledge, entries):
        return 1
    each = experiment.model.embedding_width * np.dtype(knowledge.storage).itemsize
    return nodes if entries * (1 + languages) * each >= SHARDED_FROM else 1


def write_error(folder: Location, message: str) -> None:
    """Leave word of why a trial ended, for the process that started it."""
    make_folder(folder)
    write_text(folder / ERROR_FILE, " ".join(redact(message).split()) + "\n", is_private=True)


def worker_group(experiment: Experiment) -> WorkerGroup:
    """This process's place among the trial's workers, and its device."""
    device = torch.device("cpu")
    if experiment.scaling.gpus_per_worker and torch.cuda.is_available():
        from ray.train.torch import get_device

        device = get_device() if experiment.scaling.has_workers else torch.device("cuda")
    if has_group():
        return WorkerGroup(rank=dist.get_rank(), size=dist.get_world_size(), device=device)
    return WorkerGroup(device=device)


def has_group() -> bool:
    """Whether this process is joined with the trial's other workers."""
    return dist.is_available() and dist.is_initialized()


def remedy(text: str) -> str:
    """`; if memory was too small: ...` for an error's text that tells of it, with its type; nothing for another."""
    return f"; {REMEDY}" if any(sign in text for sign in SIGNS) else ""


def packed(metrics: Mapping[str, Any], shown: Iterable[str] = ()) -> dict[str, Any]:
    """What a worker reports, as it travels to the driver: the metrics as one text; those in `shown` as numbers too.

    Tune keeps statistics of every number that a trial ever reported, which with hundreds of metrics a trial fills the
    driver (NOTEBOOK.md).
    """
    open_ones = {name: metrics[name] for name in (*ALWAYS_SHOWN, *shown) if name in metrics}
    return {**open_ones, METRICS: json.dumps(dict(metrics))}


def unpacked(result: Mapping[str, Any]) -> dict[str, Any]:
    """What was packed, without all that Tune adds to a result; nothing if a trial reported nothing of its own."""
    return dict(json.loads(result[METRICS])) if METRICS in result else {}


class PreemptionNotices:
    """Says, once for each node that is to be taken away, that a checkpoint is due; called by all workers after the same steps.

    Clouds give word of it some 30 to 120 seconds before. `ask` is `ray.train.get_preemption_info`: None, or what names the
    nodes. It waits until every worker has asked, so the workers first agree that it is time.
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
