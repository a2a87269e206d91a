"""Clips and captions as vectors in one layout: what a clip's captions are, and which are wrong."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.support.scripts import load_script

LANGUAGES = ("eng", "deu")
NAMES = ("dog", "rain", "dog")
"""What each of three clips is called: two have the same captions."""


@pytest.fixture(scope="module")
def pair_sets() -> ModuleType:
    # Its sibling, which it imports by name.
    load_script("benchmarks/make_vectors.py")
    return load_script("benchmarks/pair_sets.py")


@pytest.fixture
def folder(tmp_path: Path, pair_sets: ModuleType) -> Path:
    np.save(tmp_path / "audio.npy", np.arange(12.0).reshape(4, 3))
    np.save(tmp_path / "text.npy", np.arange(8.0).reshape(4, 2))
    texts = {("dog", "eng"): 0, ("dog", "deu"): 1, ("rain", "eng"): 2, ("rain", "deu"): 3}
    # The clips' vectors are in another order than the clips.
    rows = [
        [3 - clip, texts[name, language], f"{name} {language}", language, "train", f"clip {clip}", ""]
        for clip, name in enumerate(NAMES)
        for language in LANGUAGES
    ]
    pair_sets.write_set(rows, tmp_path / "pairs.csv")
    return tmp_path


def test_a_set_is_read_in_the_order_of_its_clips(folder: Path, pair_sets: ModuleType) -> None:
    found = pair_sets.read_set(folder)
    assert found.languages == LANGUAGES
    assert found.captions == ["dog eng", "rain eng", "dog eng"]
    assert found.audio[:, 0].tolist() == [9, 6, 3]
    assert found.text_row.tolist() == [[0, 1], [2, 3], [0, 1]]


def test_a_caption_of_another_clip_that_says_the_same_is_not_wrong(folder: Path, pair_sets: ModuleType) -> None:
    pairs, is_wrong = pair_sets.paired(pair_sets.read_set(folder), np.array([[2, 0], [1, 0], [1, 2]]))
    assert is_wrong.tolist() == [False, False, False, True, True, False]
    assert pairs.clip.tolist() == [0, 0, 1, 1, 2, 2]
    assert pairs.language.tolist() == ["0", "1"] * 3
    assert pairs.text[:, 0].tolist() == [0, 2, 4, 2, 4, 2]
    assert (pairs.key == np.array(["0", "1", "2", "1", "2", "1"])).all()


def test_wrong_captions_are_drawn_as_trainings_draw_them(pair_sets: ModuleType) -> None:
    captions = [f"sound {number}" for number in range(200)]
    owner = pair_sets.owners("pair", 0.4, captions, 2, 0)
    assert owner.shape == (200, 1)
    assert 0.3 < (owner[:, 0] != np.arange(200)).mean() < 0.5
    by_language = pair_sets.owners("language", 0.4, captions, 2, 0) != np.arange(200)[:, None]
    assert by_language.shape == (200, 2)
    assert not by_language.all(axis=1).any(), "a wrong clip is wrong in one language"
