"""The rule that says nothing is there: fitted on what is there and what is left out, and kept on other texts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ray_atr.deploy.calibration import Calibration, fit_calibration
from ray_atr.deploy.nothing import evidence, fit_nothing, means_of_best
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
    relevance = Relevance(text=torch.tensor([0, 1, 1]), clip=torch.tensor([1, 0, 1]), num_texts=3, num_clips=2)
    found = evidence(np.array([[0.2, 0.9], [0.5, 0.4], [0.7, 0.1]]), relevance)
    assert found.there[0].tolist() == [0.9]
    assert found.absent[0].tolist() == [0.2]


@pytest.mark.parametrize(("matching", "count"), [(1, 1), (8, 5)])
def test_as_many_answers_count_as_tell_most(matching: int, count: int) -> None:
    scores, relevance = drawn(matching)
    if matching == 1:
        scores[relevance.text.numpy(), relevance.clip.numpy()] += 4
    found = fit_nothing(evidence(scores, relevance))
    assert found[0] == count


def test_it_holds_for_other_texts_and_is_stored(tmp_path) -> None:
    calibration = fit_calibration(*({"eng": part} for part in drawn(8)))
    calibration.write(tmp_path)
    read = Calibration.read(tmp_path)
    assert read is not None
    scores, relevance = drawn(8, seed=1)
    match = np.zeros(scores.shape, bool)
    match[relevance.text.numpy(), relevance.clip.numpy()] = True

    def nothing(values: np.ndarray) -> float:
        return float(np.mean([read.for_language("eng").says_nothing(-np.sort(-row)) for row in values]))

    assert 0.02 < nothing(scores) < 0.09
    careless = fit_calibration(*({"eng": part} for part in drawn(8)), false_nothing=0.2).for_language("eng")
    assert 0.14 < np.mean([careless.says_nothing(-np.sort(-row)) for row in scores]) < 0.26
    assert nothing(np.where(match, -9, scores)) > 0.4
    assert read.for_language("eng").says_nothing([])
    assert read.for_language("eng").nothing_below == read.for_language(None).nothing_below
