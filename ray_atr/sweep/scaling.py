"""Decides what a trial runs on if its settings are `auto`: `scaling.workers`, `scaling.ray_data` and others.

On one node without GPUs a trial trains in its own process: starting workers and readers would take longer than a short
trial trains. As soon as there are GPUs, several nodes, data in a store, validation beside training or labels that nodes must
have, Ray Train's workers train and Ray Data streams.
Many trials that train no more than heads on vectors of frozen towers stay in their own processes on a node with GPUs too, and
share them: on an H100 a worker of Ray Train starts in 14 s, and an epoch of such a trial takes half a second.
The losses are the same either way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ray_atr.common.override import flatten, override
from ray_atr.common.progress import Echo
from ray_atr.common.sampling import IN_SHARDS
from ray_atr.common.settings import counted
from ray_atr.common.storage import is_local, locate
from ray_atr.objectives import KnowledgeBaseObjective
from ray_atr.sweep.placement import MOST, Placed, num_trials_that_fit, processes_of
from ray_atr.sweep.space import point_key
from ray_atr.sweep.trial_queue import TrialQueue
from ray_atr.training.experiment import AUTO, Experiment
from ray_atr.training.run_folder import RunFolder

OPEN = {
    "scaling.workers": AUTO,
    "scaling.ray_data": AUTO,
    "scaling.gpus_per_worker": 0.0,
    "scaling.gpus_per_encoder": 0.0,
}
"""The settings that `decide` may set, with the value that leaves them open."""
BESIDE_AN_ENCODER = {"scaling.gpus_per_worker": 0.6, "scaling.gpus_per_encoder": 0.4}
"""One GPU for a worker and the encoder of its base. Two workers cannot share a GPU with NCCL."""

PREFIXES = ("model.", "data.order", "data.source", "train.batch_size")
"""Prefixes of settings that `decide` reads of each point of a sweep."""
SETTINGS = (
    *("objective", "objective.knowledge", "objective.knowledge.refresh"),
    *("scaling.validate_beside", "scaling.worker_labels", "scaling.encoder_labels"),
)
"""Other settings that it reads of each: whether a knowledge base encodes, and what needs workers."""
MOST_PER_GPU = 8
"""Most trials that share a GPU: each takes about half a gigabyte of it before it computes anything."""


@dataclass(frozen=True)
class ScalingChoice:
    """Chosen settings by path, and the reason."""

    settings: dict[str, Any]
    reason: str

    def line(self, experiment: Experiment) -> str:
        """A line about the choice for an experiment."""
        scaling = experiment.scaling
        gpus = f" with {scaling.gpus_per_worker:g} GPU each" if scaling.gpus_per_worker else ""
        if scaling.has_workers:
            workers = "1 worker" if scaling.workers == 1 else f"{scaling.workers} workers"
            trains = f"{workers} of Ray Train{gpus}"
        else:
            trains = f"its own process{gpus.removesuffix(' each')}"
        shares = ""
        if scaling.has_workers and scaling.workers != 1:
            reason = experiment.gathers
            shares = f"; each worker gathers all embeddings ({reason})" if reason else "; texts' embeddings go around"
        reads = "Ray Data streams what it trains on" if scaling.ray_data is True else "without Ray Data"
        return f"scaling: a trial is trained by {trains}, {reads} ({self.reason}){shares}"


def decide(
    experiment: Experiment,
    nodes: Sequence[Placed],
    num_trials: int | None,
    *,
    alone: str = "",
    is_in_store: bool = False,
    points: Sequence[Experiment] = (),
) -> ScalingChoice | None:
    """The values of `auto` settings on these nodes; None if there are none.

    num_trials  number of trials that could run at once; None: unknown, taken as many.
    alone       the reason why a trial must train in its own process; empty if it need not.
    points      the experiments of a sweep, as far as they differ in what is read of each; empty: the experiment alone.
    """
    points = points or [experiment]
    scaling, settings = experiment.scaling, dict[str, Any]()
    if AUTO not in (scaling.workers, scaling.ray_data):
        return None
    gpus = int(sum(node.resources.get("GPU", 0) for node in nodes))
    is_growing = any(node.labels is None for node in nodes)
    reasons = [counted(gpus, "GPU")] if gpus else []
    reasons += [counted(len(nodes), "node")] if len(nodes) > 1 else ["a cluster that grows"] if is_growing else []
    reasons += ["data in a store"] if is_in_store else []
    each = [point.scaling for point in points]
    reasons += ["validation beside training"] if any(one.validate_beside for one in each) else []
    reasons += ["labels of nodes"] if any(one.worker_labels or one.encoder_labels for one in each) else []
    reason = f"auto: {', '.join(reasons) or 'one node without GPUs'}"
    if gpus and len(reasons) == 1 and not alone and _may_share_a_gpu(experiment, points, gpus, num_trials):
        # Ray fills one GPU before the next: with smaller shares than the trials need, some GPUs would have none.
        most = MOST_PER_GPU if num_trials is None else min(MOST_PER_GPU, -(-num_trials // gpus))
        per_gpu = min(most, int(nodes[0].resources.get("CPU", 0) / scaling.cpus_per_worker / gpus))
        settings = {"scaling.workers": 0, "scaling.gpus_per_worker": 1 / max(1, per_gpu)}
        streams = {"scaling.ray_data": False} if scaling.ray_data == AUTO else {}
        return ScalingChoice(settings | streams, f"{reason}; its towers are frozen and encode once")
    if scaling.workers == AUTO:
        settings["scaling.workers"] = 0
        if reasons and gpus and not scaling.gpus_per_worker:
            beside = max(map(_gpus_beside, points))
            # A single GPU is shared with processes that have a share of it; with several GPUs, a worker has its own.
            own_gpu = {"scaling.gpus_per_worker": round(1.0 - beside, 4) if gpus == 1 and beside < 1 else 1.0}
            settings |= BESIDE_AN_ENCODER if any(map(_is_encoded_beside, points)) else own_gpu
        if alone:
            reason += f"; {alone}"
        elif reasons:
            most = gpus or sum(node.resources.get("CPU", 0) >= scaling.cpus_per_worker for node in nodes)
            decided = [override(point, settings) for point in points]
            settings["scaling.workers"] = _num_workers(decided, nodes, most, num_trials)
    if scaling.ray_data == AUTO:
        settings["scaling.ray_data"] = bool(reasons) or settings.get("scaling.workers", scaling.workers) != 0
        if not alone and not reasons and settings["scaling.ray_data"]:
            reason = "auto: there are workers"
    return ScalingChoice(settings, reason)


def _may_share_a_gpu(experiment: Experiment, points: Sequence[Experiment], gpus: int, num_trials: int | None) -> bool:
    """Whether there are more trials than GPUs, and each trains only on the vectors of frozen towers."""
    is_open = experiment.scaling.workers == AUTO and not experiment.scaling.gpus_per_worker
    is_many = num_trials is None or num_trials > gpus
    are_frozen = all(point.model.encodes_once(kind) for point in points for kind in ("audio", "text"))
    return is_open and is_many and are_frozen


def _gpus_beside(experiment: Experiment) -> float:
    """GPUs of the processes beside one worker."""
    return sum(process.resources["GPU"] for process in processes_of(override(experiment, {"scaling.workers": 1}))[1:])


def _is_encoded_beside(experiment: Experiment) -> bool:
    knowledge, scaling = experiment.objective.knowledge, experiment.scaling
    encodes = isinstance(knowledge, KnowledgeBaseObjective) and knowledge.refresh == "re_encode"
    return encodes and not scaling.encoders and not scaling.gpus_per_encoder


def _divided_by_workers(experiment: Experiment) -> int:
    data = experiment.data
    return data.order_parts if data.order == IN_SHARDS else experiment.train.batch_size


def _num_workers(points: Sequence[Experiment], nodes: Sequence[Placed], most: int, num_trials: int | None) -> int:
    """The most workers that divide every batch and leave room for the other trials; 1 at least."""
    at_once = min(MOST, max(1, most if num_trials is None else min(num_trials, most)))
    for workers in range(max(1, most // at_once), 1, -1):
        if all(_divided_by_workers(point) % workers == 0 for point in points):
            trials = [processes_of(override(point, {"scaling.workers": workers})) for point in points]
            distinct = {repr(trial): trial for trial in trials}.values()
            if all(num_trials_that_fit(trial, nodes) >= at_once for trial in distinct):
                return workers
    return 1


def decide_scaling(
    run: RunFolder,
    base: Experiment,
    queue: TrialQueue,
    concurrency: int | None,
    nodes: Sequence[Placed],
    echo: Echo,
) -> Experiment:
    """The run's experiment with the values of its `auto` settings, which are announced and written to the run folder.

    nodes   the cluster's; empty: Ray is not used.

    What an earlier start of the run decided is decided again: it may have run elsewhere.
    """
    flat, earlier = flatten(base), run.info.get("scaling", {}).get("settings", {})
    opened = {path: OPEN[path] for path, value in earlier.items() if path in OPEN and flat[path] == value}
    if "scaling.workers" not in opened and any(node.resources.get("GPU") for node in nodes):
        # Their number was set meanwhile. GPUs are only decided together with it, so they stay.
        opened = {path: value for path, value in opened.items() if path == "scaling.ray_data"}
    base = override(base, opened)
    alone = "" if nodes else "Ray is not used"
    points = _kinds_of_points(base, queue) or [base]
    stores = {place for point in points for place in (point.data.source, base.scaling.feature_store)}
    num_trials = queue.num_trials if concurrency is None else concurrency
    decision = decide(
        base,
        nodes,
        num_trials,
        alone=alone,
        is_in_store=any(place and not is_local(locate(place)) for place in stores),
        points=points,
    )
    if decision is None:
        return base
    if not nodes:
        decision.settings["scaling.ray_data"] = False
    experiment = override(base, decision.settings)
    run.update_experiment(experiment)
    run.update_info(scaling={"settings": decision.settings, "reason": decision.reason})
    echo(decision.line(experiment))
    return experiment


def _kinds_of_points(base: Experiment, queue: TrialQueue) -> list[Experiment]:
    """The experiment with each combination of what `decide` reads in the known points, and of the listed values of a space."""

    def is_read(path: str) -> bool:
        return path in SETTINGS or path.startswith(PREFIXES)

    kinds = [{path: value for path, value in point.items() if is_read(path)} for point in queue.known_points(is_read)]
    return [queue.plan.experiment(base, kind) for kind in {point_key(kind): kind for kind in kinds}.values()]
