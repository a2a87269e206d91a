"""A sweep from its first check to its last trial."""

from __future__ import annotations

import shlex
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ray_atr.common.override import override, with_absolute_paths
from ray_atr.common.progress import Echo
from ray_atr.common.runtime import require_on_all_nodes, start_ray
from ray_atr.common.settings import counted
from ray_atr.common.storage import Location, file_exists
from ray_atr.sweep.placement import cluster_nodes, concurrent_trials
from ray_atr.sweep.racing import SEEDS_GRANTED, Racing
from ray_atr.sweep.recording import Recording
from ray_atr.sweep.scaling import decide_scaling
from ray_atr.sweep.schedulers import ASHA, RACE, check_scheduler, make_scheduler, stops
from ray_atr.sweep.search import FixedPoints, SweepPlan
from ray_atr.sweep.trial_queue import TrialQueue, status_of
from ray_atr.sweep.tune_bridge import run_with_tune
from ray_atr.training.checks import check_base_shards, check_experiment
from ray_atr.training.experiment import Experiment
from ray_atr.training.inputs import Prepared, preparation_key, prepare
from ray_atr.training.listener import SweepListener
from ray_atr.training.ray_train import ERROR_FILE, run_trial
from ray_atr.training.refresh_cost import refresh_warning
from ray_atr.training.run_folder import (
    FAILED,
    FINISHED,
    PENDING,
    RUNNING,
    STOPPED,
    RunFolder,
    TrialFolder,
    hashes_of,
    sets_of,
)


@dataclass(frozen=True)
class SweepResult:
    """How a sweep ended: trial ids by status."""

    finished: list[str]
    failed: list[str]
    unfinished: list[str]
    stopped: list[str]  # ended early by a scheduler
    num_unproposed: int = 0  # trials that a search has not proposed yet
    is_out_of_time: bool = False  # whether `hours` ended it; it can be resumed with more
    common_failure: str | None = None  # the one reason for which every trial failed, which ended it

    @property
    def num_left(self) -> int:
        """Number of trials that have not ended."""
        return len(self.unfinished) + self.num_unproposed


