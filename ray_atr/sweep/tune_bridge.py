"""The connection to Ray Tune: it gets trial ids, runs them as its scheduler decides, and its events are recorded.

`run_in_tune` runs in a trial's process: it trains the experiment from the run folder and reports to Tune.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence, Set
from pathlib import Path
from typing import Any

from ray_atr.common.override import override
from ray_atr.common.redaction import redact
from ray_atr.common.runtime import WORKER_CPU_SHARE, other_node_of, own_handlers
from ray_atr.common.storage import file_exists, write_text
from ray_atr.sweep.placement import free_room_of_dead_processes, living_nodes
from ray_atr.sweep.recording import Recording
from ray_atr.sweep.trial_queue import TrialQueue
from ray_atr.training.experiment import Experiment
from ray_atr.training.ray_train import (
    ENDED_FOR_MEMORY,
    ERROR_FILE,
    LOW_MEMORY,
    NODE_LOST,
    TRACEBACK_FILE,
    TrialError,
    packed,
    ray_storage,
    remedy,
    run_trial,
    unpacked,
)
from ray_atr.training.run_folder import RunFolder, TrialFolder

# A file error as Python prints it; missing files and permissions have classes of their own.
DISK_ERROR = re.compile(r"^\W*OSError: \[Errno \d+\] ([^\n:]+): '([^'\n]+)'", re.MULTILINE)
NO_ANSWER = "The actor is temporarily unavailable"  # Ray's words where a process or its node does not answer
LOSS_SECONDS = 30.0  # Ray's time to find that a node that does not answer is gone
# A trial's own process only waits for its workers; Tune does not allow 0.
TRIAL_PROCESS_CPUS = 0.01
LOOK_SECONDS = 2.0  # between two looks for room that a killed trial has left reserved
# Ray's resource of the head node: the process of a trial must not be lost with a worker's node.
ON_THE_HEAD = {"node:__internal_head__": 0.001}


def run_with_tune(
    queue: TrialQueue,
    home: Path,
    slots: int,
    scheduler: Any,
    recording: Recording,
    is_over: Callable[[], bool],
) -> None:
    """Run the queue's trials, `slots` at a time, until there are no more or the sweep is over."""
    from ray import tune

    # Tune's console would repeat the listeners' lines, and print a failure with forty lines of Ray's internals.
    os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")
    os.environ.setdefault("TUNE_PRINT_ALL_TRIAL_ERRORS", "0")
    # At the end it lists failed trials and its own way to resume; there is no option against it.
    logging.getLogger("ray.tune.tune").setLevel(logging.CRITICAL)
    os.environ.setdefault("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
    os.environ.setdefault("TUNE_MAX_PENDING_TRIALS_PG", str(slots))
    # A final report has the metrics of the test split, not those that a scheduler compares.
    os.environ.setdefault("TUNE_DISABLE_STRICT_METRIC_CHECKING", "1")
    run, plan = queue.run, queue.plan
    shown = [goal.metric for goal in plan.goals]
    tuner = tune.Tuner(
        tune.with_resources(trainable_of(str(run.path), str(home), shown), resources_by_trial(run)),
        tune_config=tune.TuneConfig(
            search_alg=_asker(queue, is_over),
            scheduler=scheduler,
            num_samples=-1,
            max_concurrent_trials=slots,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            name=f"tune-{time.strftime('%Y%m%d-%H%M%S')}",
            storage_path=ray_storage(run.path),
            callbacks=[_recorder(queue, recording, is_over)],
            stop=_stopper(is_over),
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=0),
        ),
    )
    try:
        with own_handlers():
            tuner.fit()
    except tune.TuneError as error:
        # Tune gives an error in a callback as the text of its traceback. Its cause may be a failure of storage: a missing run
        # folder, a store that cannot be reached, a full disk.
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__cause__ or cause.__context__
        if cause is not None:
            raise cause from None
        raise


def trainable_of(run: str, home: str, shown: Sequence[str]) -> Callable[[dict[str, Any]], None]:
    """What each trial's process calls with its configuration.

    It carries these texts itself. Tune's `with_parameters` would leave them in the object store of the driver's node: if Ray
    loses that node, later trials would wait for them for ever.
    """

    def trainable(config: dict[str, Any]) -> None:
        run_in_tune(config, run, home, shown)

    return trainable


def resources_by_trial(run: RunFolder) -> Callable[[dict[str, Any]], Any]:
    """What Tune reserves for a trial's own process, by the trial's configuration: a sweep may vary `scaling.*`."""
    from ray.tune.execution.placement_groups import resource_dict_to_pg_factory

    base = run.experiment

    def resources(config: dict[str, Any]) -> Any:
        overrides = run.trial(config["trial_id"]).describe()["overrides"]
        scaling = {path: value for path, value in overrides.items() if path.startswith("scaling.")}
        return resource_dict_to_pg_factory(resources_of_trial_process(override(base, scaling)))

    return resources


def resources_of_trial_process(experiment: Experiment) -> dict[str, float]:
    """Resources of a trial's own process: all of its resources without workers, else next to nothing."""
    scaling = experiment.scaling
    if scaling.is_elastic:
        return ON_THE_HEAD
    if scaling.has_workers:
        return {"cpu": TRIAL_PROCESS_CPUS}
    return {"cpu": scaling.cpus_per_worker * WORKER_CPU_SHARE, "gpu": scaling.gpus_per_worker}


