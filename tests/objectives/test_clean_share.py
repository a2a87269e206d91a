"""The share of true pairs: near the truth at any noise, by language, kept by a checkpoint, and used where it is asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import ndtr
from torch import Tensor
from torch.nn import functional

from ray_atr.objectives.correspondence import CORRESPONDENCES, TrainingPairs, clean_share
from ray_atr.objectives.correspondence.clean_share import (
    FOLDS,
    MISPAIRS,
    CleanShares,
    PairVectors,
    TrueShare,
    true_share,
)
from ray_atr.objectives.correspondence.cross_fit import Pairs, cross_fitted_p_values
from ray_atr.objectives.correspondence.noise_rate import (
    is_something_found,
    likeliest_wrong_share,
    p_values,
    wrong_share,
)
from ray_atr.objectives.correspondence.scored import low_component
from ray_atr.objectives.pairs import CleanShare, Comparison, PartialLearningToMatch
from ray_atr.objectives.pairs.pair_loss import FOUNDED
from tests.support.whole_product import ONLY_IN_WHOLE

RATES = (0.0, 0.2, 0.4, 0.6, 0.8)
N, D = 1200, 24


def pairs_of(*rates: float, spread: float = 0.4) -> PairVectors:
    """N clips with a caption in each language, of which these shares are another clip's."""
    random = np.random.default_rng(0)
    meaning = random.normal(size=(N, D))
    texts = []
    for rate in rates:
        owner = np.arange(N)
        wrong = random.permutation(N)[: round(rate * N)]
        owner[wrong] = np.roll(owner[wrong], 1)
        texts.append(meaning[owner] @ random.normal(size=(D, D)) + spread * random.normal(size=(N, D)))
    K = len(rates)
    return PairVectors(
        audio=(meaning + spread * random.normal(size=(N, D))).astype(np.float32),
        text=np.concatenate(texts).astype(np.float32),
        pair_index=(np.tile(np.arange(N), K), np.zeros(K * N, np.int64), np.repeat(np.arange(K), N)),
        key=np.arange(K * N),
    )


def test_the_share_is_within_five_points_at_any_noise_and_each_language_has_its_own() -> None:
    shares = CleanShares(len(RATES))
    shares.estimate([pairs_of(*RATES)], seed=0)
    for language, rate in enumerate(RATES):
        estimate = shares.for_languages(torch.tensor([language, language]))
        assert estimate.share == pytest.approx(1 - rate, abs=0.05)
        assert estimate.mass == estimate.share
        assert shares.of_language(language) == estimate.share
    assert shares.for_languages(torch.tensor([0, 4])).share == pytest.approx(0.6, abs=0.05)


def test_of_two_readings_each_language_takes_the_one_that_finds_more() -> None:
    good = pairs_of(0.2, 0.6)
    random = np.random.default_rng(1).standard_normal(good.text.shape).astype(np.float32)
    is_first = good.pair_index[2][:, None] == 0
    one, two = (good._replace(text=np.where(own, good.text, random)) for own in (is_first, ~is_first))
    shares, alone, whole = CleanShares(2), CleanShares(2), CleanShares(2)
    alone.estimate([one], seed=0)
    assert [alone.of_language(k) is not None for k in range(2)] == [True, False]
    whole.estimate([good], seed=0)
    shares.estimate([one, two], seed=0)
    assert torch.equal(shares.shares, whole.shares)


def test_what_is_found_by_chance_says_nothing_of_the_share() -> None:
    """Of 24 clips whose vectors know nothing, the likeliest share is .1 or so, and most of these pairs seem found."""
    clips, (audio, text) = np.arange(24), np.random.default_rng(2).normal(size=(2, 24, 16))
    nothing = PairVectors(audio, text, (clips, 0 * clips, 0 * clips), clips)
    estimate = true_share([nothing.subset(clips)], 0)
    assert estimate.share < 0.2
    assert estimate.found_share > FOUNDED
    shares = CleanShares(1)
    shares.estimate([nothing], seed=0)
    assert shares.of_language(0) is None
    assert shares.for_languages(torch.zeros(3, dtype=torch.int64)).mass == 1


