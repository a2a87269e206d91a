"""The retriever of a trial in MLflow's registry, as a model of its run."""

from __future__ import annotations

import os

import mlflow

from ray_atr.common.storage import Location, entries_in, fetched
from ray_atr.models.mlflow_model import hush_mlflow, model_parts
from ray_atr.sweep.tracking.store import ADDRESS
from ray_atr.sweep.tracking.tracker import upload
from ray_atr.training.run_folder import BEST, RunFolder, TrialFolder


def best_trial(run: RunFolder) -> TrialFolder:
    """The finished trial with the highest metric of `evaluation.select_by` on validation. ValueError if none has it."""
    metric = run.select_by
    values = {trial: trial.result()["val"].get(metric) for trial in run.trials() if trial.is_finished}
    values = {trial: float(value) for trial, value in values.items() if value is not None}
    if not values:
        raise ValueError(f"{run.path}: no finished trial has {metric} on validation")
    return max(values, key=lambda trial: values[trial])


def register_model(run_folder: Location | str, *, name: str | None = None) -> str:
    """Log the retriever of the best trial on validation to its MLflow run as a model, with signature and code; the model's URI.

    With `name`, a new version of that registered model is made. What MLflow lacks of the run folder is sent first. Raises
    ValueError for a trial without a saved retriever, ConnectionError if MLflow is away.
    """
    run = RunFolder.open(run_folder)
    trial = best_trial(run)
    if not entries_in(trial.folder / BEST):
        lacks = "no saved retriever; the trial has not finished an epoch with a validation"
        raise ValueError(f"{trial.folder / BEST}: {lacks}")
    tracker = upload(run.path)
    run_id = tracker.trial_run_id(trial.trial_id)
    if run_id is None:
        raise ConnectionError(f"MLflow at {tracker.store}: cannot be reached")
    address = os.environ.get(ADDRESS)
    mlflow.set_tracking_uri(tracker.store.uri)
    # MLflow writes it into the environment as well, where the store of the next run folder would be read from.
    os.environ.pop(ADDRESS, None)
    if address is not None:
        os.environ[ADDRESS] = address
    hush_mlflow()
    client = mlflow.MlflowClient()
    ended = client.get_run(run_id).info.end_time
    try:
        with fetched(trial.folder / BEST) as weights, mlflow.start_run(run_id=run_id):
            logged = mlflow.pyfunc.log_model(name="retriever", registered_model_name=name, **model_parts(weights))
    finally:
        # MLflow has ended the run again, as if it had trained until now, and after an error as if the training had failed.
        client.set_terminated(run_id, "FINISHED", end_time=ended)
    return str(logged.model_uri)
