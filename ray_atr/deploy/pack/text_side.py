"""The text encoder of a pack: a frozen tower of this package, that of a saved retriever, or a file of vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ray_atr.common.override import override
from ray_atr.common.progress import Echo, silent, spaced
from ray_atr.common.settings import nearest, refuse
from ray_atr.data.caption_vectors import Caption
from ray_atr.deploy.pack.space import PairedCaption
from ray_atr.models.adaptation import merge_updates
from ray_atr.models.model_settings import ModelSettings
from ray_atr.models.retriever import Retriever
from ray_atr.models.text import TEXT_TOWERS
from ray_atr.models.tower import TextSettings, TextTower, checkpoint_of
from ray_atr.models.vectors import TextVectors, TextVectorsTower, encode_captions
from ray_atr.models.words import WithWords
from ray_atr.training.run_folder import saved_retriever
from ray_atr.workshop.importing.vector_import import read_vectors

Vectors = NDArray[np.float32]
TOGETHER = 2048
"""Captions that are encoded between two reports of progress; among them, those of similar length are padded together."""
SUFFIXES = (".npy", ".safetensors", ".parquet")


@dataclass(frozen=True)
class TextSide:
    """A frozen text tower with its settings, and the vectors [M, W] of a table's captions."""

    settings: TextSettings
    tower: TextTower
    vectors: Vectors


def encode_table(
    place: str, pairs: Sequence[PairedCaption], settings: Mapping[str, str] | None = None, *, echo: Echo = silent
) -> TextSide:
    """The captions' vectors by the text encoder at a place: NAME, NAME:CHECKPOINT, a saved retriever, or a file of vectors.

    `settings` are those of the tower by their paths (`model.text.num_layers`), which only a tower that is built here has. A file
    of vectors has one per row of the table, in order; such a pack takes vectors instead of texts. `echo` gets the number of
    encoded captions.
    """
    settings, file = settings or {}, place.partition("::")[0]
    if Path(file).suffix in SUFFIXES:
        _require_none(settings, place)
        vectors = read_vectors(place, "--text")
        if len(vectors) != len(pairs):
            raise refuse("--text", f"{len(vectors)} vectors", f"{len(pairs)}, one for each row of the table")
        return TextSide(TextVectors(), TextVectorsTower(None, vectors.shape[1]), _one_a_caption(vectors, pairs))
    tower_settings, tower = _tower(place, settings)
    captions = list(dict.fromkeys((pair.caption, pair.language) for pair in pairs))
    vector_of: dict[Caption, Vectors] = {}
    say = spaced(echo)
    for start in range(0, len(captions), TOGETHER):
        part = captions[start : start + TOGETHER]
        vector_of |= zip(part, encode_captions(tower, part).numpy(), strict=True)
        say(f"{len(vector_of):,} of {len(captions):,} captions encoded", len(vector_of), len(captions))
    return TextSide(tower_settings, tower, np.stack([vector_of[pair.caption, pair.language] for pair in pairs]))


def _require_none(settings: Mapping[str, str], place: str) -> None:
    """ValueError for a setting of an encoder that is used as it was saved."""
    for path, value in settings.items():
        raise refuse(f"--{path}", value, f"nothing: the encoder of {place} is used as it was saved")


def _one_a_caption(vectors: Vectors, pairs: Sequence[PairedCaption]) -> Vectors:
    """The vectors with one vector per caption text, since batches change the last digits. ValueError if they differ by more."""
    first: dict[tuple[str, str], int] = {}
    first_row = np.array([first.setdefault((pair.caption, pair.language), row) for row, pair in enumerate(pairs)])
    same = np.isclose(vectors, vectors[first_row], rtol=1e-3, atol=1e-3).all(axis=1)
    if len(bad := np.flatnonzero(~same)):
        row = int(bad[0])
        raise refuse(
            f"--text, row {row}", "another vector", f"that of row {first_row[row]}, which has the same caption"
        )
    return vectors[first_row]


def _tower(place: str, settings: Mapping[str, str]) -> tuple[TextSettings, TextTower]:
    """The settings of a text tower, as a frozen one, and the tower in evaluation mode."""
    name, _, checkpoint = place.partition(":")
    if name not in TEXT_TOWERS or name == "vectors":
        if not Path(place).exists() and "://" not in place:
            names = ", ".join(known for known in TEXT_TOWERS if known != "vectors")
            raise refuse(
                "--text", place, f"{names}, a saved retriever, or a file of vectors", nearest(name, TEXT_TOWERS)
            )
        retriever = Retriever.from_pretrained(str(saved_retriever(place, "--text")))
        _require_none(settings, place)
        chosen_tower, tower = retriever.settings.text, retriever.text_tower
        if isinstance(tower, WithWords):
            tower = tower.encoder
        if isinstance(tower, TextVectorsTower):
            raise refuse("--text", place, "a retriever whose text tower encodes texts itself")
        merge_updates(tower, chosen_tower.adapt)
    else:
        given = {"model.text.checkpoint": checkpoint} if checkpoint else {}
        chosen = {path.removeprefix("model."): value for path, value in {**given, **settings}.items()}
        chosen_tower = override(ModelSettings(), {"text": name, **chosen}).text
        if not checkpoint_of(chosen_tower):
            raise refuse("--text", place, f"weights that were trained: {name}:FOLDER")
        tower = chosen_tower.build()
    adapt = replace(chosen_tower.adapt, is_frozen=True, lora_rank=0, frozen_layers=0)
    return replace(chosen_tower, adapt=adapt), tower.eval().requires_grad_(False)
