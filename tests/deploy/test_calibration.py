"""What a score means: probabilities and cuts by language, fitted on other pairs than they are measured on."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from ray_atr.common.storage import DamagedFileError
from ray_atr.evaluation.calibrate import cross_fitted
from ray_atr.metrics.calibration import (
    CALIBRATION_FILE,
    Calibration,
    expected_calibration_error,
    fit_calibration,
)
from ray_atr.metrics.relevance import Relevance, relevance_by_label

CLASSES, CLIPS = 20, 400


def drawn(seed: int, shift: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Scores [M, N] of classes and clips, two normals apart, and which match."""
    random = np.random.default_rng(seed)
    match = np.arange(CLASSES)[:, None] == (np.arange(CLIPS) % CLASSES)[None]
    return random.normal(np.where(match, 0.5, 0.1) + shift, 0.15), match


RELEVANCE = relevance_by_label([str(c) for c in range(CLASSES)], [str(n % CLASSES) for n in range(CLIPS)])


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    scores = {"eng": drawn(0)[0], "fra": drawn(1, shift=0.2)[0]}
    return fit_calibration(scores, dict.fromkeys(scores, RELEVANCE), fitted_on={"split": "val"})


def test_probabilities_and_cuts_hold_for_other_pairs(calibration):
    for code, seed, shift in (("eng", 2, 0.0), ("fra", 3, 0.2)):
        scores, match = drawn(seed, shift)
        found = calibration.probability(scores, code)
        assert found.min() >= 0
        assert found.max() <= 1
        assert expected_calibration_error(found, match) < 0.01
        assert abs((scores >= calibration.cut(code))[match].mean() - 0.9) < 0.04
        assert abs((scores >= calibration.cut(code, coverage=0.5))[match].mean() - 0.5) < 0.06


def test_probability_is_bayes_rule_of_the_two_normals(calibration):
    score = 0.35
    odds = np.exp(-((score - 0.5) ** 2 - (score - 0.1) ** 2) / (2 * 0.15**2)) / (CLASSES - 1)
    assert calibration.probability(score, "eng") == pytest.approx(odds / (1 + odds), abs=0.05)


def test_a_language_has_its_own_calibration_and_none_means_all(calibration):
    assert calibration.cut("fra") == pytest.approx(calibration.cut("eng") + 0.2, abs=0.05)
    assert calibration.cut("eng") < calibration.cut(None) < calibration.cut("fra")
    with pytest.raises(ValueError, match="language: got 'deu'; allowed languages that were calibrated: eng, fra, any"):
        calibration.probability([0.1], "deu")


def test_it_knows_among_how_many_texts_an_answer_was_the_best(calibration):
    known = calibration.for_language("eng")
    assert (known.best_among, calibration.for_language(None).best_among) == (CLASSES, CLASSES)
    assert [texts for texts in (1, 9, 10, 20, 40, 41) if known.knows_best_of(texts)] == [10, 20, 40]


def test_random_share_counts_the_pairs_that_do_not_match(calibration):
    scores, match = drawn(4)
    for threshold in (0.0, 0.3, 0.5):
        counted = (scores[~match] >= threshold).mean()
        assert calibration.random_share(threshold, "eng") == pytest.approx(counted, abs=0.02)
    assert calibration.random_share(9.0, "eng") == 0
    assert calibration.random_share(-9.0, "eng") == 1


def test_random_share_counts_all_pairs_of_one_score():
    """As where clips or texts are the same, or a model says one thing of all."""
    scores, match = drawn(0)
    rounded = (scores * 5).round()
    found = fit_calibration({"eng": rounded}, {"eng": RELEVANCE})
    for score in np.unique(rounded[~match]):
        assert found.random_share(score, "eng") == pytest.approx((rounded[~match] >= score).mean(), abs=0.02)
    of_one_score = fit_calibration({"eng": np.zeros_like(scores)}, {"eng": RELEVANCE})
    assert of_one_score.random_share([-0.1, 0.0, 0.1], "eng").tolist() == [1, 1, 0]


def test_a_stated_prior_moves_the_probability():
    scores, match = drawn(0)
    even = fit_calibration({"eng": scores}, {"eng": RELEVANCE}, prior=0.5)
    assert even.by_language["eng"].prior == 0.5
    other, match = drawn(5)
    weight = np.where(match, 0.5 / match.sum(), 0.5 / (~match).sum())
    found = even.probability(other, "eng")
    assert expected_calibration_error(found, match, weight) < 0.02
    assert (weight * found).sum() == pytest.approx(0.5, abs=0.02)


def test_expected_calibration_error_is_the_formula():
    random = np.random.default_rng(0)
    p, y = random.random(200), random.random(200) < 0.3
    expected = np.float64(0)
    for k in range(10):
        rows = [n for n in range(200) if k / 10 <= p[n] < (k + 1) / 10]
        if rows:
            expected = expected + len(rows) / 200 * abs(np.mean(y[rows]) - np.mean(p[rows]))
    assert expected_calibration_error(p, y, bins=10) == pytest.approx(expected, abs=1e-12)


def test_it_is_read_as_written_and_damage_is_seen(calibration, tmp_path):
    assert Calibration.read(tmp_path) is None
    calibration.write(tmp_path)
    assert Calibration.read(tmp_path) == calibration
    assert (calibration.clips, calibration.warning) == (CLIPS, "")
    file = tmp_path / CALIBRATION_FILE
    file.write_text(file.read_text().replace('"pairs": 400', '"pairs": 401', 1))
    with pytest.raises(DamagedFileError):
        Calibration.read(tmp_path)
    file.write_text(json.dumps({"format": 2}))
    with pytest.raises(ValueError, match="allowed a calibration of format 1"):
        Calibration.read(tmp_path)


def test_pairs_that_teach_nothing_are_refused():
    scores, _ = drawn(0)
    with pytest.raises(ValueError, match="not finite"):
        fit_calibration({"eng": np.where(scores > 0.4, np.nan, scores)}, {"eng": RELEVANCE})
    with pytest.raises(ValueError, match="shape"):
        fit_calibration({"eng": torch.zeros(3, 3)}, {"eng": RELEVANCE})
    with pytest.raises(ValueError, match="prior"):
        fit_calibration({"eng": scores}, {"eng": RELEVANCE}, prior=1.0)
    # One text fits every clip, the other none: neither says what a wrong answer scores beside a right one.
    alone = relevance_by_label(["a", "b"], ["a"] * 4)
    with pytest.raises(ValueError, match=r"relevance\[eng\]: .*a text with clips that match and clips that do not"):
        fit_calibration({"eng": scores[:2, :4]}, {"eng": alone})


@pytest.mark.parametrize(("clips", "texts"), [(1, 1), (3, 3), (5, 2), (8, 1)])
def test_too_few_clips_for_two_halves_are_refused(clips: int, texts: int) -> None:
    relevance = Relevance(torch.arange(texts), torch.arange(texts), texts, clips)
    scores = {"deu": np.random.default_rng(0).standard_normal((texts, clips))}
    with pytest.raises(ValueError, match=rf"--calibrate: got '{texts} clips? with deu captions of {clips} clip"):
        cross_fitted(scores, {"deu": relevance})
