"""A retriever as an MLflow model, which `mlflow.pyfunc.load_model` loads anywhere."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.models import ModelSignature
from mlflow.pyfunc import PythonModel
from mlflow.types import ColSpec, DataType, Schema, TensorSpec

from ray_atr.common.settings import refuse
from ray_atr.models.model_settings import ModelSettings
from ray_atr.models.retriever import Retriever

PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "soundfile",
    "soxr",
    "pydantic",
    "scipy",
    "universal_pathlib",
    "xxhash",
)
"""Packages that the packed code imports to embed."""
MODEL_CODE = Path(__file__).with_name("mlflow_code.py")


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
        """Vectors [N, r] float32, in the order of the rows. MlflowException, with the ValueError's message, for an input that is
        refused, such as a row with both text and audio, or neither. A server answers other exceptions with a traceback.
        """
        try:
            return self._vectors(model_input)
        except ValueError as error:
            raise MlflowException.invalid_parameter_value(str(error)) from None

    def _vectors(self, model_input: pd.DataFrame) -> np.ndarray:
        texts, clips = _column(model_input, "text"), _column(model_input, "audio")
        languages = [language or "eng" for language in _column(model_input, "language")]
        for row, (text, clip) in enumerate(zip(texts, clips, strict=True)):
            if (text is None) == (clip is None):
                got = "neither text nor audio" if text is None else "text and audio"
                raise refuse(f"row {row}", got, "one of them: a text, or the bytes of an audio file (base64 in JSON)")
        result = np.zeros((len(model_input), self.retriever.vector_width), dtype=np.float32)
        of_text = [row for row, text in enumerate(texts) if text is not None]
        of_audio = [row for row, clip in enumerate(clips) if clip is not None]
        if of_text:
            encoded = self.retriever.encode_text([texts[row] for row in of_text], [languages[row] for row in of_text])
            result[of_text] = encoded.numpy()
        if of_audio:
            result[of_audio] = self.retriever.encode_audio([clips[row] for row in of_audio]).numpy()
        return result


def hush_mlflow() -> None:
    """Suppress MLflow's lines about each file that it copies and about missing examples."""
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    for logger in ("mlflow.utils.uv_utils", "mlflow.utils.environment", "mlflow.pyfunc", "mlflow.store.model_registry"):
        logging.getLogger(logger).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", "(?s).*input example was not provided")


def model_parts(weights: Path) -> dict[str, Any]:
    """Arguments of `mlflow.pyfunc.log_model` and `save_model` for a folder's retriever: code, weights, packages, signature.
    ValueError for a folder that MLflow does not find.
    """
    require_path(weights)
    retriever = Retriever.from_pretrained(weights)
    columns = {"text": DataType.string, "language": DataType.string, "audio": DataType.binary}
    inputs = Schema([ColSpec(kind, name, required=False) for name, kind in columns.items()])
    outputs = Schema([TensorSpec(np.dtype(np.float32), (-1, retriever.vector_width))])
    return {
        "python_model": str(MODEL_CODE),
        "artifacts": {"retriever": str(weights)},
        "code_paths": [str(Path(__file__).parents[1])],
        "pip_requirements": requirements_of(retriever.settings),
        "signature": ModelSignature(inputs=inputs, outputs=outputs),
    }


def requirements_of(settings: ModelSettings) -> list[str]:
    """The packages that a retriever of these settings imports, pinned to the installed versions."""
    towers, packages = (settings.audio, settings.text), list(PACKAGES)
    if any(tower.adapt.lora_rank for tower in towers):
        packages.append("peft")
    if any(tower.name == "sentence_transformers" for tower in towers):
        packages.append("sentence-transformers")
    # Without a local label, as of torch 2.9.0+cpu: the index that MLflow installs from does not have it.
    return [f"{package}=={importlib.metadata.version(package).partition('+')[0]}" for package in packages]


def require_path(folder: Path) -> None:
    """ValueError for a folder whose path MLflow decodes as a URL's, and so looks for elsewhere."""
    if set("%#?") & set(str(folder.absolute())):
        raise refuse("MLflow model", str(folder), "a path without %, # and ?, which MLflow decodes")


def _column(frame: pd.DataFrame, name: str) -> list[Any]:
    """A column's values, with None for every kind of missing value; all None if the column is missing."""
    if name not in frame:
        return [None] * len(frame)
    return [value if isinstance(value, str | bytes) and value else None for value in frame[name]]
