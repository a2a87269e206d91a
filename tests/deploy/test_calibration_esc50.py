"""Calibration on real clips: fitted on ESC-50's fold 3, measured on fold 4, in eight languages. Skips without the vectors."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from ray_atr.evaluation.calibrate import measure
from ray_atr.metrics.calibration import (
    best_answers,
    error_by_chance,
    expected_calibration_error,
    fit_calibration,
)
from ray_atr.metrics.relevance import Relevance, relevance_by_label
from tests.support.unit_rows import unit

VECTORS = Path(__file__).resolve().parents[3] / "shared" / "data" / "vectors"
LANGUAGES = ("eng", "fra", "deu", "spa", "nld", "cat", "jpn", "zho")

pytestmark = pytest.mark.skipif(not VECTORS.is_dir(), reason="no ../shared/data/vectors: ESC-50 as vectors")


@pytest.fixture(scope="module")
def folds() -> dict[int, tuple[dict[str, np.ndarray], dict[str, Relevance]]]:
    """Fold -> scores [50, N] and relevance by language, of a ridge head that folds 1 and 2 trained."""
    audio = np.load(VECTORS / "esc50_audio_aisfx.npy").astype(np.float64)
    text = np.load(VECTORS / "esc50_text_use.npy").astype(np.float64)
    with (VECTORS / "esc50_clips.csv").open() as file:
        rows = list(csv.DictReader(file))
    fold, target = (np.array([int(row[name]) for row in rows]) for name in ("fold", "target"))
    train = fold <= 2
    mean, deviation = audio[train].mean(axis=0), audio[train].std(axis=0) + 1e-6
    audio = (audio - mean) / deviation
    wanted = unit(text.mean(axis=1) - text.mean(axis=(0, 1)))[target[train]]
    head = np.linalg.solve(audio[train].T @ audio[train] + 3000 * np.eye(512), audio[train].T @ wanted)
    embedded = unit(audio @ head)
    found = {}
    for number in (3, 4):
        own = fold == number
        relevance = relevance_by_label([str(c) for c in range(50)], [str(c) for c in target[own]])
        scores = {
            code: unit(text[:, place] - text.mean(axis=(0, 1))) @ embedded[own].T
            for place, code in enumerate(LANGUAGES)
        }
        found[number] = scores, dict.fromkeys(LANGUAGES, relevance)
    return found


def test_probabilities_and_cuts_hold_on_a_fold_they_were_not_fitted_on(folds):
    calibration = fit_calibration(*folds[3])
    scores, relevance = folds[4]
    answers = []
    for language in LANGUAGES:
        found = measure(calibration, language, scores[language], relevance[language])
        print(
            f"{language}: error {found.error:.4f}, of the best {found.error_of_best:.3f} ({found.chance:.3f} by chance), "
            f"coverage {found.coverage:.3f}"
        )
        assert found.error <= 0.05
        assert 0.88 <= round(found.coverage, 2) <= 0.92
        # 400 answers show no error below what chance makes of them.
        assert found.error_of_best <= found.chance + 0.05
        best, is_right = best_answers(scores[language], relevance[language])
        answers.append((calibration.for_language(language).probability_of_best(best), is_right))
    probability, is_right = (np.concatenate(side) for side in zip(*answers, strict=True))
    error = expected_calibration_error(probability, is_right)
    print(f"the answers in all languages: {error:.4f} ({error_by_chance(probability):.4f} by chance)")
    assert error <= 0.05
