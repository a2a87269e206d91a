"""The only `.pt` of a folder, in which others publish a whole retriever, and whose layout it has."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from ray_atr.models.weights import SETTINGS_FILE, is_clap, read_checkpoint

ML_CLAP_PARTS = ("audio_encoder.model.", "text_encoder.model.", "audio_proj.", "text_proj.")
"""Beginnings of the names in ML-CLAP's checkpoints."""


def lone_file(folder: str | os.PathLike[str]) -> Path | None:
    """The only `.pt` of a local folder that holds neither a saved retriever nor a model in the layout of transformers."""
    place = Path(folder).expanduser()
    if not place.is_dir() or (place / SETTINGS_FILE).is_file() or is_clap(place):
        return None
    if any(place.glob("*.safetensors*")) or any(place.glob("pytorch_model*")):
        return None
    files = list(place.glob("*.pt"))
    return files[0] if len(files) == 1 else None


def is_of_ml_clap(file: Path) -> bool:
    """Whether a `.pt` has the names of ML-CLAP's checkpoints; a file that cannot be read has none."""
    known = file.stat()
    return _has_parts(file, known.st_mtime_ns, known.st_size)


@lru_cache(maxsize=4)
def _has_parts(file: Path, _changed: int, _size: int) -> bool:
    try:
        names = read_checkpoint(file, "model folder", is_mapped=True)
    except ValueError:
        # What reads it for good says why it cannot.
        return False
    return all(any(name.startswith(part) for name in names) for part in ML_CLAP_PARTS)


def count_parts(names: Iterable[str], prefix: str) -> int:
    """How many numbered parts of a model there are behind a prefix of its tensors' names."""
    return len({name.removeprefix(prefix).split(".")[0] for name in names if name.startswith(prefix)})