@pytest.mark.parametrize(("wrong", "moved"), [(0.2, 1.2), (0.8, 1.2), (0.6, 2.0), (0.8, 3.0)])
def test_right_pairs_that_fit_no_better_than_random_ones_are_counted_by_the_others(wrong: float, moved: float) -> None:
    """Of simulated pairs, whose right ones are moved by so many deviations; the bound counts some of them as wrong."""
    random = np.random.default_rng(0)
    is_wrong = random.random(40_000) < wrong
    p_value = ndtr(random.standard_normal(40_000) - np.where(is_wrong, 0.0, moved))
    assert likeliest_wrong_share(p_value) == pytest.approx(is_wrong.mean(), abs=0.01)
    if moved < 2:
        assert wrong_share(p_value).share > is_wrong.mean() + 0.02


def test_the_likeliest_share_is_never_less_for_right_pairs_that_nothing_is_known_of() -> None:
    random = np.random.default_rng(0)
    wrong, unknown = random.random(12_000), random.random(1_000)
    p_value = np.concatenate([wrong, unknown, ndtr(random.standard_normal(7_000) - 3)])
    assert 0.6 < likeliest_wrong_share(p_value) < 0.66
    assert likeliest_wrong_share(wrong) > 0.97


def test_a_training_takes_the_likeliest_share_and_not_the_bound() -> None:
    pairs = pairs_of(0.6, spread=1.5).subset(np.arange(N))
    p_value = cross_fitted_p_values(pairs, FOLDS, MISPAIRS, 0)
    share = true_share([pairs], 0).share
    assert share == pytest.approx(1 - likeliest_wrong_share(p_value))
    assert share > 1 - wrong_share(p_value).share + 0.01
    assert share == pytest.approx(0.4, abs=0.05)


def test_a_mispair_of_the_same_score_counts_against_a_pair() -> None:
    mispairs = np.array([0.0, 1.0, 1.0, 2.0])
    assert p_values(np.array([1.0, 2.0, 3.0]), mispairs) == pytest.approx([4 / 5, 2 / 5, 1 / 5])


def test_embeddings_that_tell_nothing_leave_nearly_all_the_mass() -> None:
    shares = CleanShares(1)
    shares.estimate([pairs_of(0.0, spread=1e6)], seed=0)
    assert shares.of_language(0) is None
    assert shares.for_languages(torch.tensor([0])).mass > 0.9


def test_one_that_is_more_than_chance_goes_before_one_that_finds_more(monkeypatch: pytest.MonkeyPatch) -> None:
    found: Any = [TrueShare(0.2, 0.4, is_certain=False), TrueShare(0.2, 0.1, is_certain=True)]
    monkeypatch.setattr(clean_share, "_true_share", lambda estimate, *_: estimate)
    assert true_share(found, seed=0) == found[1]._replace(reading=1)


@pytest.mark.parametrize(
    ("clips", "captions", "several"),
    [(50, 50, 1), (60, 12, 1), pytest.param(300, 300, 1, marks=ONLY_IN_WHOLE), (60, 180, 3)],
)
def test_random_vectors_are_relied_on_by_no_more_than_chance(clips: int, captions: int, several: int) -> None:
    """And their mean p-value has about twice the variance of independent ones."""
    distances, relied_on = [], 0
    for seed in range(60):
        random = np.random.default_rng(seed)
        words = random.standard_normal((captions, 8)).astype(np.float32)
        said = random.permutation(captions) if captions >= clips else random.integers(0, captions, clips)
        clip = np.repeat(np.arange(clips), several)
        audio = random.standard_normal((clips, 8)).astype(np.float32)
        pairs = Pairs(audio, words[said], clip, np.full(len(said), ""), said.astype(str))
        p_value = cross_fitted_p_values(pairs, FOLDS, 5_000, seed)
        relied_on += is_something_found(p_value, clip)
        mean = p_value.reshape(clips, several).mean(axis=1)
        distances.append((mean.mean() - 0.5) / mean.std() * np.sqrt(clips))
    assert relied_on <= 1
    assert 1.1 < np.std(distances) < 2.0


def test_the_mean_of_p_values_is_as_far_below_a_half_as_twice_the_variance_of_independent_ones_asks() -> None:
    """3.09 deviations are a one-sided error of .001; of independent p-values 3.7 would do."""
    even = (np.arange(1_000) + 0.5) / 1_000
    deviation = even.std() / np.sqrt(1_000)
    found = [is_something_found(even - distance * deviation, np.arange(1_000)) for distance in (3.7, 4.3, 4.45)]
    assert found == [False, False, True]


