"""Data sets of vectors that are joined: their captions' vectors, copies of a recording, a training; and sets that do not fit."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ray_atr.common.override import override
from ray_atr.data.caption_vectors import GIVEN, PART, open_caption_vectors, read_given
from ray_atr.data.noise import part_of
from ray_atr.data.shards import Manifest, iterate_rows, read_captions, write_clips
from ray_atr.training.batch import TrainingData
from ray_atr.training.experiment import Experiment
from ray_atr.training.group import WorkerGroup
from ray_atr.training.languages import with_languages
from ray_atr.training.loop import train_trial
from ray_atr.training.recipes import RECIPES
from ray_atr.workshop.importing.check import check_data_set
from ray_atr.workshop.importing.import_options import Join, VectorImport
from ray_atr.workshop.importing.join import join_data_sets
from ray_atr.workshop.importing.vector_import import import_vectors
from tests.support.tiny import prepared_for, tone_clip

WIDTH, CAPTION_WIDTH = 12, 10
SHARED = "rain"
"""The caption of the first clip of both sets."""


def vectors(seed: int, rows: int, width: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)


def imported(folder: Path, name: str, audio: np.ndarray, text: np.ndarray) -> Manifest:
    """A clip and a caption a row: the first six of eight train, then one validates and one tests."""
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "audio.npy", audio)
    np.save(folder / "text.npy", text)
    splits = ["train"] * 6 + ["val", "test"]
    captions = [SHARED, *(f"{name} {row}" for row in range(1, len(audio)))]
    rows = [f"{row},{caption},{splits[row % 8]},c{row}" for row, caption in enumerate(captions)]
    (folder / "pairs.csv").write_text("\n".join(["audio_row,caption,split,clip_id", *rows]))
    files = {"audio": f"{folder}/audio.npy", "text": f"{folder}/text.npy", "table": f"{folder}/pairs.csv"}
    return import_vectors(VectorImport(**files, name=name), folder / "set")


def two_sets(folder: Path) -> tuple[str, str]:
    """`sea`, and `wood`, of which two training clips are in `sea`'s test split: c1 as it is, c2 from half precision."""
    sea_audio, sea_text = vectors(0, 24, WIDTH), vectors(1, 24, CAPTION_WIDTH)
    wood_audio, wood_text = vectors(2, 24, WIDTH), vectors(3, 24, CAPTION_WIDTH)
    wood_audio[1] = sea_audio[7]
    wood_audio[2] = sea_audio[15].astype(np.float16)
    # The same caption, but for the last digits.
    wood_text[0] = sea_text[0] + 1e-4
    sets = {"sea": (sea_audio, sea_text), "wood": (wood_audio, wood_text)}
    return tuple(imported(folder / name, name, *arrays).folder for name, arrays in sets.items())  # type: ignore[return-value]


def test_the_joined_set_has_the_vectors_of_all_its_captions(tmp_path: Path) -> None:
    places = two_sets(tmp_path)
    joined = join_data_sets(Join(sets=places, ray="never", leaks="keep"), tmp_path / "joined")
    held = open_caption_vectors(Path(joined.folder) / GIVEN, is_cache=False)
    assert len(held) == 24 + 24 - 1
    for name, place in zip(("sea", "wood"), places, strict=True):
        rows = [
            row for split in joined.splits for row in iterate_rows(joined, split) if row["clip_id"].startswith(name)
        ]
        captions = [(row["captions"]["eng"][0], "eng") for row in rows]
        own = open_caption_vectors(Path(place) / GIVEN, is_cache=False)
        found, expected = held.vectors(held.rows(captions)), own.vectors(own.rows(captions))
        is_shared = np.array([caption == (SHARED, "eng") for caption in captions])
        np.testing.assert_array_equal(found[~is_shared], expected[~is_shared])
        np.testing.assert_allclose(found[is_shared], expected[is_shared], atol=2e-4)
        assert np.array_equal(found[is_shared], expected[is_shared]) == (name == "sea"), "the first set's"


@pytest.mark.slow
def test_a_caption_of_another_part_of_the_file_is_found(tmp_path: Path) -> None:
    """More captions than one file of vectors holds, in one set and in both together."""
    rows = {"sea": PART + 1, "wood": 24}
    text = {name: vectors(seed, count, CAPTION_WIDTH) for seed, (name, count) in enumerate(rows.items())}
    text["wood"][0] = text["sea"][0]
    sets = [imported(tmp_path / name, name, vectors(9, len(own), WIDTH), own).folder for name, own in text.items()]
    joined = join_data_sets(Join(sets=tuple(sets), ray="never", leaks="keep"), tmp_path / "joined")
    assert len(list((Path(joined.folder) / GIVEN).glob("part-*.npy"))) == 2
    captions = [(clip.captions["eng"][0], "eng") for clip in read_captions(joined, "train")]
    _, found = read_given(joined, "train", captions)
    named = {row: caption.split() for row, (caption, _) in enumerate(captions) if caption != SHARED}
    assert {name for name, _ in named.values()} == set(rows)
    np.testing.assert_array_equal(found[list(named)], [text[name][int(number)] for name, number in named.values()])


