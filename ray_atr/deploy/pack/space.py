"""Inputs of a pack: the space's audio vectors, captions of them, and the space's own vectors of these captions.

Shapes: N clips, M captions (rows of the table), D width of the space.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ray_atr.common import sampling
from ray_atr.common.language_codes import ENGLISH, normalise, require_language
from ray_atr.common.settings import counted, refuse
from ray_atr.data.schema import check_split
from ray_atr.deploy.index.layout import INDEX_FILE, VECTORS, check_files, read_index_manifest
from ray_atr.workshop.importing.sources.read_table import read_table
from ray_atr.workshop.importing.sources.source import ListedClip, captions_of, cell_of
from ray_atr.workshop.importing.vector_import import clip_of_row, read_vectors, row_number

Vectors = NDArray[np.float32]
SHARES = {"val": 0.1, "test": 0.1}
"""Shares of the clips for validation and test if a table has no column split."""


@dataclass(frozen=True)
class PairedCaption:
    """A row of the table: a caption in a language, its clip, and its row among the space's text vectors."""

    audio_row: int
    caption: str
    language: str
    split: str
    clip_id: str
    label: str = ""
    text_row: int | None = None


@dataclass(frozen=True)
class ForeignSpace:
    """Audio vectors [N, D] and text vectors [.., D] of unit norm, and the captions of the audio; `model`: index fingerprint."""

    audio: Vectors
    pairs: list[PairedCaption]
    text: Vectors | None = None
    model: str = ""

    @property
    def languages(self) -> list[str]:
        """Languages of the captions, English first."""
        return sorted({pair.language for pair in self.pairs}, key=lambda code: (code != ENGLISH, code))

    def text_of(self) -> dict[tuple[str, str], Vectors]:
        """(caption, language) -> the space's own vector of it, if it has one."""
        if self.text is None:
            return {}
        return {
            (pair.caption, pair.language): self.text[pair.text_row] for pair in self.pairs if pair.text_row is not None
        }


def read_space(
    space: str, captions: str, space_text: str | None = None, *, language: str = ENGLISH, seed: int = 0
) -> ForeignSpace:
    """The space and its pairs. ValueError names the file and the row that are wrong."""
    audio, model = _audio_of(space)
    pairs = _pairs(captions, len(audio), require_language(language).code)
    if not any(pair.split for pair in pairs):
        pairs = _drawn_splits(pairs, seed)
    if space_text is None:
        # A column text_row would number vectors that were not given.
        return ForeignSpace(audio, [replace(pair, text_row=None) for pair in pairs], model=model)
    text = unit_rows(read_vectors(space_text, "--space-text"), f"--space-text: {space_text}")
    if text.shape[1] != audio.shape[1]:
        raise refuse("--space-text", f"vectors of {text.shape[1]} numbers", f"{audio.shape[1]}, as --space has")
    return ForeignSpace(audio, place_text_rows(pairs, len(text)), text, model)


def unit_rows(vectors: Vectors, place: str) -> Vectors:
    """The rows divided by their norms. ValueError for a row of zeros."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    if len(bad := np.flatnonzero(norms[:, 0] == 0)):
        raise refuse(f"{place}, row {bad[0]}", "zeros", "a vector that has a direction")
    return (vectors / norms).astype(np.float32)


def _audio_of(space: str) -> tuple[Vectors, str]:
    """The audio vectors of a file, or of an index with its model's fingerprint."""
    folder = Path(space)
    if not (folder / INDEX_FILE).is_file():
        return unit_rows(read_vectors(space, "--space"), f"--space: {space}"), ""
    manifest = read_index_manifest(folder)
    if manifest.distance != "cosine":
        raise refuse("--space", f"an index by the {manifest.distance} distance", "one that compares by cosine")
    check_files(folder, manifest, [VECTORS])
    vectors = read_vectors(f"{folder / str(manifest.state) / VECTORS}::vector", "--space")
    return unit_rows(vectors, f"--space: {space}"), manifest.model


def _pairs(table: str, N: int, language: str) -> list[PairedCaption]:
    pairs = []
    clips: dict[int, ListedClip] = {}
    owners: dict[str, ListedClip] = {}
    for at, row in read_table(table, required=["audio_row", "caption"]):
        texts = captions_of(row, at)
        if len(texts) != 1:
            raise refuse(f"{at}, caption", f"{len(texts)} captions", "one caption a row")
        number = row_number(row["audio_row"], N, f"{at}, audio_row", "--space")
        code, split, place = (cell_of(row, name) for name in ("language", "split", "text_row"))
        # Checked now; the data set that is made of the pairs checks it only after all captions are encoded.
        check_split(split or "train", f"{at}, split")
        clip = clip_of_row(ListedClip(number, cell_of(row, "clip_id"), split or "train", at), clips, owners)
        pairs.append(
            PairedCaption(
                audio_row=number,
                # As it will be in the data set that is made of the pairs.
                caption=normalise(texts[0]),
                language=require_language(code).code if code else language,
                split=split,
                clip_id=clip.given_id,
                label=cell_of(row, "label"),
                text_row=row_number(place, None, f"{at}, text_row", "--space-text") if place else None,
            )
        )
    if not pairs:
        raise ValueError(f"{table}: no pairs")
    return pairs


def place_text_rows(pairs: Sequence[PairedCaption], count: int) -> list[PairedCaption]:
    """The pairs with their rows among `count` text vectors: by the column text_row, else one per row, or per English row."""
    if any(pair.text_row is not None for pair in pairs):
        for pair in pairs:
            if pair.text_row is not None and pair.text_row >= count:
                raise refuse("text_row", pair.text_row, f"a row of --space-text, 0 to {count - 1}")
        return list(pairs)
    english = [number for number, pair in enumerate(pairs) if pair.language == ENGLISH]
    if count == len(pairs):
        return [replace(pair, text_row=number) for number, pair in enumerate(pairs)]
    if count == len(english):
        rows: Mapping[int, int] = {number: row for row, number in enumerate(english)}
        return [replace(pair, text_row=rows.get(number)) for number, pair in enumerate(pairs)]
    allowed = f"{len(pairs)}, one for each row of the table, {len(english)}, one for each row in English, or a column text_row"
    raise refuse("--space-text", counted(count, "row"), allowed)


def _drawn_splits(pairs: Sequence[PairedCaption], seed: int) -> list[PairedCaption]:
    """The pairs with splits drawn by clip: a tenth each for validation and test."""
    ids = list(dict.fromkeys(pair.clip_id for pair in pairs))
    drawn = dict(zip(ids, sampling.uniform(ids, seed, "pack splits"), strict=True))

    def split_of(place: float) -> str:
        return "val" if place < SHARES["val"] else "test" if place < sum(SHARES.values()) else "train"

    return [replace(pair, split=split_of(drawn[pair.clip_id])) for pair in pairs]
