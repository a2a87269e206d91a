from __future__ import annotations

import hashlib

import numpy as np
import pytest
from scipy import stats

from ray_atr.common import sampling

IDS = [f"clip-{i}" for i in range(4000)]


def test_hash_is_blake2b_of_seed_context_and_id() -> None:
    expected = [
        int.from_bytes(hashlib.blake2b(b"(7, 'x', 3)" + i.encode(), digest_size=8).digest(), "little") for i in IDS
    ]
    assert sampling.hashes(IDS, 7, "x", 3).tolist() == expected


def test_a_clip_draws_the_same_in_any_company_and_order() -> None:
    whole = dict(zip(IDS, sampling.uniform(IDS, 1, "q", 2), strict=True))
    part = IDS[300:10:-7]
    np.testing.assert_array_equal(sampling.uniform(part, 1, "q", 2), [whole[name] for name in part])


@pytest.mark.parametrize("other", [(2, "q", 2), (1, "p", 2), (1, "q", 3)])
def test_another_seed_purpose_or_epoch_is_unrelated(other: tuple[int, str, int]) -> None:
    first, second = sampling.uniform(IDS, 1, "q", 2), sampling.uniform(IDS, *other)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.06


def test_uniform_is_uniform() -> None:
    assert stats.kstest(sampling.uniform(IDS, 0, "u"), "uniform").pvalue > 1e-3


def test_integers_cover_their_range_evenly() -> None:
    drawn = sampling.integers(IDS, 1, 8, 0, "language")
    counts = np.bincount(drawn, minlength=8)
    assert counts[0] == 0
    assert stats.chisquare(counts[1:]).pvalue > 1e-3


def test_integers_take_a_bound_for_each_id() -> None:
    bounds = np.arange(1, len(IDS) + 1)
    drawn = sampling.integers(IDS, 0, bounds, 0, "n")
    assert np.all((drawn >= 0) & (drawn < bounds))
    with pytest.raises(ValueError, match="empty range"):
        sampling.integers(IDS, 3, 3, 0, "n")


def test_permutation_gives_the_same_order_of_names_however_they_came() -> None:
    ids = IDS[:50]
    order = [ids[i] for i in sampling.permutation(ids, 0, "epoch", 1)]
    turned = ids[::-1]
    assert [turned[i] for i in sampling.permutation(turned, 0, "epoch", 1)] == order
    assert sorted(order) == sorted(ids)
    assert order != [ids[i] for i in sampling.permutation(ids, 0, "epoch", 2)]


def test_an_epoch_has_each_group_by_its_weight_and_others_of_a_fraction_in_each() -> None:
    ids, groups, weights = IDS[:43], np.repeat([0, 1, 2, 3], [13, 10, 10, 10]), np.array([0.2, 2.0, 1.5, 0.0])
    epochs = [sampling.weighted(ids, groups, weights, 0, epoch) for epoch in range(20)]
    counts = [np.bincount(rows, minlength=len(ids)) for rows in epochs]
    for drawn, rows in zip(counts, epochs, strict=True):
        # 2.6 of the 13 clips.
        assert [int(drawn[groups == group].sum()) for group in range(4)] == [3, 20, 15, 0]
        assert set(drawn[groups == 1]) == {2}
        assert set(drawn[groups == 2]) == {1, 2}
        assert sampling.num_weighted(groups, weights) == len(rows)
    assert all(sum(counts)[:13] > 0), "in every epoch other clips"
