"""A small data set of vectors, and an experiment on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ray_atr.common.override import override
from ray_atr.training.experiment import Experiment
from ray_atr.training.languages import with_languages
from ray_atr.training.recipes import RECIPES

CLIPS, CAPTIONS = 48, 96


def vector_files(folder: Path) -> dict[str, str]:
    """Files of 48 clips' vectors (width 12) and 96 captions' (width 10), two languages a clip, of six kinds of sound."""
    generator = np.random.default_rng(0)
    kinds, words = generator.standard_normal((6, 12)), generator.standard_normal((6, 10))
    folder.mkdir(exist_ok=True)
    audio = kinds[np.arange(CLIPS) % 6] + 0.1 * generator.standard_normal((CLIPS, 12))
    text = words[np.arange(CAPTIONS) // 2 % 6] + 0.1 * generator.standard_normal((CAPTIONS, 10))
    np.save(folder / "audio.npy", audio.astype(np.float32))
    np.save(folder / "text.npy", text.astype(np.float32))
    lines = ["audio_row,caption,language,split,clip_id"]
    for row in range(CLIPS):
        split = "train" if row < 32 else "val" if row < 40 else "test"
        lines += [f"{row},sound {row},eng,{split},clip {row}", f"{row},son {row},fra,{split},clip {row}"]
    (folder / "pairs.csv").write_text("\n".join(lines) + "\n")
    files = {"audio": "audio.npy", "text": "text.npy", "table": "pairs.csv"}
    return {name: str(folder / file) for name, file in files.items()}


def on_vectors(data: Path, **changes: Any) -> Experiment:
    """An experiment of the recipe for vectors, in eight epochs."""
    settings = {
        "data.source": str(data),
        "model.embedding_width": 16,
        "train.epochs": 8,
        "train.batch_size": 8,
        "train.learning_rate": 0.01,
        "tracking.mlflow": False,
    }
    changed = {path.replace("__", "."): value for path, value in changes.items()}
    return with_languages(override(RECIPES["vectors"](), {**settings, **changed}))
