"""Two regressions judge clips that neither saw, whichever captions these have, and tell more than the first alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ray_atr.objectives.correspondence import both_ways
from ray_atr.objectives.correspondence.both_ways import Backwards, BothWays
from ray_atr.objectives.correspondence.cross_fit import OneWay, Pairs, PairScorer, cross_fit
from ray_atr.objectives.correspondence.noise_rate import p_values
from ray_atr.objectives.correspondence.ridge import of_unit_norm

N, CAPTIONS = 240, 24


def pairs(wrong: float, seed: int = 0) -> tuple[Pairs, np.ndarray]:
    """Noisy clips of 24 sounds, and whether each has a wrong caption."""
    random = np.random.default_rng(seed)
    sounds, sound = random.normal(size=(CAPTIONS, 10)), np.arange(N) % CAPTIONS
    audio = 0.5 * sounds[sound] @ random.normal(size=(10, 40)) + 2 * random.normal(size=(N, 40))
    text = sounds @ random.normal(size=(10, 16))
    said = np.where(random.random(N) < wrong, random.integers(0, CAPTIONS, N), sound)
    clip = np.arange(N)
    return Pairs(audio.astype(np.float32), text[said], clip, np.full(N, "eng"), said.astype(str)), said != sound


def judged(judge: type[PairScorer], of: Pairs, mispairs: int) -> tuple[np.ndarray, np.ndarray]:
    """The score of each pair, and those of so many mispairs a fold."""
    score, null, random = np.empty(N), [np.empty(0)], np.random.default_rng(0)
    for fold in cross_fit(of, 5, 0, scorer=judge):
        score[fold.captions] = fold.score(np.searchsorted(fold.clips, of.clip[fold.captions]), fold.captions)
        if mispairs:
            null.append(fold.score(*fold.mispairs(of, mispairs, random)))
    return score, np.concatenate(null)


def area(judge: type[PairScorer], of: Pairs, is_wrong: np.ndarray) -> float:
    score, _ = judged(judge, of, mispairs=0)
    return float((score[~is_wrong][:, None] > score[is_wrong]).mean())


class FirstAlone(BothWays):
    """Without the regression of clips on captions."""

    def _backwards(self, is_right: np.ndarray, audio: np.ndarray, *about: object) -> Backwards:
        width = audio.shape[1]
        words, expected = np.zeros((len(self.captions), width + 1)), np.zeros((len(is_right), width))
        return Backwards(np.zeros(width), np.zeros((width, width)), 1.0, words, expected)


class FittedOnce(BothWays):
    """The second regression by the pairs that the first believes, and no more."""

    def vectors(self, held_out: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        self.believed: np.ndarray | None = None
        return super().vectors(held_out)

    def _backwards(self, is_right: np.ndarray, *about: Any) -> Backwards:
        self.believed = is_right if self.believed is None else self.believed
        return super()._backwards(self.believed, *about)


def test_each_part_of_the_judgement_tells_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Than without it: competition, the second regression, its second fit, and that the first counts for less."""

    def mean_area(judge: type[PairScorer]) -> float:
        return float(np.mean([area(judge, *pairs(0.4, seed)) for seed in range(3)]))

    one, first, once, both = (mean_area(judge) for judge in (OneWay, FirstAlone, FittedOnce, BothWays))
    monkeypatch.setattr(both_ways, "FIRST_WEIGHT", 1.0)
    alike = mean_area(BothWays)
    assert first > one + 0.01, (one, first)
    assert once > first + 0.01, (first, once)
    assert both > once + 0.001, (once, both)
    assert both > alike + 0.004, (alike, both)


def test_which_captions_the_held_out_clips_have_changes_nothing() -> None:
    """So that a wrong pair, whose caption is a random one, is a random mispair."""
    of, _ = pairs(0.2)
    audio, held_out = of_unit_norm(of.audio.astype(np.float64)), np.arange(0, N, 10)
    one = BothWays(audio, of.text, of.clip, of.key).vectors(held_out)
    exchanged = of.clip.copy()
    exchanged[held_out] = np.random.default_rng(1).permutation(held_out)
    other = BothWays(audio, of.text, exchanged, of.key).vectors(held_out)
    np.testing.assert_array_equal(one[0] @ one[1].T, other[0] @ other[1].T)
    exchanged[1::10] = np.random.default_rng(1).permutation(exchanged[1::10])
    assert not np.allclose(one[0], BothWays(audio, of.text, exchanged, of.key).vectors(held_out)[0])


def test_wrong_captions_have_uniform_p_values() -> None:
    found = []
    for seed in range(6):
        of, is_wrong = pairs(0.5, seed)
        found.append(p_values(*judged(BothWays, of, mispairs=2_000))[is_wrong])
    p_value = np.concatenate(found)
    for t in (0.1, 0.3, 0.6):
        assert (p_value <= t).mean() == pytest.approx(t, abs=3 * np.sqrt(t / len(p_value))), t


def test_a_language_with_too_few_clips_tells_nothing_beside_the_others() -> None:
    of, _ = pairs(0.0)
    language = np.where(np.arange(N) < N - 1, "eng", "deu")
    two = Pairs(of.audio, of.text, of.clip, language, of.key)
    for fold in cross_fit(two, 2, 0, scorer=BothWays):
        assert fold.audio.shape[2] == fold.text.shape[1]
        assert not fold.audio[0].any()


def test_the_captions_vectors_of_all_folds_are_in_one_place() -> None:
    """They are the largest arrays of an audit."""
    folds = list(cross_fit(pairs(0.2)[0], 3, 0))
    assert all(fold.text is folds[0].text for fold in folds)
