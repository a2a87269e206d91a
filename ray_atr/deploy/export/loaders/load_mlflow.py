"""Embeds clips and texts with the MLflow model in this folder, which carries the code of ray_atr. Needs: mlflow, soundfile."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pandas as pd
import soundfile

FOLDER = Path(__file__).resolve().parent
CARRIES_RAY_ATR = True
"""The code of the package is in the model's folder, and is loaded from there."""


@cache
def settings() -> Any:
    """The content of export.json: rate, window, width of the vectors."""
    return json.loads((FOLDER / "export.json").read_text(encoding="utf-8"))


@cache
def model() -> Any:
    """The model; `predict` takes rows of text and language, or of audio."""
    return mlflow.pyfunc.load_model(str(FOLDER / "model"))


def encode_audio(waveforms: Sequence[np.ndarray]) -> np.ndarray:
    """Vectors [N, r] of mono waveforms [S] at the rate that export.json names."""
    files = []
    for waveform in waveforms:
        buffer = io.BytesIO()
        soundfile.write(buffer, waveform, settings()["sample_rate"], format="WAV", subtype="FLOAT")
        files.append(buffer.getvalue())
    return predicted(pd.DataFrame({"audio": files}))


def encode_text(texts: Sequence[str], languages: Sequence[str] = ()) -> np.ndarray:
    """Vectors [M, r] of texts in their languages (ISO 639-3). ValueError for a single text instead of a list."""
    if isinstance(texts, str):
        raise ValueError(f"texts: got {texts!r}; allowed a list of texts with words")
    codes = list(languages) or ["eng"] * len(texts)
    return predicted(pd.DataFrame({"text": list(texts), "language": codes}))


def predicted(rows: pd.DataFrame) -> np.ndarray:
    """Vectors [N, r] of the model's inputs; MLflow refuses a table without rows."""
    return np.asarray(model().predict(rows)) if len(rows) else np.zeros((0, settings()["vector_width"]), np.float32)
