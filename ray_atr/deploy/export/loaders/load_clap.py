"""Embeds clips and texts with the ClapModel in this folder. Needs: transformers, torch. No remote code."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoFeatureExtractor, AutoModel, AutoTokenizer

FOLDER = Path(__file__).resolve().parent


@cache
def parts() -> tuple[Any, Any, Any]:
    """The model, the feature extractor and the tokeniser."""
    model = AutoModel.from_pretrained(FOLDER).eval()
    return model, AutoFeatureExtractor.from_pretrained(FOLDER), AutoTokenizer.from_pretrained(FOLDER)


@torch.inference_mode()
def encode_audio(waveforms: Sequence[np.ndarray], batch_size: int = 16) -> np.ndarray:
    """Unit vectors [N, D] of mono waveforms [S] at the extractor's rate; it draws a crop of those longer than its window."""
    model, extractor, _ = parts()
    embedded = [torch.zeros(0, model.config.projection_dim)]
    for start in range(0, len(waveforms), batch_size):
        batch = [np.asarray(waveform, np.float32) for waveform in waveforms[start : start + batch_size]]
        inputs = extractor(batch, sampling_rate=extractor.sampling_rate, return_tensors="pt")
        embedded.append(model.get_audio_features(**inputs).pooler_output)
    return torch.cat(embedded).numpy()


@torch.inference_mode()
def encode_text(texts: Sequence[str], languages: Sequence[str] = (), batch_size: int = 64) -> np.ndarray:
    """Unit vectors [M, D] of texts in any of the model's languages; it is not told which."""
    model, _, tokenizer = parts()
    embedded = [torch.zeros(0, model.config.projection_dim)]
    for start in range(0, len(texts), batch_size):
        inputs = tokenizer(list(texts[start : start + batch_size]), padding=True, truncation=True, return_tensors="pt")
        embedded.append(model.get_text_features(inputs["input_ids"], inputs["attention_mask"]).pooler_output)
    return torch.cat(embedded).numpy()
