"""Clips and captions as vectors, in the layout that `make_vectors.py` and its likes write, and wrong captions for them."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from make_vectors import COLUMNS, write_set
from numpy.typing import NDArray

from ray_atr.cli import main as ray_atr
from ray_atr.data.noise import Noise, assign_captions
from ray_atr.objectives.correspondence.cross_fit import Pairs


class PairSet(NamedTuple):
    """N clips with a caption in each of K languages.

    audio [N, D] and text [M, E] are vectors, text_row [N, K] the captions' rows: equal captions have one row. `tables` are
    each clip's rows of pairs.csv, and `languages` [K] theirs.
    """

    audio: NDArray[np.float32]
    text: NDArray[np.float32]
    text_row: NDArray[np.int64]
    tables: list[list[dict[str, str]]]
    languages: tuple[str, ...]

    @property
    def captions(self) -> list[str]:
        """Each clip's in the first language."""
        return [rows[0]["caption"] for rows in self.tables]

    def subset(self, chosen: NDArray[np.int64]) -> PairSet:
        """The clips at these places, in their order; the captions' vectors stay."""
        tables = [self.tables[one] for one in chosen]
        return self._replace(audio=self.audio[chosen], text_row=self.text_row[chosen], tables=tables)


def read_set(folder: Path) -> PairSet:
    """The set of audio.npy, text.npy and pairs.csv, in which the captions of a clip follow each other."""
    tables: dict[str, list[dict[str, str]]] = {}
    with (folder / "pairs.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            tables.setdefault(row["audio_row"], []).append(row)
    audio, text = (np.load(folder / f"{name}.npy").astype(np.float32) for name in ("audio", "text"))
    text_row = np.array([[int(row["text_row"]) for row in rows] for rows in tables.values()])
    languages = tuple(row["language"] for row in next(iter(tables.values())))
    return PairSet(audio[[int(row) for row in tables]], text, text_row, list(tables.values()), languages)


def write_splits(clips: PairSet, split_of: Callable[[dict[str, str]], str], file: Path) -> None:
    """The set's table of pairs with other splits."""
    rows = ({**row, "split": split_of(row)} for of_clip in clips.tables for row in of_clip)
    write_set(([row[column] for column in COLUMNS] for row in rows), file)


def prepare(vectors: Path, table: Path, data: Path) -> None:
    """Make the data set of these vectors and this table of pairs."""
    files = ["--audio", str(vectors / "audio.npy"), "--text", str(vectors / "text.npy")]
    ray_atr("prepare", "vectors", arguments=[*files, "--table", str(table), "--out", str(data)])


def owners(kind: str, ratio: float, captions: Sequence[str], K: int, seed: int) -> NDArray[np.int64]:
    """The clip whose caption each clip has, [N, 1], or [N, K] for kinds in which a clip's K captions differ (`apart`: three)."""
    if kind == "apart":
        each = [owners("pair", part * ratio, captions, 1, 3 * seed + k) for k, part in enumerate((0, 0.25, 1))]
        return np.concatenate(each, axis=1)
    ids = [f"{row:05d}" for row in range(len(captions))]
    slots, languages = (K if kind == "caption" else 1), (K if kind == "language" else 1)
    noise = Noise(
        ratio=ratio, kind="pair" if kind == "caption" else kind, unit="caption" if kind == "caption" else "clip"
    )
    counts = np.full((len(ids), languages), slots)
    assigned = assign_captions(ids, counts, [f"language {k}" for k in range(languages)], noise, seed, lambda: captions)
    return assigned.owner.reshape(len(ids), -1)


def paired(found: PairSet, owner: NDArray[np.int64]) -> tuple[Pairs, NDArray[np.bool_]]:
    """The clips with the captions of clips [N, k] in the first k languages, and which of the N k captions are wrong."""
    clip, column = np.divmod(np.arange(owner.size), owner.shape[1])
    assigned = found.text_row[owner.ravel(), column]
    # Captions are wrong if they say something else.
    is_wrong = assigned != found.text_row[clip, column]
    return Pairs(found.audio, found.text[assigned], clip, column.astype(str), assigned.astype(str)), is_wrong
