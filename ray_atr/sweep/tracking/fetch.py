"""Run folders from MLflow, so that sweeps that others tracked on a server can be reported like local ones."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray_atr.common import storage
from ray_atr.common.formats import FORMATS
from ray_atr.common.override import flatten
from ray_atr.common.settings import nearest
from ray_atr.metrics.epoch_report import EpochReport
from ray_atr.sweep.tracking import tracker
from ray_atr.sweep.tracking.names import SUMMARY, from_mlflow
from ray_atr.sweep.tracking.store import (
    COMMAND_TAG,
    ERROR_TAG,
    FORMAT_TAG,
    OVERRIDES_TAG,
    STOPPED_TAG,
    SWEEP_TAG,
    TRIAL_TAG,
    Store,
    all_runs,
    brief,
)
from ray_atr.training import run_folder
from ray_atr.training.experiment import stored_experiment

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

STATUS = {theirs: ours for ours, theirs in tracker.STATUS.items()} | {"KILLED": run_folder.PENDING}
"""Our status for MLflow's; trials that were stopped early have a tag."""

INFO = {"format", "name", "space", "varied", "seeds", "data", "code", "command"}
"""The entries of a fetched `sweep.json`; that of a run on this machine has more."""


def fetch_experiment(name: str, store: Store, out: storage.Location) -> list[storage.Location]:
    """Write each sweep of an MLflow experiment as a run folder under `out`; the folders, oldest first.

    A folder that was fetched before gets what is new; any other existing folder, also one that was resumed, is not changed.
    Checkpoints are not fetched. Raises ValueError if the store has no such experiment, or no sweep in it; ConnectionError if it
    cannot be reached.
    """
    from mlflow.exceptions import MlflowException

    try:
        client = store.connect(is_patient=True)
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            names = [known.name for known in client.search_experiments()]
            raise ValueError(f"{store}: no experiment {name}; it has {', '.join(names)}{nearest(name, names)}")
        runs = all_runs(client, experiment.experiment_id)
        parents = [run for run in runs if SWEEP_TAG in run.data.tags and TRIAL_TAG not in run.data.tags]
        if not parents:
            raise ValueError(f"{store}: experiment {name} holds no sweep of ray_atr")
        return [_write(client, parent, runs, out) for parent in sorted(parents, key=lambda run: run.info.start_time)]
    except MlflowException as error:
        raise ConnectionError(f"MLflow at {store}: {brief(error)}") from error


def _write(client: MlflowClient, parent: Run, runs: list[Run], out: storage.Location) -> storage.Location:
    sweep_id = storage.safe_name(parent.data.tags[SWEEP_TAG], f"MLflow tag {SWEEP_TAG}")
    folder = out / sweep_id
    if storage.file_exists(folder / "sweep.json") and not storage.read_json(folder / "sweep.json").keys() <= INFO:
        return folder
    trials = [run for run in runs if run.data.tags.get(SWEEP_TAG) == sweep_id and TRIAL_TAG in run.data.tags]
    for trial in trials:
        _write_trial(client, trial, folder)
    storage.make_folder(folder / "trials")
    storage.write_json(folder / "experiment.json", _settings(parent.data.params))
    storage.write_json(folder / "tracking.json", {"sweep_id": sweep_id})
    # Written last: a folder with it is complete.
    storage.write_json(folder / "sweep.json", _sweep_info(parent, trials))
    return folder


def _sweep_info(parent: Run, trials: list[Run]) -> dict[str, Any]:
    tags = parent.data.tags
    overrides = [json.loads(trial.data.tags[OVERRIDES_TAG]) for trial in trials]
    return {
        "format": FORMATS["run"],
        "name": parent.info.run_name,
        "space": {},
        "varied": list(dict.fromkeys(path for of_trial in overrides for path in of_trial)),
        "seeds": sorted({of_trial["seed"] for of_trial in overrides if "seed" in of_trial}),
        "data": {name: tags[f"data.{name}"] for name in ("name", "hash", "set") if f"data.{name}" in tags},
        "code": {
            "git_commit": tags.get("git_commit", "unknown"),
            **{tag.removeprefix("version."): value for tag, value in tags.items() if tag.startswith("version.")},
        },
        "command": tags.get(COMMAND_TAG, ""),
    }


def _write_trial(client: MlflowClient, run: Run, folder: storage.Location) -> None:
    overrides = json.loads(run.data.tags[OVERRIDES_TAG])
    trial_id = storage.safe_name(run.data.tags[TRIAL_TAG], f"MLflow tag {TRIAL_TAG}")
    trial = folder / "trials" / trial_id
    if all(storage.file_exists(trial / name) for name in (run_folder.RESULT_FILE, "trial.json")):
        return  # fetched when it was finished
    rows: dict[int, EpochReport] = {}
    for in_store in run.data.metrics:
        name = from_mlflow(in_store)
        kind, slash, _ = name.partition("/")
        # Without a slash it says that a result was sent; the result is a file too.
        if slash and kind not in (SUMMARY, "best", "test"):
            for point in client.get_metric_history(run.info.run_id, in_store):
                row = rows.setdefault(point.step, EpochReport(epoch=point.step, time=point.timestamp / 1000))
                row[name.removeprefix("validation/")] = point.value
    epochs = [rows[step] for step in sorted(rows)]
    storage.make_folder(trial)
    storage.write_lines(trial / run_folder.METRICS_FILE, ({**row, "trial_id": trial_id} for row in epochs))
    if "best_epoch" in run.data.metrics:
        # Sent as files: the result has numbers that are no metrics of MLflow, and the scores are of each query.
        scores = run_folder.TEST_SCORES
        sent = {file.path for file in client.list_artifacts(run.info.run_id, scores.split("/")[0])}
        for name in (*(sent & {scores}), run_folder.RESULT_FILE):
            storage.make_folder((trial / name).parent)
            with tempfile.TemporaryDirectory() as aside:
                file = client.download_artifacts(run.info.run_id, name, aside)
                storage.write_bytes(trial / name, Path(file).read_bytes())
    content = {
        "trial_id": trial_id,
        "name": run_folder.trial_name(overrides),
        "overrides": overrides,
        "format": int(run.data.tags.get(FORMAT_TAG, 0)),
        "status": run_folder.STOPPED if STOPPED_TAG in run.data.tags else STATUS[run.info.status],
        "error": run.data.tags.get(ERROR_TAG),
        "train_seconds": run_folder.train_seconds(epochs),
    }
    storage.write_json(trial / "trial.json", content)


def _settings(params: Mapping[str, str]) -> dict[str, Any]:
    """The settings tree, which was sent as texts, converted to its types."""
    try:
        return flatten(stored_experiment({path: None if text == "null" else text for path, text in params.items()}))
    except ValueError:
        # Tracked by another version with other settings: they stay texts.
        return dict(params)
