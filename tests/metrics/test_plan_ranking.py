"""Ranking by plan against the iterations written as loops."""

from __future__ import annotations

import math

import numpy as np
import ot
import pytest

from ray_atr.metrics import plan_scores, retrieve, retrieve_by_plan
from tests.support.unit_rows import unit


def sinkhorn_by_loops(text: np.ndarray, audio: np.ndarray, metric: np.ndarray, epsilon: float, n: int) -> np.ndarray:
    text = text / np.linalg.norm(text, axis=1, keepdims=True)
    audio = audio / np.linalg.norm(audio, axis=1, keepdims=True)
    cost = np.array([[math.sqrt((t - a) @ metric @ (t - a)) for a in audio] for t in text])
    kernel = np.exp(-cost / cost.max() / epsilon)
    column = np.ones(len(audio))
    for _ in range(n):
        row = 1 / len(text) / (kernel @ column)
        column = 1 / len(audio) / (kernel.T @ row)
    return row[:, None] * kernel * column


@pytest.mark.parametrize("kind", ["euclidean", "diagonal", "full"])
def test_plan_equals_the_iterations(kind: str) -> None:
    rng = np.random.default_rng(0)
    audio, text = rng.normal(size=(6, 4)), rng.normal(size=(9, 4))
    factor = rng.normal(size=(4, 4))
    given = {"euclidean": None, "diagonal": np.array([1.0, 2, 0.5, 3]), "full": factor @ factor.T}[kind]
    metric = np.eye(4) if given is None else np.diag(given) if given.ndim == 1 else given
    for epsilon, n in ((0.03, 10), (0.2, 1)):
        expected = sinkhorn_by_loops(text, audio, metric, epsilon, n)
        got = plan_scores(text, audio, epsilon=epsilon, sweeps=n, metric=given).exp().numpy()
        np.testing.assert_allclose(got, expected, rtol=1e-6)
        np.testing.assert_allclose(got.sum(0), 1 / 6)


@pytest.mark.parametrize("epsilon", [0.02, 0.05, 0.3])
def test_by_default_the_plan_is_the_optimum(epsilon: float) -> None:
    rng = np.random.default_rng(3)
    audio, text = rng.normal(size=(11, 5)), rng.normal(size=(17, 5))
    cost = np.linalg.norm(unit(text)[:, None] - unit(audio)[None], axis=-1)
    expected = ot.sinkhorn(
        np.full(17, 1 / 17), np.full(11, 1 / 11), cost / cost.max(), epsilon, method="sinkhorn_log",
        numItermax=100_000, stopThr=1e-12,
    )  # fmt: skip
    np.testing.assert_allclose(plan_scores(text, audio, epsilon=epsilon).exp().numpy(), expected, atol=1e-9)
    stopped = plan_scores(text, audio, epsilon=epsilon, sweeps=1).exp().numpy()
    assert np.abs(stopped - expected).max() > 1e-4


def test_plan_keeps_a_hub_from_taking_every_query() -> None:
    # One clip lies nearest to every caption: by similarity it always comes first, by plan each clip gets its share.
    rng = np.random.default_rng(1)
    audio = np.eye(20) + 0.05 * rng.normal(size=(20, 20))
    text = np.eye(20) + 0.2 * rng.normal(size=(20, 20))
    hub = text.mean(0)
    text = text + 3 * hub / np.linalg.norm(hub)
    audio[0] = hub
    by_similarity = retrieve(audio, text, range(20)).metrics()
    by_plan = retrieve_by_plan(audio, text, range(20)).metrics()
    assert by_similarity["text_to_audio/recall_at_1"] == 1 / 20
    assert by_plan["text_to_audio/recall_at_1"] > 0.8


def test_collapsed_embeddings_score_chance() -> None:
    same = np.ones((12, 5))
    assert retrieve_by_plan(same, same, range(12)).metrics()["text_to_audio/recall_at_1"] == pytest.approx(1 / 12)


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match=r"metric.shape: got \(2,\)"):
        plan_scores(np.ones((2, 3)), np.ones((2, 3)), metric=np.ones(2))
    with pytest.raises(ValueError, match="sweeps: got -1"):
        plan_scores(np.ones((2, 3)), np.ones((2, 3)), sweeps=-1)
    with pytest.raises(ValueError, match="ranking: got 'plan of 20000 texts"):
        plan_scores(np.ones((20_000, 1)), np.ones((20_000, 1)))


def test_equal_clips_tie() -> None:
    rng = np.random.default_rng(2)
    audio, text = rng.normal(size=(31, 7)), rng.normal(size=(31, 7))
    audio[17] = audio[4]
    text[17] = text[4]
    got = retrieve_by_plan(audio, text, range(31))
    assert np.flatnonzero(got.text_to_audio.is_tied).tolist() == [4, 17]
    assert got.text_to_audio.first_rank[4] == got.text_to_audio.first_rank[17]
