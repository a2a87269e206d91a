"""The captions' vectors of a data set that is joined from several data sets of vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    widths = {
        name: (clip_width(folder), open_caption_vectors(Path(folder) / GIVEN, is_cache=False).width)
        for name, folder in folders.items()
    }
    if len(set(widths.values())) > 1:
        got = "; ".join(f"{name}: clips {clips}, captions {texts}" for name, (clips, texts) in widths.items())
        raise refuse("sets", got, "vectors of one encoder, so of the same widths")
    names, merged = list(folders), _merged([Path(folder) for folder in folders.values()])
    for number, of_set in enumerate(merged.sets):
        for start in range(0, len(of_set), PART):
            rows = np.arange(start, min(start + PART, len(of_set)))
            own, first = of_set.vectors(rows), merged.vectors(np.searchsorted(merged.keys, of_set.keys[rows]))
            distance = np.linalg.norm(own - first, axis=1)
            if len(bad := np.flatnonzero(distance > SAME_CAPTION * np.linalg.norm(first, axis=1))):
                other = names[merged.set_of[np.searchsorted(merged.keys, of_set.keys[rows[bad[0]]])]]
                got = f"{names[number]} and {other}: a caption that both have has another vector in each"
                raise refuse("sets", got, "vectors of one encoder")


def join_caption_vectors(folders: Sequence[Path], target: Path) -> None:
    """Write the vectors of all captions of these data sets into another one; for a caption in several sets, that of the first."""
    merged = _merged(folders)
    # A stopped attempt may have left it.
    remove_folder(target / GIVEN)
    width = merged.sets[0].width
    write_caption_vectors(
        target / GIVEN, merged.keys, width, lambda part: merged.vectors(np.arange(len(merged.keys))[part])
    )


@dataclass(frozen=True)
class _Merged:
    """The captions of several data sets of vectors: the sorted keys of all, and the set and the row that each is read from."""

    sets: list[CaptionVectors]
    keys: NDArray[np.int64]
    set_of: NDArray[np.int64]
    row_of: NDArray[np.int64]

    def vectors(self, numbers: NDArray[np.int64]) -> NDArray[np.float32]:
        """The vectors [n, W] of the keys with these numbers [n]."""
        found = np.empty((len(numbers), self.sets[0].width), np.float32)
        for number, of_set in enumerate(self.sets):
            chosen = self.set_of[numbers] == number
            found[chosen] = of_set.vectors(self.row_of[numbers[chosen]])
        return found


def _merged(folders: Sequence[Path]) -> _Merged:
    sets = [open_caption_vectors(folder / GIVEN, is_cache=False) for folder in folders]
    set_of = np.repeat(np.arange(len(sets)), [len(of_set) for of_set in sets])
    row_of = np.concatenate([np.arange(len(of_set)) for of_set in sets])
    # The first place of each key, so the first set that has it.
    keys, first = np.unique(np.concatenate([of_set.keys for of_set in sets]), return_index=True)
    return _Merged(sets, keys, set_of[first], row_of[first])
