"""Ranking by a learned distance: ranks against distances written as loops, whatever form the metric has."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ray_atr.metrics import evaluate_languages, retrieve
from ray_atr.metrics.ranking import as_metric, audio_rows, rankings_beside, text_rows
from ray_atr.objectives.pairs.mahalanobis import Mahalanobis

KINDS = ("diagonal", "mahalanobis", "factored")


def metric_of(kind: str, D: int, rng: np.random.Generator) -> tuple[Mahalanobis, np.ndarray]:
    """A metric and its M [D, D]; the factored one has fewer columns than the space."""
    if kind == "diagonal":
        diagonal = rng.uniform(0.1, 3, size=D)
        return Mahalanobis(kind, torch.from_numpy(diagonal)), np.diag(diagonal)
    factor = rng.normal(size=(D, D if kind == "mahalanobis" else D // 2))
    M = factor @ factor.T
    return Mahalanobis(kind, torch.from_numpy(M if kind == "mahalanobis" else factor)), M


def distances(text: np.ndarray, audio: np.ndarray, M: np.ndarray) -> np.ndarray:
    """sqrt((t - a)^T M (t - a)) of unit rows, pair by pair."""
    text, audio = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (text, audio))
    return np.array([[np.sqrt(max((t - a) @ M @ (t - a), 0)) for a in audio] for t in text])


@pytest.mark.parametrize("kind", KINDS)
def test_learned_ranks_are_those_of_the_distance_in_both_directions(kind: str) -> None:
    rng = np.random.default_rng(1)
    audio, text = rng.normal(size=(40, 6)), rng.normal(size=(40, 6))
    learned, M = metric_of(kind, 6, rng)
    found = retrieve(audio, text, range(40), metric=learned)
    cost = distances(text, audio, M)
    own = cost.diagonal()
    assert found.text_to_audio.first_rank.tolist() == (cost < own[:, None]).sum(1).tolist()
    assert found.audio_to_text.first_rank.tolist() == (cost < own).sum(0).tolist()
    # It is no cosine ranking in disguise.
    assert found.text_to_audio.first_rank.tolist() != retrieve(audio, text, range(40)).text_to_audio.first_rank.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_inner_products_of_the_rows_are_minus_half_the_squared_distance(kind: str) -> None:
    rng = np.random.default_rng(2)
    audio, text = rng.normal(size=(7, 4)), rng.normal(size=(9, 4))
    learned, M = metric_of(kind, 4, rng)
    left, right = text_rows(torch.from_numpy(text), learned), audio_rows(torch.from_numpy(audio), learned)
    np.testing.assert_allclose((left @ right.T).numpy(), -(distances(text, audio, M) ** 2) / 2, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_the_root_maps_the_distance_to_the_euclidean_one(kind: str) -> None:
    rng = np.random.default_rng(3)
    learned, M = metric_of(kind, 6, rng)
    root = learned.root().numpy()
    np.testing.assert_allclose(root @ root.T, M, atol=1e-9)


def test_without_a_learnt_metric_learned_is_cosine() -> None:
    rng = np.random.default_rng(4)
    audio, text = rng.normal(size=(15, 5)), {"eng": rng.normal(size=(15, 5))}
    learned, cosine = (evaluate_languages(audio, text, range(15), ranking=one) for one in ("learned", "cosine"))
    assert learned == cosine
    # The Euclidean distance of unit rows is the same order too.
    identity = evaluate_languages(audio, text, range(15), metric=np.eye(5))
    assert identity == cosine


def test_equal_rows_tie_under_a_metric_and_collapse_is_chance() -> None:
    rng = np.random.default_rng(5)
    audio, text = rng.normal(size=(21, 6)), rng.normal(size=(21, 6))
    audio[17], text[17] = audio[4], text[4]
    found = retrieve(audio, text, range(21), metric=metric_of("mahalanobis", 6, rng)[0])
    assert np.flatnonzero(found.text_to_audio.is_tied).tolist() == [4, 17]
    same = np.ones((12, 6))
    chance = retrieve(same, same, range(12), metric=metric_of("diagonal", 6, rng)[0]).metrics()
    assert chance["text_to_audio/recall_at_1"] == pytest.approx(1 / 12) == chance["text_to_audio/chance_at_1"]


def test_what_is_worth_reporting_beside_a_ranking() -> None:
    assert rankings_beside("learned", has_metric=True) == ["cosine", "plan"]
    assert rankings_beside("learned", has_metric=False) == ["plan"]
    assert rankings_beside("plan", has_metric=False) == ["cosine"]
    assert rankings_beside("cosine", has_metric=True) == ["learned", "plan"]


def test_a_metric_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"metric.shape: got \(2,\); allowed a tensor \[D\] with D = 3"):
        as_metric(np.ones(2), 3)
    with pytest.raises(ValueError, match=r"metric.shape: got \(3, 2\)"):
        as_metric(np.ones((3, 2)), 3)
