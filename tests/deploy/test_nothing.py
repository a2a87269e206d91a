"""The rule that says nothing is there: fitted on what is there and what is left out, and kept on other texts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ray_atr.common.storage import read_json, write_json
from ray_atr.metrics import nothing
from ray_atr.metrics.calibration import CALIBRATION_FILE, Calibration, fit_calibration
from ray_atr.metrics.nothing import NEAR, PRIOR, LanguageScores, Levels, evidence, fit_levels, means_of_best
from ray_atr.metrics.relevance import Relevance

TEXTS, CLIPS = 400, 120


def drawn(matching: int, seed: int = 0) -> tuple[np.ndarray, Relevance]:
    """Scores [M, N] of texts of which each has so many matching clips: 1.5 spreads above the others."""
    random = np.random.default_rng(seed)
    scores = random.standard_normal((TEXTS, CLIPS))
    clips = np.argsort(random.random(scores.shape), axis=1)[:, :matching]
    scores[np.arange(TEXTS)[:, None], clips] += 1.5
    text = torch.arange(TEXTS).repeat_interleave(matching)
    return scores, Relevance(text=text, clip=torch.from_numpy(clips.ravel()), num_texts=TEXTS, num_clips=CLIPS)


def test_means_of_the_best_are_plain_means() -> None:
    scores = np.array([[1.0, 5, 2, 4, 3, 0], [-np.inf, 7, -np.inf, 1, -np.inf, -np.inf]])
    expected = [[5, 7], [4, 4], [3, 4]]
    assert means_of_best(scores).tolist() == expected


def test_evidence_leaves_out_texts_of_which_nothing_can_be_learned() -> None:
    match = np.array([[False, True], [True, True], [False, False]])
    own, found = evidence(np.array([[0.2, 0.9], [0.5, 0.4], [0.7, 0.1]]), match)
    assert own.tolist() == [0]
    assert found.present[0].tolist() == [0.9]
    assert found.absent[0].tolist() == [0.2]


@pytest.mark.parametrize(("matching", "count"), [(1, 1), (8, 5)])
def test_as_many_answers_count_as_tell_most(matching: int, count: int) -> None:
    scores, relevance = drawn(matching)
    if matching == 1:
        scores[relevance.text.numpy(), relevance.clip.numpy()] += 4
    found = fit_calibration({"eng": scores}, {"eng": relevance}).for_language("eng")
    assert found.nothing_of == count


def test_it_holds_for_other_texts_and_is_stored(tmp_path) -> None:
    calibration = fit_calibration(*({"eng": part} for part in drawn(8)))
    calibration.write(tmp_path)
    read = Calibration.read(tmp_path)
    assert read is not None
    scores, relevance = drawn(8, seed=1)
    match = np.zeros(scores.shape, bool)
    match[relevance.text.numpy(), relevance.clip.numpy()] = True

    def nothing(by: Calibration, values: np.ndarray) -> float:
        return float(np.mean([by.says_nothing(-np.sort(-row), "eng") for row in values]))

    assert 0.02 < nothing(read, scores) < 0.09
    careless = fit_calibration(*({"eng": part} for part in drawn(8)), false_nothing=0.2)
    assert 0.14 < nothing(careless, scores) < 0.26
    assert nothing(read, np.where(match, -9, scores)) > 0.4
    assert read.says_nothing([], "eng")
    assert read.for_language("eng").nothing_below == pytest.approx(read.for_language(None).nothing_below)


def leveled(seed: int) -> tuple[dict[str, np.ndarray], dict[str, Relevance], dict[str, np.ndarray]]:
    """Scores of 60 kinds of texts in six languages, and vectors that tell the kind: each has a level of its own."""
    of_kinds = np.random.default_rng(9)
    level, directions = of_kinds.normal(0, 1.5, 60), of_kinds.standard_normal((60, 32))
    random = np.random.default_rng(seed)
    clips = np.arange(480).reshape(60, 8)
    relevance = Relevance(torch.arange(60).repeat_interleave(8), torch.from_numpy(clips.ravel()), 60, 480)
    scores, vectors = {}, {}
    for code in ("eng", "deu", "fra", "spa", "jpn", "zho"):
        scores[code] = random.standard_normal((60, 480)) + level[:, None]
        scores[code][np.arange(60)[:, None], clips] += 3
        vectors[code] = directions + 0.1 * random.standard_normal((60, 32))
    return scores, dict.fromkeys(scores, relevance), vectors


def test_a_text_is_compared_with_what_texts_near_to_it_have(tmp_path) -> None:
    scores, relevance, vectors = leveled(0)
    fit_calibration(scores, relevance, vectors=vectors, false_nothing=0.1).write(tmp_path)
    read = Calibration.read(tmp_path)
    assert read is not None
    plain = fit_calibration(scores, relevance, false_nothing=0.1)
    new, _, near = leveled(1)
    match = np.zeros((60, 480), bool)
    match[relevance["eng"].text.numpy(), relevance["eng"].clip.numpy()] = True

    def nothing(by: Calibration, *, is_there: bool) -> float:
        kept = {code: values if is_there else np.where(match, -9, values) for code, values in new.items()}
        return float(
            np.mean([by.says_nothing(-np.sort(-row), code, vector)
                     for code, rows in kept.items() for row, vector in zip(rows, near[code], strict=True)])
        )  # fmt: skip

    assert 0.02 < nothing(read, is_there=True) < 0.14
    assert nothing(read, is_there=False) > nothing(plain, is_there=False) + 0.3


def test_levels_are_a_mean_of_near_texts_and_of_all() -> None:
    vectors = np.eye(3, dtype=np.float32)
    levels = Levels(vectors, np.array([[1.0, 2, 6]] * 3))
    # A text of the fit counts once, the others next to nothing, the mean of all (3) as PRIOR texts.
    found = levels.expected(np.array([[0.0, 0, 5], [0, 0, 0]]))
    weight = np.exp(-1 / NEAR)
    expected = (6 + weight * (1 + 2) + PRIOR * 3) / (1 + 2 * weight + PRIOR)
    assert found[:, 0] == pytest.approx(np.full(3, expected))
    assert found[:, 1] == pytest.approx(np.full(3, 3.0))


def test_of_many_texts_some_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, relevance, vectors = leveled(0)
    languages = {code: LanguageScores(scores[code], relevance[code].matrix, vectors[code]) for code in scores}
    every = fit_levels(languages)
    assert every is not None
    monkeypatch.setattr(nothing, "MOST_TEXTS", 50)
    levels = fit_levels(languages)
    assert levels is not None
    assert levels.vectors.shape == (50, 32)
    # Each with its own levels.
    rows = [int(np.flatnonzero((every.vectors == vector).all(axis=1))[0]) for vector in levels.vectors]
    assert rows == sorted(set(rows))
    np.testing.assert_array_equal(levels.levels, every.levels[:, rows])


def test_a_calibration_without_vectors_is_read(tmp_path) -> None:
    scores, relevance = drawn(8)
    fit_calibration({"eng": scores}, {"eng": relevance}).write(tmp_path)
    content = read_json(tmp_path / CALIBRATION_FILE)
    assert "levels" not in content
    content["by_language"]["eng"] |= {"nothing_of": 3, "nothing_below": 0.5}
    write_json(tmp_path / CALIBRATION_FILE, content)
    read = Calibration.read(tmp_path)
    assert read is not None
    assert [read.says_nothing([score] * 5, "eng", np.ones(4)) for score in (0.49, 0.51)] == [True, False]
    write_json(tmp_path / CALIBRATION_FILE, {**content, "levels": {"vectors": "AAAA", "width": 7, "levels": []}})
    with pytest.raises(ValueError, match="what evaluate --calibrate writes"):
        Calibration.read(tmp_path)
