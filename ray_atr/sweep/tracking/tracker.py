"""The controller's side of MLflow: sends what MLflow lacks of the run folder, and nothing twice."""

from __future__ import annotations

import json
import logging
import math
import re
import shlex
import time
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode

from ray_atr.common.lock import user_name
from ray_atr.common.override import as_typed
from ray_atr.common.redaction import redact
from ray_atr.common.storage import Location, entries_in, fetched, file_exists, locate, read_json, read_text, write_json
from ray_atr.sweep.tracking.names import in_mlflow, summary_name, tracked
from ray_atr.sweep.tracking.store import (
    COMMAND_TAG,
    EPOCHS_TAG,
    ERROR_TAG,
    FORMAT_TAG,
    OVERRIDES_TAG,
    PORT,
    STOPPED_TAG,
    SWEEP_TAG,
    TRIAL_TAG,
    Store,
    all_runs,
    brief,
    cut,
    store_of,
)
from ray_atr.training.listener import SweepListener
from ray_atr.training.objective_label import objective_label
from ray_atr.training.run_folder import (
    FAILED,
    FINISHED,
    METRICS_FILE,
    PENDING,
    RESULT_FILE,
    RUNNING,
    STOPPED,
    TEST_SCORES,
    RunFolder,
    TrialFolder,
    hashes_of,
    train_seconds,
    trial_name,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

Result = TypeVar("Result")

log = logging.getLogger(__name__)

STATUS = {PENDING: "SCHEDULED", RUNNING: "RUNNING", FINISHED: "FINISHED", STOPPED: "KILLED", FAILED: "FAILED"}
PARENT_TAG = "mlflow.parentRunId"
MAX_PARAM, MAX_TAG = 6000, 5000
MAX_PARAMS, MAX_TAGS, MAX_METRICS = 100, 100, 1000
"""What MLflow takes in one value and in one call."""
MAX_COMPARED, MAX_IN_NOTE = 100, 60
MAX_NAME, MAX_DIGEST = 500, 36
"""MLflow's limits for the name and digest of a data set, in characters."""
MAX_READABLE = 100
"""Characters of a run folder's name in the id of its sweep."""
RETRY_SECONDS = 30.0
SAMPLE_SECONDS = 10.0


class Tracker(SweepListener):
    """Copies a run folder into MLflow as it grows. Held by the controller alone.

    No method raises when MLflow cannot be reached or refuses: training continues, the results stay in the run folder, one
    warning is logged, and the next update (at the earliest after `retry_seconds`) sends what was missed. Each method
    says whether MLflow has everything now.
    """

    def __init__(
        self,
        run_folder: str | Location,
        *,
        store: Store | None = None,
        sample_seconds: float | None = SAMPLE_SECONDS,
        is_patient: bool = False,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self.run_folder = locate(run_folder)
        self.experiment_name = str(RunFolder.open(self.run_folder).settings.get("tracking.experiment_name", "ray_atr"))
        self.store = store or store_of(self.run_folder)
        self.sample_seconds = sample_seconds
        """Seconds between samples of this machine's load during the sweep; None: no samples."""
        self.sweep_id = _sweep_id(self.run_folder)
        self.is_patient = is_patient
        """Whether to wait for a busy server: a command may, a sweep must not."""
        self.retry_seconds = retry_seconds
        self.problem: str | None = None
        """Why MLflow lags behind, if it does."""
        self._retry_at = 0.0
        self._connection: _Connection | None = None
        self._monitor: SystemMetricsMonitor | None = None

    def start_sweep(self) -> str | None:
        """Find or make the parent run and mark it running; its run id, or None while MLflow is away."""
        run_id = self._attempt(lambda connection: connection.start())
        if run_id is not None and self.sample_seconds is not None and self._monitor is None:
            self._monitor = _watch_system(run_id, self.store.uri, self.sample_seconds)
        return run_id

    def update_trial(self, trial_id: str) -> bool:
        """Send what MLflow lacks of one trial: settings, epochs, final metrics, status. Call after its files changed."""
        return self._attempt(lambda connection: connection.send_trial(trial_id)) is not None

    def trial_changed(self, trial: TrialFolder) -> None:
        self.update_trial(trial.trial_id)

    def finish_sweep(self, *, is_complete: bool = True) -> bool:
        """Send what is missing of every trial and the report, and end the parent run.

        `is_complete=False` says that the sweep was stopped: the parent run and the trials in progress become KILLED.
        """
        self._end_monitor()
        return self._attempt(lambda connection: connection.finish(is_complete), is_urgent=True) is not None

    def abandon(self, *, is_removed: bool) -> None:
        """End the parent run of a sweep that could not start or go on: KILLED, or deleted if the run folder was removed."""
        self._end_monitor()
        # Without a connection MLflow has nothing of it.
        if self._connection is not None:
            self._attempt(lambda connection: connection.abandon(is_removed), is_urgent=True)

    def _end_monitor(self) -> None:
        if self._monitor is not None:
            self._monitor.finish()
            self._monitor = None

    def parent_run_id(self) -> str | None:
        """The parent's run id, or None while MLflow is away."""
        return self._attempt(lambda connection: connection.runs[None].info.run_id)

    def trial_run_id(self, trial_id: str) -> str | None:
        """The run id of a trial that was sent, or None while MLflow is away."""
        return self._attempt(lambda connection: connection.runs[trial_id].info.run_id, is_urgent=True)

    def sweep_url(self) -> str | None:
        """The page of the sweep's own run in MLflow, which leads to its trials, or None while MLflow is away."""
        return self._page(lambda connection: connection.page())

    def comparison_url(self) -> str | None:
        """The page of MLflow that compares the trials (the first hundred), or None while MLflow is away."""
        return self._page(lambda connection: connection.comparison(MAX_COMPARED))

    def charts_url(self) -> str | None:
        """The page of MLflow with the trials, best first, and their curves, or None while MLflow is away."""
        return self._page(lambda connection: connection.charts())

    def _page(self, page: Callable[[_Connection], str]) -> str | None:
        where = str(self.store).rstrip("/") if self.store.is_server else f"http://127.0.0.1:{PORT}"
        return self._attempt(lambda connection: f"{where}/{page(connection)}", is_urgent=True)

    def _attempt(self, action: Callable[[_Connection], Result], *, is_urgent: bool = False) -> Result | None:
        if time.monotonic() < self._retry_at and not is_urgent:
            return None
        from mlflow.exceptions import MlflowException

        try:
            if self._connection is None:
                client = self.store.connect(is_patient=self.is_patient)
                experiment_id = self.store.experiment_id(client, self.experiment_name)
                self._connection = _Connection(self.run_folder, client, experiment_id, self.sweep_id)
            result = action(self._connection)
        except (MlflowException, OSError) as error:
            # The next attempt looks up the runs again: a call that timed out may have succeeded.
            self._connection = None
            self._retry_at = time.monotonic() + self.retry_seconds
            if self.problem is None:
                log.warning("MLflow at %s: %s; results are kept in %s", self.store, brief(error), self.run_folder)
            self.problem = brief(error)
            return None
        self.problem = None
        return result


def upload(run_folder: str | Location, *, store: Store | None = None) -> Tracker:
    """Send what MLflow lacks of a run folder; returns the tracker. ConnectionError if MLflow cannot be reached, ValueError if
    another process writes or sends the folder: each would make runs that it does not find.
    """
    run = RunFolder.open(run_folder)
    with run.locked():
        tracker = Tracker(run_folder, store=store, sample_seconds=None, is_patient=True)
        statuses = {trial.describe()["status"] for trial in run.trials()}
        tracker.start_sweep()
        if not tracker.finish_sweep(is_complete=statuses <= {FINISHED, STOPPED, FAILED}):
            raise ConnectionError(f"MLflow at {tracker.store}: {tracker.problem}")
    return tracker


def _watch_system(run_id: str, uri: str, sample_seconds: float) -> SystemMetricsMonitor:
    """A thread that logs this machine's load until `.finish()`; its step counter continues after a restart."""
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

    # It would log its start, its end and the absence of a GPU between the lines of the sweep's progress, and a server that is
    # away, which the tracker has reported.
    logging.getLogger("mlflow.system_metrics").setLevel(logging.CRITICAL)
    options = {"sampling_interval": sample_seconds, "samples_before_logging": 1, "resume_logging": True}
    monitor = SystemMetricsMonitor(run_id, tracking_uri=uri, **options)
    monitor.start()
    return monitor


class _Connection:
    """A client and the runs of one sweep, which are found by their tags; a run's `data` is its content in MLflow."""

    def __init__(self, folder: Location, client: MlflowClient, experiment_id: str, sweep_id: str) -> None:
        self.run = RunFolder.open(folder)
        self.info = self.run.info
        self.sweep_id = sweep_id
        self.client = client
        self.experiment_id = experiment_id
        # MLflow's filters have no escapes, but two kinds of quotation marks.
        mark = '"' if "'" in sweep_id else "'"
        self.filter = f"tags.`{SWEEP_TAG}` = {mark}{sweep_id}{mark}"
        self.runs = {run.data.tags.get(TRIAL_TAG): run for run in all_runs(client, experiment_id, self.filter)}
        self.statuses: dict[str | None, str] = {trial: run.info.status for trial, run in self.runs.items()}
        self.sent_later = set[str]()
        """Trials that had been trained when their runs were made: these have the times of the training."""
        if None not in self.runs:
            tags = {
                COMMAND_TAG: str(self.info.get("command", "")),
                "run_folder": str(self.run.path),
                **self._source_tags(),
            }
            self.runs[None] = self._create(None, self.info["name"] or self.run.path.name, tags)
            for trial in self.statuses.keys() - {None}:  # of a parent that was deleted in MLflow
                self.client.set_tag(self.runs[trial].info.run_id, PARENT_TAG, self.runs[None].info.run_id)
        self.select_by = self.run.select_by
        self._add_params(None, self.run.settings)

    def start(self) -> str:
        self._set_status(None, "RUNNING")
        return str(self.runs[None].info.run_id)

    def send_trial(self, trial_id: str, *, is_stopped: bool = False) -> bool:
        trial = self.run.trial(trial_id)
        content = trial.describe()
        sent = int(self.runs[trial_id].data.tags.get(EPOCHS_TAG, 0)) if trial_id in self.runs else 0
        if sent and content["status"] == RUNNING and not trial.epochs_after(sent - 1):
            # It is trained anew, since its folder was removed: what MLflow has is of another training.
            self.client.delete_run(self.runs.pop(trial_id).info.run_id)
        if trial_id not in self.runs:
            # The name that reports use, whichever parts of the objective were varied.
            overrides, settings = content["overrides"], self.run.settings_of(content["overrides"])
            name = trial_name(overrides, settings) if overrides else content["name"]
            tags = {"objective": objective_label(settings, overrides), **self._trial_tags(content)}
            began, _ = _times(trial)
            self.runs[trial_id] = self._create(trial_id, name, tags, began)
            if began is not None:
                self.sent_later.add(trial_id)
            self._send_data(trial_id, str(settings.get("data.source", "")))
        # The whole settings tree of the trial, with the names of the choices that it varies.
        self._add_params(trial_id, _params(self.run.settings_of(content["overrides"]), content["overrides"]))
        self._send_epochs(trial)
        self._send_result(trial)
        status = content["status"]
        if content.get("error"):
            self._log(trial_id, tags={ERROR_TAG: content["error"]})
        elif self.runs[trial_id].data.tags.pop(ERROR_TAG, None) is not None:
            # Of an earlier attempt.
            self.client.delete_tag(self.runs[trial_id].info.run_id, ERROR_TAG)
        if status == STOPPED:
            self._log(trial_id, tags={STOPPED_TAG: f"after epoch {len(trial.epochs())}"})
        self._set_status(trial_id, "KILLED" if is_stopped and status in (PENDING, RUNNING) else STATUS[status])
        return True

    def finish(self, is_complete: bool) -> bool:
        for trial in self.run.trials():
            self.send_trial(trial.trial_id, is_stopped=not is_complete)
        parent = self.runs[None].info.run_id
        if entries_in(self.run.path / "report"):
            with fetched(self.run.path / "report") as report:
                self.client.log_artifacts(parent, str(report), "report")
        for name in ("experiment.json", "sweep.json"):
            self.client.log_text(parent, redact(read_text(self.run.path / name)), name)
        self._send_data(None, str(self.run.settings.get("data.source", "")))
        # Only now do all trials have runs.
        self._log(None, tags={"mlflow.note.content": self._note(), "run_folder": str(self.run.path)})
        self._set_status(None, "FINISHED" if is_complete else "KILLED")
        return True

    def abandon(self, is_removed: bool) -> None:
        if is_removed:
            self.client.delete_run(self.runs[None].info.run_id)
        else:
            self._set_status(None, "KILLED")

    def comparison(self, most: int) -> str:
        """Runs side by side: parallel coordinates, scatter, box and contour plots, and every parameter and metric."""
        trials = [run for trial, run in self.runs.items() if trial is not None]
        trials.sort(key=lambda run: str(run.info.run_name))
        chosen = {"runs": [run.info.run_id for run in trials[:most]], "experiments": [self.experiment_id]}
        return "#/compare-runs?" + _query({name: json.dumps(ids) for name, ids in chosen.items()})

    def page(self) -> str:
        """The sweep's own run, whose description leads to the others: short, however many trials there are."""
        return f"#/experiments/{self.experiment_id}/runs/{self.runs[None].info.run_id}?" + _query({})

    def charts(self) -> str:
        """The sweep's trials without their parent, the best by a metric first, with a chart of each metric by epoch."""
        wanted = {
            "searchFilter": f"{self.filter} AND tags.`{TRIAL_TAG}` != ''",
            "orderByKey": f"metrics.`{in_mlflow(f'best/{self.select_by}')}`",
            "orderByAsc": "false",
            "compareRunsMode": "CHART",
        }
        return f"#/experiments/{self.experiment_id}/runs?" + _query(wanted)

    def _create(self, trial_id: str | None, name: str, tags: Mapping[str, str], began: int | None = None) -> Run:
        all_tags = {SWEEP_TAG: self.sweep_id, **tags}
        if trial_id is not None:
            all_tags |= {TRIAL_TAG: trial_id, PARENT_TAG: self.runs[None].info.run_id}
        shown = {key: cut(redact(value), MAX_TAG) for key, value in all_tags.items()}
        run = self.client.create_run(self.experiment_id, start_time=began, run_name=name, tags=shown)
        self.statuses[trial_id] = run.info.status
        return run

    def _note(self) -> str:
        """The text of the parent run's page: links to two pages with all trials, the command, and the run folder."""
        pages = f"[Curves, best trial first]({self.charts()}) · [Trials side by side]({self.comparison(MAX_IN_NOTE)})"
        space = "\n".join(f"- `{path}`: {spec}" for path, spec in (self.info.get("space") or {}).items())
        return f"{pages}\n\n`{self.info.get('command', '')}`\n\n{space}\n\nRun folder: `{self.run.path}`"

    def _source_tags(self) -> dict[str, str]:
        code = {key: str(value) for key, value in (self.info.get("code") or {}).items()}
        commit, command = code.pop("git_commit", "unknown"), str(self.info.get("command", ""))
        # The script that the command runs: MLflow shows what follows a source's last slash.
        script = next((word for word in _words(command) if word.endswith(".py")), command)
        return {
            "mlflow.source.name": script,
            "mlflow.source.type": "LOCAL",
            "mlflow.source.git.commit": commit,
            "mlflow.user": user_name(),
            "git_commit": commit,
            **{f"version.{package}": version for package, version in code.items()},
        }

    def _trial_tags(self, content: Mapping[str, Any]) -> dict[str, str]:
        varied = {path: str(value) for path, value in content["overrides"].items()}
        tags = {OVERRIDES_TAG: json.dumps(content["overrides"]), FORMAT_TAG: str(content["format"])}
        return {**varied, **tags, **self._source_tags()}

    def _add_params(self, trial_id: str | None, settings: Mapping[str, Any]) -> None:
        sent = self.runs[trial_id].data.params
        # As they would be typed on the command line, so that MLflow's comparison shows each on one line.
        typed = {path: as_typed(value) for path, value in settings.items() if path not in sent}
        as_json = partial(json.dumps, ensure_ascii=False, default=str)
        missing = {path: value if isinstance(value, str) else as_json(value) for path, value in typed.items()}
        if missing:
            self._log(trial_id, params=missing)

    def _send_epochs(self, trial: TrialFolder) -> None:
        """What an epoch measured is `validation/...`, so that one name is one number, beside `best/...` and `test/...`.

        The best epoch so far is left out: as a metric, `best_epoch` says that a trial's result has been sent.
        """
        sent = int(self.runs[trial.trial_id].data.tags.get(EPOCHS_TAG, 0))
        # The selecting metric first: MLflow's comparison opens with the first metric of a run.
        first = summary_name(self.select_by) or in_mlflow(f"validation/{self.select_by}")
        for row in trial.epochs_after(sent):
            numbers = tracked(row.numbers)
            numbers = {**({first: numbers[first]} if first in numbers else {}), **numbers}
            epoch = int(row["epoch"])
            tags = {EPOCHS_TAG: str(epoch)}
            self._log(trial.trial_id, numbers, epoch=epoch, tags=tags, time_seconds=row.get("time"))

    def _send_result(self, trial: TrialFolder) -> None:
        if not trial.is_finished or "best_epoch" in self.runs[trial.trial_id].data.metrics:
            return
        result = trial.result()
        final = {f"best/{name}": value for name, value in (result.get("val") or {}).items()}
        final |= {f"test/{name}": value for name, value in (result.get("test") or {}).items()}
        best, rows = int(result["best_epoch"]), trial.epochs()
        ended = rows[-1].get("time") if rows else None
        self._send_files(trial)
        # Last: as a metric, `best_epoch` says that a trial's result has been sent.
        self._log(trial.trial_id, {**tracked(final), "best_epoch": best}, epoch=best, time_seconds=ended)

    def _send_files(self, trial: TrialFolder) -> None:
        """A finished trial's files: all numbers including constants, its settings, and each test query's scores if stored."""
        run_id = self.runs[trial.trial_id].info.run_id
        for name in (METRICS_FILE, RESULT_FILE):
            self.client.log_text(run_id, redact(read_text(trial.folder / name)), name)
        settings = self.run.settings_of(trial.describe()["overrides"])
        self.client.log_text(run_id, redact(json.dumps(settings, indent=1, default=str)), "settings.json")
        if file_exists(trial.folder / TEST_SCORES):
            with fetched(trial.folder / TEST_SCORES) as scores:
                self.client.log_artifact(run_id, str(scores), TEST_SCORES.split("/")[0])

    def _send_data(self, trial_id: str | None, source: str) -> None:
        """The data set of a trial, or those of the sweep, as MLflow's Dataset, with name and digest; and in tags of the sweep's
        own run.
        """
        from mlflow.entities import Dataset, DatasetInput, InputTag

        # Known once the data is prepared, which is after the sweep's own run is made.
        info = self.run.info
        tags = {f"data.{key}": str(value) for key, value in (info.get("data") or {}).items()}
        if not tags.items() <= self.runs[None].data.tags.items():
            self._log(None, tags=tags)
        sets = hashes_of(info)
        # By the names of `record_data`: a folder's own, or its path if another one has that name too.
        path = source.rstrip("/").replace(",", " ")
        own = [name for name in (path, path.rpartition("/")[2]) if name in sets]
        if trial_id is not None and own:
            sets = {own[0]: sets[own[0]]}
        inputs = [
            DatasetInput(
                Dataset(cut(redact(name), MAX_NAME), digest[:MAX_DIGEST], "local", json.dumps({"uri": redact(source)})),
                [InputTag("mlflow.data.context", "training")],
            )
            for name, digest in sets.items()
        ]
        if inputs:
            self.client.log_inputs(self.runs[trial_id].info.run_id, datasets=inputs)

    def _set_status(self, trial_id: str | None, status: str) -> None:
        if self.statuses[trial_id] == status:
            return
        run_id = self.runs[trial_id].info.run_id
        if status in ("FINISHED", "FAILED", "KILLED"):
            ended = _times(self.run.trial(trial_id))[1] if trial_id in self.sent_later else None
            self.client.set_terminated(run_id, status, end_time=ended)
        else:
            self.client.update_run(run_id, status=status)
        self.statuses[trial_id] = status

    def _log(self, trial_id: str | None, metrics: Mapping[str, Any] | None = None, **rest: Any) -> None:
        """`log_batches` to the run of a trial or of the sweep, and update its `data`."""
        run = self.runs[trial_id]
        log_batches(self.client, run.info.run_id, metrics or {}, **rest)
        run.data.metrics.update(metrics or {})
        run.data.params.update(rest.get("params", {}))
        run.data.tags.update(rest.get("tags", {}))


def _times(trial: TrialFolder) -> tuple[int | None, int | None]:
    """When the first epoch of a trial began and the last one ended (ms); None without an epoch, or if it has no time."""
    rows = trial.epochs()
    if not rows or "time" not in rows[0]:
        return None, None
    return int(1000 * (rows[0]["time"] - (train_seconds(rows[:1]) or 0))), int(1000 * rows[-1]["time"])


def _params(settings: Mapping[str, Any], varied: Mapping[str, Any]) -> dict[str, Any]:
    """A trial's parameters: its settings and the names of choices that it varies. The settings of a part that is chosen by its
    name follow from the name and are left out, unless they are varied too: MLflow's parallel plot opens on the first parameters
    that differ, and would show them instead of what the sweep varies. The trial's settings.json has all settings.
    """
    chosen = [
        f"{path}."
        for path, name in varied.items()
        if isinstance(name, str) and any(other.startswith(f"{path}.") for other in settings)
    ]
    follows = {path for path in settings if path.startswith(tuple(chosen))}
    return {path: value for path, value in {**settings, **varied}.items() if path not in follows - varied.keys()}


def log_batches(
    client: MlflowClient,
    run_id: str,
    metrics: Mapping[Any, Any],
    *,
    epoch: int = 0,
    params: Mapping[str, str] | None = None,
    tags: Mapping[str, str] | None = None,
    time_seconds: float | None = None,
) -> None:
    """Send batches to a run. The tags are in the last one, so that a tag that counts sent metrics is never too large."""
    from mlflow.entities import Metric, Param, RunTag

    room = MAX_METRICS - MAX_PARAMS - MAX_TAGS
    milliseconds = int(1000 * (time.time() if time_seconds is None else time_seconds))
    all_metrics = [
        Metric(name, float(value) if math.isfinite(value) else math.nan, milliseconds, epoch)
        for name, value in metrics.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    all_params = [Param(name, cut(redact(value), MAX_PARAM)) for name, value in (params or {}).items()]
    all_tags = [RunTag(name, cut(redact(value), MAX_TAG)) for name, value in (tags or {}).items()]
    while len(all_metrics) > room or len(all_params) > MAX_PARAMS:
        client.log_batch(run_id, metrics=all_metrics[:room], params=all_params[:MAX_PARAMS])
        all_metrics, all_params = all_metrics[room:], all_params[MAX_PARAMS:]
    client.log_batch(run_id, metrics=all_metrics, params=all_params, tags=all_tags)


def _words(command: str) -> list[str]:
    """The words of a command. One that was fetched may have been cut by MLflow, within quotation marks."""
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()


def _query(parts: dict[str, str]) -> str:
    # Without the last part a page shows itself in its mode for language-model applications.
    return urlencode({**parts, "workflowType": "machine_learning"}, quote_via=quote)


def _sweep_id(folder: Location) -> str:
    """The id of a sweep in MLflow, created once and stored in the run folder, so that the folder can be moved."""
    path, run = folder / "tracking.json", RunFolder.open(folder)
    recorded = run.info.get("sweep_id")
    if file_exists(path):
        sweep_id = str(read_json(path)["sweep_id"])
    else:
        # It is used in the filters of MLflow's search, between quotation marks.
        # It is the name of a folder where the sweep is fetched: no dot at its beginning, and not too long.
        readable = re.sub(r"[^A-Za-z0-9._-]+", "-", folder.name).lstrip(".")[:MAX_READABLE]
        sweep_id = recorded or f"{readable}-{uuid.uuid4().hex[:8]}"
        write_json(path, {"sweep_id": sweep_id})
    if recorded != sweep_id:
        # Twice, as a folder that lost it would be a second sweep in MLflow.
        run.update_info(sweep_id=sweep_id)
    return sweep_id
