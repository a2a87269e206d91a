"""Small audio files for the importers' tests."""

from __future__ import annotations

import csv
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


def make_esc50(root: Path, folds: tuple[int, ...] = (1, 2, 3, 4), suffix: str = ".wav", per_fold: int = 4) -> Path:
    """The layout of ESC-50: audio/ and meta/esc50.csv, two classes in turn."""
    (root / "audio").mkdir(parents=True)
    (root / "meta").mkdir()
    classes = ("dog", "crying_baby")
    with open(root / "meta" / "esc50.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["filename", "fold", "target", "category", "esc10", "src_file", "take"])
        for fold in folds:
            for index in range(per_fold):
                name = f"{fold}-{1000 + index}-A-{index % 2}.wav"
                write_tone((root / "audio" / name).with_suffix(suffix), pitch=100.0 * fold + 10 * index)
                rows.writerow([name, fold, index % 2, classes[index % 2], "True", 1000 + index, "A"])
    return root
