"""Embeds clips and texts with the SentenceTransformer in this folder. Needs: sentence-transformers[audio]. No remote code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer

FOLDER = Path(__file__).resolve().parent


@cache
def settings() -> Any:
    """The content of export.json: rate, window, width of the vectors."""
    return json.loads((FOLDER / "export.json").read_text(encoding="utf-8"))


@cache
def model() -> Any:
    """The model; `similarity` compares its vectors."""
    return SentenceTransformer(str(FOLDER), device="cpu")


def encode_audio(waveforms: Sequence[np.ndarray], batch_size: int = 16) -> np.ndarray:
    """Vectors [N, r] of mono waveforms [S] at the rate that export.json names, no longer than its clip_seconds."""
    rate = settings()["sample_rate"]
    # A bare {"array", "sampling_rate"} fails in a model with routes.
    clips = [{"audio": {"array": samples, "sampling_rate": rate}} for samples in one_window(waveforms)]
    return encoded(clips, batch_size)


def encode_text(texts: Sequence[str], languages: Sequence[str] = (), batch_size: int = 64) -> np.ndarray:
    """Vectors [M, r] of texts in any of the model's languages; `languages` is not used."""
    return encoded(listed(texts), batch_size)


def encoded(inputs: list[Any], batch_size: int) -> np.ndarray:
    """Vectors [N, r] of the library's inputs."""
    vectors = np.asarray(model().encode(inputs, batch_size=batch_size, show_progress_bar=False))
    return vectors.reshape(len(inputs), settings()["vector_width"])  # of none it has no width


def one_window(waveforms: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The waveforms in 32 bits. ValueError for anything but a mono waveform [S] of finite floats, and for one longer than a
    window, of which the library would use a part.
    """
    longest = round(settings()["clip_seconds"] * settings()["sample_rate"])
    arrays = [np.asarray(waveform) for waveform in waveforms]
    with np.errstate(over="ignore"):  # what is beyond 32 bits becomes infinite, and is refused
        samples = [array.astype(np.float32) for array in arrays]
    for number, (given, read) in enumerate(zip(arrays, samples, strict=True)):
        if given.ndim != 1 or given.dtype.kind != "f" or not 0 < len(given) <= longest or not np.isfinite(read).all():
            allowed = f"a mono waveform [S] of finite floats, full scale 1, S at most {longest}"
            raise ValueError(f"clip {number}: got {given.dtype} of shape {list(given.shape)}; allowed {allowed}")
    return samples


def listed(texts: Sequence[str]) -> list[str]:
    """The texts. ValueError for a single text instead of a list, and for a text without words."""
    if wrong := [texts] if isinstance(texts, str) else [text for text in texts if not text.strip()]:
        raise ValueError(f"texts: got {wrong[0]!r}; allowed a list of texts with words")
    return list(texts)