def sweep(
    run: RunFolder,
    plan: SweepPlan | Sequence[Mapping[str, Any]],
    home: Path,
    *,
    listeners: Sequence[SweepListener] = (),
    concurrency: int | None = None,
    retry_failed: bool = False,
    use_ray: bool = True,
    echo: Echo = print,
) -> SweepResult:
    """Run the points of a plan (or of a list of overrides) that have no result yet, on Ray Tune.

    Every point known beforehand is checked, and its data prepared, before the first starts. A failed trial is recorded and
    does not end the others, unless the first three all failed for one reason; it is run again only with `retry_failed`. A
    trial that a scheduler stopped is not run again. `concurrency` is how many run at once (default: as many as the cluster's
    CPUs and GPUs hold); without `use_ray` trials train in this process, one after the other. Raises ValueError for what
    cannot run, and for data that is not what the run folder's earlier trials were trained on.
    """
    started, base = time.monotonic(), run.experiment
    if not isinstance(plan, SweepPlan):
        plan = SweepPlan(FixedPoints([with_absolute_paths(base, point) for point in plan]))
    check_scheduler(plan, base)
    given_plan, given_listeners, granted = plan, listeners, run.info.get(SEEDS_GRANTED, ())
    plan = given_plan.with_seeds(granted)
    queue = TrialQueue(run, plan, check_experiment, retry_failed=retry_failed)
    done = len(queue.trials) - len(queue.waiting)
    if done:
        # A search may have trials to propose still; how many is not known if only its time limit ends it.
        number = len(queue.trials) if queue.num_trials is None else queue.num_trials
        echo(f"{done} of {number} trials are in {run.path} already")
    for listener in listeners:
        listener.sweep_started(queue.num_trials, done)
    racing = None
    if plan.scheduler == RACE:
        racing = Racing(run, plan, queue, echo, listeners)
        racing.look()
        listeners = [*listeners, racing]
    deadline = started + 3600 * plan.hours if plan.hours else None
    recording = Recording(listeners, any(status_of(trial) in (FINISHED, STOPPED) for trial in queue.trials))
    if not queue.is_done:
        slots = _make_ready(queue, home, listeners, concurrency, use_ray=use_ray, echo=echo)

        def is_over() -> bool:
            return recording.common_failure is not None or (deadline is not None and time.monotonic() >= deadline)

        def scheduler() -> Any:
            # Tune pickles its scheduler, which must hold no more of the race than this: `echo` and listeners may have locks.
            dropped = () if racing is None else racing.dropped
            return make_scheduler(plan, base.train.epochs, run, queue.trials, dropped)

        if use_ray:
            echo(_announcement(queue, slots))
            run_with_tune(queue, home, slots, scheduler(), recording, is_over)
            while queue.has_lost and not is_over():
                # Trials whose nodes were lost after the last one had started, when Tune asks for no more.
                run_with_tune(queue, home, slots, scheduler(), recording, is_over)
            _nothing_runs_any_more(queue.trials)
        else:
            try:
                # Trials that run one after the other are dropped from a race before they start.
                _run_in_process(queue, home, scheduler() if plan.scheduler == ASHA else None, recording, is_over)
            finally:
                _nothing_runs_any_more(queue.trials)
    if racing is not None and queue.is_done and recording.common_failure is None:
        further, message = racing.further_seeds()
        if further and given_plan.spends_spared:
            # Failed trials have been retried already, with `retry_failed`.
            run.update_info(**{SEEDS_GRANTED: [*granted, *further]})
            echo(message)
            hours = None if deadline is None else max((deadline - time.monotonic()) / 3600, 1e-9)
            return sweep(
                run,
                replace(given_plan, hours=hours),
                home,
                listeners=given_listeners,
                concurrency=concurrency,
                use_ray=use_ray,
                echo=echo,
            )
        if further:
            seeds = " ".join(map(str, [*racing.seeds, *further]))
            echo(f"{message}: --resume {shlex.quote(str(run.path))} --seeds {seeds}, or --spend-spared")
    if queue.lacking:
        echo(queue.lacking)
    is_out_of_time = deadline is not None and time.monotonic() >= deadline
    return _result(queue, recording.common_failure, is_out_of_time=is_out_of_time)


def _make_ready(
    queue: TrialQueue,
    home: Path,
    listeners: Sequence[SweepListener],
    concurrency: int | None,
    *,
    use_ray: bool,
    echo: Echo,
) -> int:
    """Start Ray, decide the scaling and prepare the data; returns how many trials run at once."""
    run, seconds, before = queue.run, {}, time.monotonic()
    if use_ray:
        start_ray()
        seconds["Ray"] = time.monotonic() - before
        _require_shared(run.path)
    base = decide_scaling(run, run.experiment, queue, concurrency, cluster_nodes() if use_ray else [], echo)
    before = time.monotonic()
    # Each with each seed; of a search at least one of each choice of data and model.
    points = queue.known_points(lambda path: path.startswith(("data.", "model.")))
    experiments = [override(base, trial) for point in points for trial in queue.overrides(point)] or [base]
    for experiment in experiments:
        # Again, since the number of workers is decided only now.
        check_base_shards(experiment)
    slots = concurrent_trials(experiments, concurrency) if use_ray else 1
    record_data(run, prepare_all(experiments, home, echo, use_ray=use_ray))
    for warning in dict.fromkeys(filter(None, map(refresh_warning, experiments))):
        echo(warning)
    seconds["data and features"] = time.monotonic() - before
    for listener in listeners:
        listener.inputs_ready(seconds)
    return slots


def _require_shared(folder: Location) -> None:
    """ValueError if the run folder is on this node's disk alone: trials on other nodes could not write to it."""
    if isinstance(folder, Path):
        # A new file, as an earlier run may have left a folder of this name on another node.
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".seen-") as seen:
            require_on_all_nodes("run folder (--out, RAY_ATR_HOME)", folder, Path(seen.name))


