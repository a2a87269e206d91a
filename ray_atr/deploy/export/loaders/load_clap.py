"""Embeds clips and texts with the ClapModel in this folder. Needs: transformers, torch. No remote code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoFeatureExtractor, AutoModel, AutoTokenizer

FOLDER = Path(__file__).resolve().parent


@cache
def settings() -> Any:
    """The content of export.json: rate, window, width of the vectors."""
    return json.loads((FOLDER / "export.json").read_text(encoding="utf-8"))


@cache
def parts() -> tuple[Any, Any, Any]:
    """The model, the feature extractor and the tokeniser."""
    model = AutoModel.from_pretrained(FOLDER).eval()
    return model, AutoFeatureExtractor.from_pretrained(FOLDER), AutoTokenizer.from_pretrained(FOLDER)


@torch.inference_mode()
def encode_audio(waveforms: Sequence[np.ndarray], batch_size: int = 16) -> np.ndarray:
    """Unit vectors [N, D] of mono waveforms [S] at the extractor's rate, no longer than its window."""
    model, extractor, _ = parts()
    samples = one_window(waveforms)
    embedded = [torch.zeros(0, model.config.projection_dim)]
    for start in range(0, len(samples), batch_size):
        batch = samples[start : start + batch_size]
        inputs = extractor(batch, sampling_rate=extractor.sampling_rate, return_tensors="pt")
        embedded.append(model.get_audio_features(**inputs).pooler_output)
    return torch.cat(embedded).numpy()


@torch.inference_mode()
def encode_text(texts: Sequence[str], languages: Sequence[str] = (), batch_size: int = 64) -> np.ndarray:
    """Unit vectors [M, D] of texts in any of the model's languages; `languages` is not used."""
    model, _, tokenizer = parts()
    texts = listed(texts)
    embedded = [torch.zeros(0, model.config.projection_dim)]
    for start in range(0, len(texts), batch_size):
        inputs = tokenizer(texts[start : start + batch_size], padding=True, truncation=True, return_tensors="pt")
        embedded.append(model.get_text_features(inputs["input_ids"], inputs["attention_mask"]).pooler_output)
    return torch.cat(embedded).numpy()


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