def _asker(queue: TrialQueue, is_over: Callable[[], bool]) -> Any:
    from ray.tune.search import Searcher

    class Asker(Searcher):
        """Tune's searcher: suggests the next trial of the queue. Results are recorded in the run folder."""

        def suggest(self, trial_id: str) -> Any:
            trial = None if is_over() else queue.next()
            return Searcher.FINISHED if trial is None else {"trial_id": trial.trial_id}

        def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None: ...

        def save_to_dir(self, checkpoint_dir: str, session_str: str = "default") -> None: ...

    return Asker()


def _stopper(is_over: Callable[[], bool]) -> Any:
    from ray.tune import Stopper

    class OutOfTime(Stopper):
        def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
            return False

        def stop_all(self) -> bool:
            return is_over()

    return OutOfTime()


def _recorder(queue: TrialQueue, recording: Recording, is_over: Callable[[], bool]) -> Any:
    from ray.tune import Callback

    def folder_of(trial: Any) -> TrialFolder:
        return queue.run.trial(trial.config["trial_id"])

    class Recorder(Callback):
        """Passes Tune's events on. Lives in the driver only."""

        looked: float | None = None
        """When room of dead processes was looked for; None before a trial has failed."""
        nodes: Set[str] = frozenset()
        """The nodes that there were when the last trial started."""

        def on_step_end(self, iteration: int, trials: Any, **info: Any) -> None:
            # The processes of a trial die one after the other, some after its error is known.
            if self.looked is not None and time.monotonic() - self.looked >= LOOK_SECONDS:
                self.looked = time.monotonic()
                free_room_of_dead_processes()

        def on_trial_start(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            self.nodes = living_nodes()
            recording.started(folder_of(trial))

        def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: dict[str, Any], **info: Any) -> None:
            recording.reported(folder_of(trial), unpacked(result))

        def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            recording.ended(folder_of(trial), is_over=is_over())

        def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            folder = folder_of(trial)
            if not folder.is_finished and _is_lost_with_its_node(trial, self.nodes) and queue.again(folder):
                recording.lost(folder)
            else:
                recording.failed(folder, _error_of(folder, trial))
            self.looked = time.monotonic()

    return Recorder()


def _error_of(folder: TrialFolder, trial: Any) -> str:
    """The reason of a trial's failure in one line; for an unexpected error the trial's folder has the full traceback.

    For a failing disk the line is `PATH: REASON`, as in the commands' errors.
    """
    path = folder.folder / ERROR_FILE
    if file_exists(path):
        return path.read_text(encoding="utf-8").strip()
    if not (text := _text_of_error(trial)):
        return "the trial's process died"
    write_text(folder.folder / TRACEBACK_FILE, redact(text) + "\n", is_private=True)
    if matches := DISK_ERROR.findall(text):
        reason, path = matches[-1]
        return f"{path}: {reason}"
    last = text.splitlines()[-1].strip()
    line = last.removeprefix(f"{TrialError.__module__}.{TrialError.__qualname__}: ")
    if line == last and LOW_MEMORY in text:
        # The trial's own process was ended; Ray's last line is advice on its settings.
        line = ENDED_FOR_MEMORY.format("")
    return f"{line}{other_node_of(text)} ({folder.folder / TRACEBACK_FILE}){remedy(text)}"


def _is_lost_with_its_node(trial: Any, nodes: Set[str]) -> bool:
    """Whether a trial's own process ended with one of the nodes. Ray Train restarts workers that are lost alone."""
    text = _text_of_error(trial)
    if TrialError.__qualname__ in text:
        return False
    if NODE_LOST.search(text):
        return True
    if NO_ANSWER not in text:
        return False
    deadline = time.monotonic() + LOSS_SECONDS
    while nodes <= living_nodes():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.5)
    return True


def _text_of_error(trial: Any) -> str:
    """What Tune has written of a trial's error; empty if it has written nothing."""
    file = getattr(trial, "error_file", None)
    return Path(file).read_text(encoding="utf-8").strip() if file else ""


def run_in_tune(config: dict[str, Any], run: str, home: str, shown: Sequence[str] = ()) -> None:
    """Train the trial `config["trial_id"]` of a run folder to its end, reporting to Tune. TrialError if it cannot
    continue. `shown` are the metrics that the scheduler compares.
    """
    from ray import tune

    folder = RunFolder.open(run)
    trial = folder.trial(config["trial_id"])
    error = trial.folder / ERROR_FILE
    experiment = folder.experiment_of(trial)
    with _reports_of_workers() if experiment.scaling.has_workers else contextlib.nullcontext() as callback:
        callbacks = [] if callback is None else [callback]
        run_trial(
            experiment, trial.folder, Path(home), callbacks, lambda metrics: tune.report(packed(metrics, shown)), shown
        )
    if file_exists(error):
        raise TrialError(error.read_text(encoding="utf-8"))


@contextlib.contextmanager
def _reports_of_workers() -> Iterator[Any]:
    """A callback of Ray Train in its controller. What it is given reaches Tune in order, and all of it before the block ends.

    Ray's own, TuneReportCallback, may lose the last report or wait for ever: the trial's process takes reports from one
    queue and the end of this function from another, and neither waits for the other.
    """
    from ray import tune
    from ray.train import UserCallback
    from ray.util.queue import Full, Queue

    reports = Queue(1, actor_options={"num_cpus": 0})

    class Sends(UserCallback):
        def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
            reports.put(metrics[0])

    def pass_on() -> None:
        for metrics in iter(reports.get, None):
            tune.report(metrics)

    # Tune ends this thread within `report` if it stops the trial.
    thread = threading.Thread(target=pass_on, name="reports", daemon=True)
    thread.start()
    try:
        yield Sends()
    finally:
        while thread.is_alive():
            with contextlib.suppress(Full):
                reports.put(None, timeout=1)
                break
        thread.join()
        reports.shutdown(force=True)
