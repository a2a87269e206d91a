"""What a data set of vectors says of itself."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ray_atr.data.caption_vectors import GIVEN, Caption, open_caption_vectors
from ray_atr.data.features import MANIFEST_FILE
from ray_atr.data.shards import Manifest, iterate_rows, read_manifest
from ray_atr.data.vector_clip import from_bytes, loaded
from ray_atr.settings import refuse


def has_vectors(source: str) -> bool:
    """Whether the folder is a data set whose clips and captions are vectors."""
    return (Path(source) / GIVEN / MANIFEST_FILE).is_file()


def require_vectors(source: str, path: str) -> None:
    """ValueError, naming the setting, unless the folder is a data set whose clips and captions are vectors."""
    if not has_vectors(source):
        raise refuse(path, "vectors", f"with a data set that `ray-atr prepare vectors` made; data.source is {source}")


def clip_width(source: str) -> int:
    """Numbers of a clip's vector. ValueError if the folder is no data set of vectors."""
    require_vectors(source, "model.audio")
    return _first_width(source, read_manifest(source).hash)


@lru_cache(maxsize=16)
def _first_width(source: str, data_hash: str) -> int:
    """The width of the first clip's vector; the import has made sure that all are as wide."""
    manifest = read_manifest(source)
    first = next(iterate_rows(manifest, manifest.splits[0], columns=["audio"]))
    return int(loaded(first["audio"], manifest.name).size)


def read_given(
    manifest: Manifest, split: str, captions: Sequence[Caption]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The vectors of a split's clips [N, W], in its order, and of these captions [M, V], which the data set has."""
    width = clip_width(manifest.folder)
    rows = iterate_rows(manifest, split, columns=["clip_id", "audio"])
    audio = np.stack([from_bytes(row["audio"], width, row["clip_id"]) for row in rows])
    vectors = open_caption_vectors(Path(manifest.folder) / GIVEN, is_cache=False)
    return audio, vectors.vectors(vectors.rows(captions))