def _result(queue: TrialQueue, failure: str | None, *, is_out_of_time: bool) -> SweepResult:
    ids: dict[str, list[str]] = {FINISHED: [], FAILED: [], PENDING: [], STOPPED: []}
    for trial in queue.trials:
        status = status_of(trial)
        ids[status if status in ids else PENDING].append(trial.trial_id)
    return SweepResult(
        ids[FINISHED], ids[FAILED], ids[PENDING], ids[STOPPED], queue.num_unproposed, is_out_of_time, failure
    )


class _EndedEarlyError(Exception):
    """Ends a trial in this process between two epochs: the scheduler stops it, or the time of the sweep is over."""

    def __init__(self, *, is_behind: bool) -> None:
        super().__init__()
        self.is_behind = is_behind


def _run_in_process(
    queue: TrialQueue, home: Path, scheduler: Any, recording: Recording, is_over: Callable[[], bool]
) -> None:
    """Train the queue's trials until none is left, or the sweep is over. `scheduler` is Tune's, or None for none."""

    def report(trial: TrialFolder, metrics: Mapping[str, Any]) -> None:
        recording.reported(trial, metrics)
        if trial.is_finished:
            return
        # Its checkpoint is written, from which a resumed sweep continues.
        if is_over():
            raise _EndedEarlyError(is_behind=False)
        if scheduler is not None and stops(scheduler, trial.trial_id, metrics):
            raise _EndedEarlyError(is_behind=True)

    while not is_over() and (trial := queue.next()) is not None:
        error = trial.folder / ERROR_FILE
        recording.started(trial)
        is_behind = False
        try:
            run_trial(queue.run.experiment_of(trial), trial.folder, home, [], partial(report, trial))
        except _EndedEarlyError as early:
            is_behind = early.is_behind
        if file_exists(error):
            recording.failed(trial, error.read_text(encoding="utf-8").strip())
        else:
            recording.ended(trial, is_over=not is_behind)


def prepare_all(experiments: Sequence[Experiment], home: Path, echo: Echo, *, use_ray: bool) -> list[Prepared]:
    """Prepare the inputs of all experiments; once for experiments with the same inputs."""
    prepared: dict[Any, Prepared] = {}
    for experiment in experiments:
        key = preparation_key(experiment)
        if key not in prepared:
            prepared[key] = prepare(experiment, home, use_ray=use_ray, echo=echo)
    return list(prepared.values())


def record_data(run: RunFolder, prepared: Sequence[Prepared]) -> None:
    """Note names and manifest hashes of the data sets in sweep.json; ValueError if one is not what it was before."""
    info = run.info
    recorded = hashes_of(info)
    hashes: dict[str, str] = {}
    for inputs in prepared:
        # Commas separate the names in sweep.json.
        path, digest = inputs.data.rstrip("/").replace(",", " "), inputs.data_hash
        name = path.rpartition("/")[2]
        # Of several folders of one name, all but the first count by their paths.
        hashes[name if hashes.get(name, digest) == digest else path] = digest
    for name, digest in hashes.items():
        if digest not in recorded.values() and recorded.get(name, digest) != digest:
            other = f"{name} has the hash {recorded[name]} there and {digest} now"
            raise ValueError(f"{run.path}: run on other data: {other}; start a new sweep, or restore the data")
    new = {name: digest for name, digest in hashes.items() if digest not in recorded.values()}
    if new:
        data = {**recorded, **new}
        sets = sorted({inputs.data_name for inputs in prepared if inputs.data_name} | set(sets_of(info)))
        run.update_info(data={"name": ", ".join(data), "hash": ", ".join(data.values()), "set": ", ".join(sets)})


def _announcement(queue: TrialQueue, slots: int) -> str:
    plan, trials = queue.plan, len(queue.waiting) + queue.num_unproposed
    how_many = counted(trials, "trial") if trials else "trials"
    at_once = min(slots, trials) if trials else slots
    within = f", for {plan.hours:g} hours at most" if plan.hours else ""
    return f"{how_many}, {at_once} at a time{within}"


def _nothing_runs_any_more(trials: Sequence[TrialFolder]) -> None:
    """Mark trials that were cut off by the end of the time or an interrupt as pending, to be resumed."""
    for trial in trials:
        if status_of(trial) == RUNNING:
            trial.update(status=PENDING)
