"""The retriever of a trial as an MLflow model: loaded anywhere with `mlflow.pyfunc.load_model`, and entered in the registry."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import warnings
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
from mlflow.models import ModelSignature
from mlflow.pyfunc import PythonModel
from mlflow.types import ColSpec, DataType, Schema, TensorSpec

from ray_atr.common.runtime import PACKAGE
from ray_atr.common.settings import refuse
from ray_atr.common.storage import Location, entries_in, fetched
from ray_atr.models.retriever import Retriever
from ray_atr.sweep.tracking.store import ADDRESS
from ray_atr.sweep.tracking.tracker import upload
from ray_atr.training.run_folder import BEST, RunFolder, TrialFolder

PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "soundfile",
    "soxr",
    "pydantic",
    "scipy",
)
"""What the packed code imports to embed; the versions are those it was trained with."""
MODEL_CODE = Path(__file__).with_name("retriever_model.py")


class RetrieverModel(PythonModel):
    """Rows of texts or audio files -> vectors [N, r].

    A row has `text` (and `language`, an ISO 639-3 code, English where it is empty), or `audio`, the bytes of a WAV, FLAC, OGG
    or MP3 file. The vectors of a text and a clip are compared by their dot product, or if a metric was learned by their Euclidean
    distance (`Retriever.distance`).
    """

    def load_context(self, context: Any) -> None:
        """Load the weights that are stored with the model."""
        self.retriever = Retriever.from_pretrained(context.artifacts["retriever"])

    def predict(self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> np.ndarray:
        """Vectors [N, r] float32, in the order of the rows. ValueError for a row with both or neither of text and audio."""
        texts, clips = _column(model_input, "text"), _column(model_input, "audio")
        languages = [language or "eng" for language in _column(model_input, "language")]
        for row, (text, clip) in enumerate(zip(texts, clips, strict=True)):
            if (text is None) == (clip is None):
                raise refuse(f"row {row}", "text and audio, or neither", "either a text or the bytes of an audio file")
        result = np.zeros((len(model_input), self.retriever.vector_width), dtype=np.float32)
        of_text = [row for row, text in enumerate(texts) if text is not None]
        of_audio = [row for row, clip in enumerate(clips) if clip is not None]
        if of_text:
            encoded = self.retriever.encode_text([texts[row] for row in of_text], [languages[row] for row in of_text])
            result[of_text] = encoded.numpy()
        if of_audio:
            result[of_audio] = self.retriever.encode_audio([clips[row] for row in of_audio]).numpy()
        return result


def signature(width: int) -> ModelSignature:
    """What the model takes and gives: optional columns text, language, audio; vectors [N, r]."""
    columns = {"text": DataType.string, "language": DataType.string, "audio": DataType.binary}
    inputs = Schema([ColSpec(kind, name, required=False) for name, kind in columns.items()])
    return ModelSignature(inputs=inputs, outputs=Schema([TensorSpec(np.dtype(np.float32), (-1, width))]))


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
    # They tell of each file they copy, and warn of missing examples, which mean nothing to who registers.
    for logger in ("mlflow.utils.uv_utils", "mlflow.utils.environment", "mlflow.pyfunc", "mlflow.store.model_registry"):
        logging.getLogger(logger).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", "(?s).*input example was not provided")

    with fetched(trial.folder / BEST) as weights, mlflow.start_run(run_id=run_id):
        logged = mlflow.pyfunc.log_model(name="retriever", registered_model_name=name, **model_parts(weights))
    return str(logged.model_uri)


def model_parts(weights: Path) -> dict[str, Any]:
    """What `mlflow.pyfunc.log_model` and `save_model` take of the retriever in a folder: code, weights, signature, packages."""
    return {
        "python_model": str(MODEL_CODE),
        "artifacts": {"retriever": str(weights)},
        "code_paths": [str(PACKAGE)],
        "pip_requirements": [f"{package}=={importlib.metadata.version(package)}" for package in PACKAGES],
        "signature": signature(Retriever.from_pretrained(weights).vector_width),
    }


def _column(frame: pd.DataFrame, name: str) -> list[Any]:
    """A column's values with None for every kind of absence; all None if the column is missing."""
    if name not in frame:
        return [None] * len(frame)
    return [value if isinstance(value, str | bytes) and value else None for value in frame[name]]
