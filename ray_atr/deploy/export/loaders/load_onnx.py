"""Embeds clips and texts with the graphs in this folder. Needs: onnxruntime, tokenizers, numpy; no torch."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

FOLDER = Path(__file__).resolve().parent
TEXT = "text.onnx"
"""`text.int8.onnx` is smaller, if it was exported."""


@cache
def settings() -> Any:
    """The content of export.json: rate, window, how texts are tokenised."""
    return json.loads((FOLDER / "export.json").read_text(encoding="utf-8"))


@cache
def session(name: str) -> onnxruntime.InferenceSession:
    """The session of one file."""
    return onnxruntime.InferenceSession(FOLDER / name, providers=["CPUExecutionProvider"])


def windows(waveform: np.ndarray) -> list[np.ndarray]:
    """A clip as windows side by side; the last ends with the clip. Up to 1% longer than one window is one window."""
    length = round(settings()["clip_seconds"] * settings()["sample_rate"])
    if len(waveform) <= length or settings()["windows"] == "cut" or len(waveform) - length <= 0.01 * length:
        return [waveform[:length]]
    if settings()["windows"] != "mean" or settings()["distance"] != "cosine":
        raise ValueError(f"clip of {len(waveform)} samples: this model's graph takes one window of {length}; cut it")
    cut = [waveform[start : start + length] for start in range(0, len(waveform) - length + 1, length)]
    rest = len(waveform) - len(cut) * length
    return [*cut, waveform[-length:]] if rest > 0.01 * length else cut


def encode_audio(waveforms: Sequence[np.ndarray], batch_size: int = 16) -> np.ndarray:
    """Vectors [N, r] of mono waveforms [S] of floats with full scale 1, at the rate that export.json names. ValueError for
    anything else, and for a clip longer than a window if `windows` cannot pool them. A long clip is encoded in runs of
    `batch_size` windows, as each takes memory.
    """
    vectors_of_clips = np.zeros((len(waveforms), settings()["vector_width"]), np.float32)
    for number, given in enumerate(map(np.asarray, waveforms)):
        with np.errstate(over="ignore"):  # what is beyond 32 bits becomes infinite, and is refused
            samples = given.astype(np.float32)
        if given.ndim != 1 or given.dtype.kind != "f" or not len(given) or not np.isfinite(samples).all():
            allowed = "a mono waveform [S] of finite floats, full scale 1"
            raise ValueError(f"clip {number}: got {given.dtype} of shape {list(given.shape)}; allowed {allowed}")
        parts = windows(samples)
        runs = [parts[start : start + batch_size] for start in range(0, len(parts), batch_size)]
        vectors = np.concatenate([session("audio.onnx").run(None, {"waveforms": np.stack(run)})[0] for run in runs])
        pooled = vectors.mean(axis=0)
        vectors_of_clips[number] = vectors[0] if len(parts) == 1 else pooled / np.linalg.norm(pooled)
    return vectors_of_clips


def encode_text(texts: Sequence[str], languages: Sequence[str] = (), batch_size: int = 64) -> np.ndarray:
    """Vectors [M, r] of texts, with their languages (ISO 639) if the tokeniser has language tags. ValueError for a language
    without a tag, and for a text without words.
    """
    how = settings()["tokeniser"]
    tokenizer = tokeniser()
    # Without a script or region, as in `sr-Cyrl`.
    codes = [re.split("[-_]", code.strip())[0].lower() for code in languages] or ["eng"] * len(texts)
    if wrong := [texts] if isinstance(texts, str) else [text for text in texts if not text.strip()]:
        raise ValueError(f"texts: got {wrong[0]!r}; allowed a list of texts with words")
    if how["prefix_of"] and (unknown := {*codes} - {*how["prefix_of"]}):
        raise ValueError(f"languages: got {sorted(unknown)}; allowed codes of `prefix_of` in export.json")
    encodings = tokenizer.encode_batch(list(texts), add_special_tokens=how["add_special_tokens"])
    ids = [
        [*how["prefix"], *how["prefix_of"].get(code, []), *encoded.ids, *how["suffix"]]
        for code, encoded in zip(codes, encodings, strict=True)
    ]
    embedded = [np.zeros((0, settings()["vector_width"]), np.float32)]
    for start in range(0, len(ids), batch_size):
        batch = ids[start : start + batch_size]
        padded = np.full((len(batch), max(map(len, batch))), how["pad"], np.int64)
        mask = np.zeros(padded.shape, bool)
        for row, tokens in enumerate(batch):
            padded[row, : len(tokens)] = tokens
            mask[row, : len(tokens)] = True
        embedded.append(session(TEXT).run(None, {"token_ids": padded, "token_mask": mask})[0])
    return np.concatenate(embedded)


@cache
def tokeniser() -> Tokenizer:
    """The tokeniser, which cuts long texts."""
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(settings()["tokeniser"]["max_tokens"])
    return tokenizer
