"""The share of true pairs: near the truth at any noise, by language, kept by a checkpoint, and used where it is asked for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from ray_atr.objectives.correspondence import CORRESPONDENCES, TrainingPairs
from ray_atr.objectives.correspondence.clean_share import TRIES, CleanShares
from ray_atr.objectives.correspondence.cross_fit import Pairs
from ray_atr.objectives.correspondence.noise_rate import p_values
from ray_atr.objectives.correspondence.scored import low_component
from ray_atr.objectives.pairs import CleanShare, Comparison, PartialLearningToMatch
from ray_atr.training.correspondence import wrong_shares
from ray_atr.training.experiment import DataSettings

RATES = (0.0, 0.2, 0.4, 0.6, 0.8)
N, D = 1200, 24


def pairs_of(*rates: float, spread: float = 0.4) -> Pairs:
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
    return Pairs(
        audio=(meaning + spread * random.normal(size=(N, D))).astype(np.float32),
        text=np.concatenate(texts).astype(np.float32),
        clip=np.tile(np.arange(N), K),
        language=np.repeat(np.arange(K), N).astype(str),
        key=np.arange(K * N).astype(str),
    )


def test_the_share_is_within_five_points_at_any_noise_and_each_language_has_its_own() -> None:
    shares = CleanShares(len(RATES))
    shares.estimate(pairs_of(*RATES), seed=0)
    assert shares.is_final
    for language, rate in enumerate(RATES):
        estimate = shares.for_languages(torch.tensor([language, language]))
        assert estimate.share == pytest.approx(1 - rate, abs=0.05)
        assert estimate.mass == estimate.share
        assert shares.of_language(language) == estimate.share
    assert shares.for_languages(torch.tensor([0, 4])).share == pytest.approx(0.6, abs=0.05)


def test_a_mispair_of_the_same_score_counts_against_a_pair() -> None:
    mispairs = np.array([0.0, 1.0, 1.0, 2.0])
    assert p_values(np.array([1.0, 2.0, 3.0]), mispairs) == pytest.approx([4 / 5, 2 / 5, 1 / 5])


def test_embeddings_that_tell_nothing_leave_nearly_all_the_mass_and_are_tried_again() -> None:
    shares = CleanShares(1)
    shares.estimate(pairs_of(0.0, spread=1e6), seed=0)
    assert not shares.is_final
    assert shares.of_language(0) is None
    assert shares.for_languages(torch.tensor([0])).mass > 0.9
    assert [shares.is_wanted(epoch) for epoch in (0, TRIES - 1, TRIES)] == [True, True, False]


def test_a_state_and_a_known_share_take_the_place_of_an_estimate() -> None:
    shares, resumed = CleanShares(2), CleanShares(2)
    shares.estimate(pairs_of(0.2, 0.6), seed=0)
    resumed.load_state_dict(shares.state_dict())
    assert not resumed.is_wanted(0)
    assert torch.equal(resumed.shares, shares.shares)
    known = CleanShares(2, [0.25, 0.5])
    assert not known.is_wanted(0)
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


def test_the_share_is_read_from_a_number_or_an_audit(tmp_path: Path) -> None:
    assert wrong_shares("auto", ["eng"]) is None
    assert DataSettings(wrong_share="0.3").wrong_share == 0.3
    assert wrong_shares(0.3, ["eng", "fra"]) == [0.3, 0.3]
    found = {"wrong_share_by_language": {"eng": {"share": 0.1, "at_most": 0.2}, "fra": {"share": 0.4, "at_most": 0.5}}}
    (tmp_path / "audit.json").write_text(json.dumps(found))
    assert wrong_shares(str(tmp_path), ["fra", "eng"]) == [0.4, 0.1]
    heard = tmp_path / "estimate.json"
    heard.write_text(json.dumps({"wrong_share": 0.2, "interval_95": [0.1, 0.3]}))
    assert wrong_shares(str(heard), ["fra", "eng"]) == [0.2, 0.2]
    with pytest.raises(ValueError, match=r"audit.json: got 'no share of deu'"):
        wrong_shares(str(tmp_path), ["deu"])
    with pytest.raises(ValueError, match=r"data.wrong_share: got .*; allowed auto, a share below 1, the folder"):
        wrong_shares(str(tmp_path / "none"), ["eng"])
    with pytest.raises(ValueError, match=r"wrong_share: got 1\.5"):
        DataSettings(wrong_share=1.5)