def test_what_is_relied_on_depends_on_how_many_pairs_say_it() -> None:
    random = np.random.default_rng(0)
    p_value = np.where(random.random(2_000) < 0.2, ndtr(random.standard_normal(2_000) - 1), random.random(2_000))
    clip = np.arange(2_000)
    assert is_something_found(p_value, clip)
    assert not is_something_found(p_value[:100], clip[:100])
    # Twenty captions of a clip that are right or wrong together are one observation.
    assert not is_something_found(np.repeat(p_value[:100], 20), np.repeat(clip[:100], 20))
    assert not is_something_found(1 - p_value, clip)


def test_a_state_and_a_known_share_take_the_place_of_an_estimate() -> None:
    shares, resumed = CleanShares(2), CleanShares(2)
    shares.estimate([pairs_of(0.2, 0.6)], seed=0)
    resumed.load_state_dict(shares.state_dict())
    assert torch.equal(resumed.shares, shares.shares)
    known = CleanShares(2, [0.25, 0.5])
    assert known.for_languages(torch.tensor([0])) == CleanShare(0.75, 1.0)


def unit(*shape: int) -> Tensor:
    return functional.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(0)), dim=-1)


def test_an_estimator_hands_the_share_of_its_languages_to_the_loss() -> None:
    ids = [str(row) for row in range(8)]
    pairs = TrainingPairs(clip_ids=ids, languages=2, needs_clean_share=True, wrong_shares=[0.2, 0.6])
    estimator = CORRESPONDENCES["none"]().estimator(pairs)
    weigh_pairs = estimator.for_batch(torch.arange(8), torch.zeros(8, dtype=torch.int64))
    loss = PartialLearningToMatch(transport_mass="auto", metric="euclidean")
    for language, mass in ((0, 0.8), (1, 0.4)):
        comparison = Comparison(u=unit(8, 4), v=unit(8, 4), v_language=torch.full((8,), language))
        assert loss(weigh_pairs(comparison)).scalars["transport_mass"].item() == pytest.approx(mass)


def test_pairs_that_are_weighed_already_are_not_left_out_twice() -> None:
    ids = [str(row) for row in range(8)]
    truth = (torch.arange(8) < 4)[:, None, None]
    pairs = TrainingPairs(clip_ids=ids, truth=truth, needs_clean_share=True, wrong_shares=[0.5])
    weigh_pairs = (
        CORRESPONDENCES["oracle"]().estimator(pairs).for_batch(torch.arange(8), torch.zeros(8, dtype=torch.int64))
    )
    comparison = weigh_pairs(Comparison(u=unit(8, 4), v=unit(8, 4), v_language=torch.zeros(8, dtype=torch.int64)))
    assert comparison.clean_share is not None
    assert comparison.clean_share.share == pytest.approx(1.0)


def test_a_given_share_is_the_prior_of_the_low_component() -> None:
    random = torch.Generator().manual_seed(0)
    values = torch.cat([torch.randn(300, generator=random), torch.randn(100, generator=random) + 2])
    few, many = (float(low_component(values, "gmm", share).mean()) for share in (0.3, 0.9))
    assert few < float(low_component(values, "gmm", 0.75).mean()) < many


@pytest.mark.parametrize("name", ["small_loss", "rematch", "neighbours", "consensus"])
def test_a_share_that_the_pair_loss_reads_is_no_prior_unless_it_was_chosen(name: str) -> None:
    scores = torch.randn(200, 2, 1, generator=torch.Generator().manual_seed(0))
    scores[:80] -= 2
    probabilities = []
    for is_read in (False, True):
        pairs = TrainingPairs(
            clip_ids=list(map(str, range(200))), slots=2, needs_clean_share=is_read, wrong_shares=[0.02]
        )
        estimator = CORRESPONDENCES[name]().estimator(pairs)
        estimator.tables["scores"].copy_(scores)
        estimator.begin_epoch(2)
        probabilities.append(estimator.tables["clean_probabilities"])
    assert 0.4 < probabilities[0].mean() < 0.8
    assert torch.equal(*probabilities)
