"""The captions' vectors of a data set that is joined from several data sets of vectors."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ray_atr.common.settings import refuse
from ray_atr.common.storage import remove_folder
from ray_atr.data.caption_vectors import GIVEN, PART, CaptionVectors, clip_width, open_caption_vectors
from ray_atr.workshop.importing.vector_import import write_caption_vectors

SAME_CAPTION = 0.02
"""Largest distance between two vectors of one caption, relative to their length. Rounding and the rest of a batch move them."""


def require_one_encoder(folders: Mapping[str, str]) -> None:
    """ValueError unless these data sets of vectors, by name, can be from one encoder: their widths are equal, and a caption that
    is in several of them has nearly the same vector in each.
    """
    sets = dict(zip(folders, _captions_of([Path(folder) for folder in folders.values()]), strict=True))
    widths = {name: (clip_width(folders[name]), of_set.width) for name, of_set in sets.items()}
    if len(set(widths.values())) > 1:
        got = "; ".join(f"{name}: clips {clips}, captions {texts}" for name, (clips, texts) in widths.items())
        raise refuse("sets", got, "vectors of one encoder, so of the same widths")
    for (name, first), (other, second) in itertools.combinations(sets.items(), 2):
        rows = first.rows_of_keys(second.keys)
        shared = np.flatnonzero(rows >= 0)
        for start in range(0, len(shared), PART):
            part = shared[start : start + PART]
            wanted = first.vectors(rows[part])
            distance = np.linalg.norm(second.vectors(part) - wanted, axis=1)
            if (distance > SAME_CAPTION * np.linalg.norm(wanted, axis=1)).any():
                got = f"{other} and {name}: a caption that both have has another vector in each"
                raise refuse("sets", got, "vectors of one encoder")


def join_caption_vectors(folders: Sequence[Path], target: Path) -> None:
    """Write the vectors of all captions of these data sets into another one; for a caption in several sets, that of the first."""
    sets = _captions_of(folders)
    keys, width = np.unique(np.concatenate([of_set.keys for of_set in sets])), sets[0].width

    def vectors_of(part: slice) -> NDArray[np.float32]:
        found = np.empty((len(keys[part]), width), np.float32)
        # The first set comes last, and its vectors stay.
        for of_set in reversed(sets):
            rows = of_set.rows_of_keys(keys[part])
            found[rows >= 0] = of_set.vectors(rows[rows >= 0])
        return found

    # A stopped attempt may have left it.
    remove_folder(target / GIVEN)
    write_caption_vectors(target / GIVEN, keys, width, vectors_of)


def _captions_of(folders: Sequence[Path]) -> list[CaptionVectors]:
    return [open_caption_vectors(folder / GIVEN, is_cache=False) for folder in folders]
