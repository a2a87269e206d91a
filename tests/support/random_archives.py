"""Random retrievers, and archives of random sounds."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch

from ray_atr.models.retriever import Retriever
from tests.support.archives import save_retriever
from tests.support.random_settings import random_towers

FORMATS = (
    ("wav", "WAV", "PCM_16"), ("wav", "WAV", "FLOAT"), ("flac", "FLAC", "PCM_16"), ("ogg", "OGG", "VORBIS"),
    ("mp3", "MP3", "MPEG_LAYER_III"), ("opus", "OGG", "OPUS"), ("aiff", "AIFF", "PCM_16"), ("caf", "CAF", "PCM_16"),
)  # fmt: skip
"""Suffix of a file, and its format and coding as libsndfile calls them."""
NAMES = (
    "rain",
    "ünï 犬",
    "a/rain",
    "a b",
    "a-b",
    "a/b/c",
    "UP",
    "e\u0301",
    "é",
    "10",
    "2",
    "[x]",
    "a.b",
    "new\nline",
    "%41",
    "a",
)
SECONDS = (1e-4, 0.01, 0.1, 0.25, 0.2526, 0.5, 0.51, 0.7, 1.02, 2.0)
"""Also one sample, and a little more than a window or two."""
BROKEN = (b"", b"no sound")
PROJECTIONS, INTERACTIONS, WINDOWS = (
    ("linear", "two_linear", "mlp", "wide_mlp"),
    ("global", "late"),
    ("cut", "mean", "max", "attention"),
)
METRICS = ("euclidean", "euclidean", "diagonal", "mahalanobis", "factored")


def random_retriever(home: Path, generator: np.random.Generator) -> Retriever:
    """A retriever of random towers and settings, with random weights, in `home/model`; the towers' checkpoints are in
    `home/towers`.
    """
    changes = {path.removeprefix("model."): value for path, value in random_towers(home / "towers", generator).items()}

    def drawn(values: tuple[Any, ...]) -> Any:
        return values[generator.integers(len(values))]

    retriever = save_retriever(
        home / "model",
        seed=int(generator.integers(1000)),
        metric=drawn(METRICS),
        clip_seconds=drawn((0.25, 0.5, 1.0)),
        projection=drawn(PROJECTIONS),
        interaction=drawn(INTERACTIONS),
        windows=drawn(WINDOWS),
        embedding_width=drawn((2, 8, 33)),
        **changes,
    )
    with torch.no_grad():
        for parameter in (retriever.learned.metric, retriever.window_query):
            if parameter is not None:
                parameter.add_(torch.from_numpy(0.3 * generator.standard_normal(tuple(parameter.shape))))
        # As training has changed them.
        retriever.learned.after_step()
    retriever.save_pretrained(home / "model")
    return Retriever.from_pretrained(home / "model")


def random_sound(generator: np.random.Generator) -> tuple[str, bytes]:
    """The suffix and the bytes of a file: of any format, rate, length and number of channels, and now and then broken."""
    suffix, kind, coding = FORMATS[generator.integers(len(FORMATS))]
    rate = int(generator.choice([8_000, 16_000, 48_000] if coding == "OPUS" else [16_000, 44_100, 48_000]))
    length = max(1, int(rate * SECONDS[generator.integers(len(SECONDS))]))
    wave = 0.4 * np.sin(2 * np.pi * generator.choice([110, 300, 900, 2500]) / rate * np.arange(length))
    noise = 0.05 * generator.standard_normal((length, generator.integers(1, 3)))
    samples = (wave[:, None] + noise) * generator.choice([0, 1, 1, 1, 4])
    written = io.BytesIO()
    soundfile.write(written, samples, rate, format=kind, subtype=coding)
    content = written.getvalue()
    return suffix, generator.choice([*BROKEN, content[: len(content) // 2]]) if generator.random() < 0.1 else content


def write_random_sounds(folder: Path, count: int, generator: np.random.Generator) -> None:
    """At most so many new or changed files, some of them copies."""
    for _ in range(count):
        suffix, content = random_sound(generator)
        name = NAMES[generator.integers(len(NAMES))]
        for place in (f"{name}.{suffix}", f"copies/{generator.integers(4)}.{suffix}")[: generator.integers(1, 3)]:
            file = folder / place
            # A file may stand where a folder is to be, or the other way round.
            with contextlib.suppress(OSError):
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)


def change_random_sounds(folder: Path, generator: np.random.Generator) -> None:
    """Remove, replace and move some files, and write some new ones."""
    for number, file in enumerate(sorted(path for path in folder.rglob("*") if path.is_file())):
        kind = generator.random()
        if kind < 0.2:
            file.unlink()
        elif kind < 0.4:
            file.write_bytes(random_sound(generator)[1])
        elif kind < 0.5:
            file.rename(file.with_name(f"moved {number}{file.suffix}"))
    write_random_sounds(folder, 3, generator)