@pytest.mark.parametrize(
    ("recordings", "left_out"),
    [("sound", {"wood/c1": "sea/c7", "wood/c2": "sea/c15"}), ("bytes", {"wood/c1": "sea/c7"})],
)
def test_a_recording_whose_vector_is_nearly_that_of_a_test_clip_is_left_out(
    tmp_path: Path, recordings: str, left_out: dict[str, str]
) -> None:
    joined = join_data_sets(Join(sets=two_sets(tmp_path), ray="never", recordings=recordings), tmp_path / "joined")
    found = {entry.clip_id: entry.reason for entry in joined.skipped}
    assert check_data_set(joined.folder).is_fit
    assert found == {clip_id: f"the recording of {other} (test)" for clip_id, other in left_out.items()}


def test_vectors_that_share_a_direction_are_no_copies(tmp_path: Path) -> None:
    """As those of many encoders do: any two have a cosine above .999."""
    shift = 100.0
    sets = []
    for name, seed in (("sea", 0), ("wood", 2)):
        audio = vectors(seed, 24, WIDTH) + shift
        sets.append(imported(tmp_path / name, name, audio, vectors(seed + 1, 24, CAPTION_WIDTH)).folder)
    with pytest.raises(ValueError, match="a caption that both have has another vector in each"):
        join_data_sets(Join(sets=tuple(sets), ray="never"), tmp_path / "joined")
    audio = vectors(2, 24, WIDTH) + shift
    wood = imported(tmp_path / "same captions", "wood", audio, vectors(1, 24, CAPTION_WIDTH)).folder
    joined = join_data_sets(Join(sets=(sets[0], wood), ray="never"), tmp_path / "joined")
    assert joined.skipped == ()


def test_a_training_has_weights_and_noise_by_set(tmp_path: Path) -> None:
    joined = join_data_sets(Join(sets=two_sets(tmp_path), ray="never"), tmp_path / "joined")
    changes: dict[str, Any] = {
        "data.source": joined.folder,
        "data.weights": "wood=0.5",
        "data.noise.ratio": 0.5,
        "data.noise.parts": "wood",
        "model.embedding_width": 8,
        "train.epochs": 2,
        "train.batch_size": 8,
        "tracking.mlflow": False,
    }
    found = with_languages(override(override(Experiment(), RECIPES["vectors"].values), changes))
    data = TrainingData(found, prepared_for(found, tmp_path / "home"), WorkerGroup())
    num = Counter(part_of(name) for name in data.features.clip_ids)
    assert data.steps_per_epoch == (num["sea"] + round(0.5 * num["wood"])) // 8
    is_own = data.captions.assigned.is_own.all(axis=(1, 2))
    is_wood = np.array([part_of(name) == "wood" for name in data.features.clip_ids])
    assert is_own[~is_wood].all()
    assert not is_own[is_wood].all()
    reports: list[dict[str, float]] = []
    train_trial(found, prepared_for(found, tmp_path / "home"), tmp_path / "run", reports.append, use_ray_data=False)
    assert reports[-1]["test/text_to_audio_in_wood/eng/queries"] == 3


def test_what_is_not_of_one_encoder_is_refused(tmp_path: Path) -> None:
    sea, wood = two_sets(tmp_path)
    wide = imported(tmp_path / "wide", "wide", vectors(0, 24, WIDTH + 1), vectors(1, 24, CAPTION_WIDTH)).folder
    with pytest.raises(
        ValueError, match="sea: clips 12, captions 10; wide: clips 13, captions 10'; allowed vectors of one"
    ):
        join_data_sets(Join(sets=(sea, wide), ray="never"), tmp_path / "out")
    sounds = [replace(tone_clip("train", number, {"eng": ["a tone"]}), source="tones") for number in range(2)]
    tones = write_clips(tmp_path / "tones", sounds, name="tones", licence="").folder
    with pytest.raises(ValueError, match="allowed sets of audio alone, or of vectors alone; of vectors: wood"):
        join_data_sets(Join(sets=(tones, wood), ray="never"), tmp_path / "out")
    with pytest.raises(ValueError, match="allowed a folder on this machine, for sets of vectors"):
        join_data_sets(Join(sets=(sea, wood), ray="never"), "memory://out")
    assert not (tmp_path / "out").exists()
