"""Language consistency against the paper's formulas as plain loops."""

from __future__ import annotations

import numpy as np
import pytest

from ray_atr.metrics.languages import rank_variance_by_language
from tests.support.consistency import language_distance, language_gap, mean_rank_variance, modality_gap


def test_mean_rank_variance_by_hand_and_by_loops() -> None:
    by_hand = np.array([[0, 2], [3, 3]])
    assert (
        rank_variance_by_language(by_hand).mean() == mean_rank_variance(by_hand) == pytest.approx((1 + 1 + 0 + 0) / 4)
    )
    ranks = np.random.default_rng(0).integers(0, 50, size=(13, 8))
    total = 0.0
    for row in ranks.tolist():
        mean = sum(row) / 8
        total += sum((rank - mean) ** 2 for rank in row)
    assert mean_rank_variance(ranks) == pytest.approx(total / (13 * 8))
    assert rank_variance_by_language(ranks).mean() == pytest.approx(total / (13 * 8))


def test_mean_rank_variance_is_the_same_from_zero_and_from_one() -> None:
    ranks = np.random.default_rng(1).integers(0, 957, size=(40, 8))
    assert rank_variance_by_language(ranks) == pytest.approx(rank_variance_by_language(ranks + 1), rel=1e-12)


def test_gap_and_distance_equal_the_loops_and_gap_is_never_larger() -> None:
    text = np.random.default_rng(2).normal(size=(11, 4, 5)) + np.arange(4)[:, None]
    gap, distance = language_gap(text), language_distance(text)
    for k in range(4):
        assert gap[k] == pytest.approx(np.linalg.norm(text[:, 0].mean(0) - text[:, k].mean(0)))
        assert distance[k] == pytest.approx(np.mean([np.linalg.norm(row[0] - row[k]) for row in text]))
    assert (gap <= distance + 1e-12).all()
    assert (gap[1:] < distance[1:]).all()
    assert gap[0] == distance[0] == 0


def test_a_shift_of_one_language_is_its_gap_and_its_distance() -> None:
    english = np.random.default_rng(3).normal(size=(9, 1, 3))
    text = np.concatenate([english, english + np.array([3.0, 0.0, 4.0])], axis=1)
    assert language_gap(text)[1] == pytest.approx(5)
    assert language_distance(text)[1] == pytest.approx(5)


def test_modality_gap() -> None:
    audio, text = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[-1.0, 0.0], [0.0, -1.0], [0.5, 0.5]])
    assert modality_gap(audio, text) == pytest.approx(np.hypot(0.5 + 0.5 / 3, 0.5 + 0.5 / 3))
