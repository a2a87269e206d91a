"""Small audio files for the importers' tests."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import soundfile

FORMATS = {".wav": "WAV", ".flac": "FLAC", ".ogg": "OGG", ".mp3": "MP3"}


def tone(seconds: float = 0.1, suffix: str = ".wav", pitch: float = 440.0, sample_rate: int = 16_000) -> bytes:
    """An encoded sine."""
    samples = 0.1 * np.sin(2 * np.pi * pitch * np.arange(round(seconds * sample_rate)) / sample_rate)
    buffer = io.BytesIO()
    soundfile.write(buffer, samples.astype(np.float32), sample_rate, format=FORMATS[suffix])
    return buffer.getvalue()


def write_tone(path: Path, seconds: float = 0.1, pitch: float = 440.0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tone(seconds, path.suffix, pitch))
    return path
