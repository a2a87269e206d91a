from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from ray_atr.data.languages import LANGUAGES
from ray_atr.data.noise import NOISE_KINDS, Noise, caption_owner, caption_owners

IDS = [f"clip-{i:05d}" for i in range(5000)]
OWN = np.arange(len(IDS))
CODES = tuple(LANGUAGES)


@pytest.mark.parametrize("ratio", [0.2, 0.4, 0.6])
def test_the_replaced_share_is_binomial(ratio: float) -> None:
    replaced = int((caption_owner(IDS, Noise(ratio=ratio), 3) != OWN).sum())
    # A clip that is replaced never keeps its own, so the count is Binomial(N, ratio) itself.
    assert stats.binomtest(replaced, len(IDS), ratio).pvalue > 1e-3


@pytest.mark.parametrize("kind", NOISE_KINDS)
def test_no_noise_changes_nothing(kind: str) -> None:
    owners = caption_owners(IDS, CODES, Noise(ratio=0.0, kind=kind), 3)
    np.testing.assert_array_equal(owners, np.repeat(OWN[:, None], 8, axis=1))


def test_new_owners_are_spread_over_all_other_clips() -> None:
    owner = caption_owner(IDS, Noise(ratio=0.99), 0)
    replaced = owner != OWN
    distance = (owner[replaced] - OWN[replaced]) % len(IDS)
    assert distance.min() >= 1
    assert stats.kstest(distance / len(IDS), "uniform").pvalue > 1e-3


def test_two_clips_swap_and_never_keep_their_own() -> None:
    owners = np.array([caption_owner(["a", "b"], Noise(ratio=0.9), seed) for seed in range(300)])
    assert np.all((owners >= 0) & (owners <= 1))
    assert (owners[:, 0] == 1).mean() == pytest.approx(0.9, abs=0.06)


@pytest.mark.parametrize("kind", NOISE_KINDS)
def test_order_of_clips_and_languages_does_not_matter(kind: str) -> None:
    ids, noise = IDS[:400], Noise(ratio=0.5, kind=kind)
    owners = caption_owners(ids, CODES, noise, 11)
    named = {
        (name, code): ids[owner]
        for name, row in zip(ids, owners, strict=True)
        for code, owner in zip(CODES, row, strict=True)
    }
    shuffle = np.random.default_rng(0).permutation(len(ids))
    mixed, codes = [ids[i] for i in shuffle], CODES[::-1]
    again = caption_owners(mixed, codes, noise, 11)
    for name, row in zip(mixed, again, strict=True):
        for code, owner in zip(codes, row, strict=True):
            assert mixed[owner] == named[name, code]


def test_another_seed_is_another_noise_and_more_noise_keeps_the_less() -> None:
    low, high = (caption_owner(IDS, Noise(ratio=ratio), 5) for ratio in (0.2, 0.6))
    assert np.all(high[low != OWN] == low[low != OWN])
    other = caption_owner(IDS, Noise(ratio=0.2), 6)
    assert np.any((other != OWN) != (low != OWN))


def test_language_noise_replaces_exactly_one_language() -> None:
    owners = caption_owners(IDS, CODES, Noise(ratio=0.4, kind="language"), 3)
    replaced = owners != OWN[:, None]
    assert set(replaced.sum(axis=1)) == {0, 1}
    assert stats.binomtest(int(replaced.any(axis=1).sum()), len(IDS), 0.4).pvalue > 1e-3
    assert stats.chisquare(replaced.sum(axis=0)).pvalue > 1e-3


def test_language_noise_takes_only_what_is_there() -> None:
    has = np.random.default_rng(0).random((len(IDS), 8)) < 0.5
    has[:, 0] = True
    owners = caption_owners(IDS, CODES, Noise(ratio=0.9, kind="language"), 3, has)
    rows, columns = np.nonzero(owners != OWN[:, None])
    assert len(rows) > 4000
    assert np.all(has[rows, columns])
    assert np.all(has[owners[rows, columns], columns])


def test_prefix_shuffle_permutes_the_first_share() -> None:
    owner = caption_owner(IDS, Noise(ratio=0.4, kind="prefix_shuffle"), 3)
    np.testing.assert_array_equal(np.sort(owner[:2000]), OWN[:2000])
    np.testing.assert_array_equal(owner[2000:], OWN[2000:])
    assert (owner[:2000] != OWN[:2000]).mean() > 0.99


def test_bad_noise_is_refused() -> None:
    for ratio in (1.0, 1.2, -0.1, float("nan")):
        with pytest.raises(ValueError, match=r"ratio: got .*; allowed \[0, 1\)"):
            Noise(ratio=ratio)
    with pytest.raises(ValueError, match=r"kind: got 'pairs'; .*did you mean pair\?"):
        Noise(kind="pairs")
    with pytest.raises(ValueError, match="caption_owners"):
        caption_owner(IDS, Noise(ratio=0.2, kind="language"), 0)
    with pytest.raises(ValueError, match="each clip once"):
        caption_owner(["a", "a"], Noise(ratio=0.2), 0)
    with pytest.raises(ValueError, match="training split of one clip"):
        caption_owner(["a"], Noise(ratio=0.2), 0)
