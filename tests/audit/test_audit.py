"""Injected noise is found by heads that never saw the clip; the stated share of false alarms holds; shifted blocks are named."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.stats import binom, nbinom, norm
from scipy.stats import t as student

from ray_atr.objectives.correspondence import ridge
from ray_atr.objectives.correspondence.both_ways import BothWays
from ray_atr.objectives.correspondence.cross_fit import Fold, Pairs, cross_fit
from ray_atr.objectives.correspondence.noise_rate import p_values, without_right_mispairs, wrong_share
from ray_atr.workshop.audit import score
from ray_atr.workshop.audit.certify import certified
from ray_atr.workshop.audit.estimate import STRATA, draw, interval, strata_of
from ray_atr.workshop.audit.options import CrossFit
from ray_atr.workshop.audit.posteriors import LEAST_PAIRS, PairPosteriors, decreasing_density, posteriors_of
from ray_atr.workshop.audit.score import Audit, Shift, audit_pairs, find_shifts

N, CLASSES = 480, 24
SETTINGS = CrossFit(folds=5)


def estimate_posteriors(
    scores: np.ndarray, mispairs: np.ndarray, clip: np.ndarray | None = None, same: float = 0.0
) -> PairPosteriors:
    """As an audit has them of one language."""
    return posteriors_of(without_right_mispairs(p_values(scores, mispairs), same, clip), clip)


def clustered(owner: np.ndarray | None = None, seed: int = 0) -> Pairs:
    """Clips and captions that share one of many causes, seen through two random maps; clip i has caption owner[i]."""
    random = np.random.default_rng(seed)
    cause = random.normal(size=(CLASSES, 12))[np.arange(N) % CLASSES] + 0.4 * random.normal(size=(N, 12))
    audio = np.tanh(cause @ random.normal(size=(12, 40))) + 0.1 * random.normal(size=(N, 40))
    text = np.tanh(cause @ random.normal(size=(12, 32))) + 0.1 * random.normal(size=(N, 32))
    owner = np.arange(N) if owner is None else owner
    return Pairs(
        audio=audio.astype(np.float32),
        text=text[owner].astype(np.float32),
        clip=np.arange(N),
        language=np.full(N, "eng"),
        key=np.array([f"caption {i}" for i in owner]),
    )


@pytest.fixture(scope="module")
def of_clean_pairs() -> Audit:
    """What is found where every caption is its clip's."""
    return audit_pairs(clustered(), SETTINGS)


def shuffled(share: float, seed: int = 1) -> np.ndarray:
    """owner [N]: a share of the clips has the caption of a clip of another class."""
    random = np.random.default_rng(seed)
    owner = np.arange(N)
    for i in random.choice(N, int(share * N), replace=False):
        owner[i] = random.choice([j for j in range(N) if j % CLASSES != i % CLASSES])
    return owner


def test_p_values_of_mispairs_are_uniform_and_density_integrates_to_one() -> None:
    random = np.random.default_rng(0)
    posteriors = estimate_posteriors(random.normal(size=4000), random.normal(size=50_000))
    assert abs(posteriors.p_value.mean() - 0.5) < 0.02
    assert posteriors.wrong_share == pytest.approx(1, abs=0.05)
    p_value = np.concatenate([random.uniform(size=3000), random.beta(0.2, 6, size=7000)])
    grid = np.linspace(1e-5, 1, 20_001)
    density = np.interp(grid, np.sort(p_value), decreasing_density(p_value)[np.argsort(p_value)])
    assert np.trapezoid(density, grid) == pytest.approx(1, abs=0.05)


def test_the_posterior_is_that_of_two_known_normals() -> None:
    random = np.random.default_rng(1)
    share, shift = 0.3, 2.5
    scores = np.concatenate([random.normal(size=6000), random.normal(shift, 1, size=14_000)])
    posteriors = estimate_posteriors(scores, random.normal(size=200_000))
    exact = share * norm.pdf(scores) / (share * norm.pdf(scores) + (1 - share) * norm.pdf(scores, shift))
    assert posteriors.wrong_share == pytest.approx(share, abs=0.03)
    assert np.abs(posteriors.wrong - exact).mean() < 0.03


@pytest.mark.parametrize("rate", [0.05, 0.2])
def test_the_stated_share_of_false_alarms_holds(rate: float) -> None:
    random = np.random.default_rng(2)
    is_wrong = np.arange(20_000) < 6000
    scores = np.where(is_wrong, random.normal(size=20_000), random.normal(2.5, 1, size=20_000))
    flagged = estimate_posteriors(scores, random.normal(size=200_000)).flagged(rate)
    assert flagged.any()
    assert (~is_wrong[flagged]).mean() < rate + 0.02


def test_a_wrong_translation_is_told_by_how_well_its_clips_other_captions_fit() -> None:
    """Clips differ in how well their captions fit. Quarters of the pairs by that find more than all together."""
    random = np.random.default_rng(3)
    clip, K = np.repeat(np.arange(1500), 8), 8
    is_wrong = random.random(len(clip)) < 0.1 / K
    right = random.normal(5 + 1.2 * random.normal(size=1500)[clip], 1)
    scores, null = np.where(is_wrong, random.normal(size=len(clip)), right), random.normal(size=200_000)
    alone, beside = (estimate_posteriors(scores, null, of).flagged(0.1) for of in (None, clip))
    assert (~is_wrong[beside]).mean() < 0.12
    assert is_wrong[beside].sum() > 1.3 * is_wrong[alone].sum() > 0
    # Clips without another caption are a part of their own, and few pairs are taken together.
    mixed = np.concatenate([clip[:9600], np.arange(1500, 3900)])
    assert (~is_wrong[estimate_posteriors(scores, null, mixed).flagged(0.1)]).mean() < 0.15
    few = slice(0, 800)
    together = estimate_posteriors(scores[few], null, clip[few])
    assert (np.diff(together.wrong[np.argsort(together.p_value)]) >= 0).all()


def test_languages_that_are_wrong_to_different_degrees_are_judged_apart() -> None:
    """Together, right pairs of a clean language were called wrong, and wrong ones of the worst were not. Where the languages are
    wrong alike, where one has few pairs, and of one language, the posteriors are bit for bit those of all together.
    """
    random = np.random.default_rng(5)
    clip, language = np.divmod(np.arange(2400), 3)
    calls, missed = np.zeros((2, 3)), np.zeros(2)
    for rate in np.tile([0.0, 0.1, 0.4], (8, 1)):
        is_wrong = random.random(len(clip)) < rate[language]
        p_value = norm.sf(random.normal(np.where(is_wrong, 0, 2.0)))
        for way, of in enumerate((None, language)):
            called = posteriors_of(p_value, None, of).flagged(0.1)
            calls[way] += np.bincount(language, called & ~is_wrong, 3)
            missed[way] += (is_wrong & ~called).sum()
    assert calls[1, 0] < 0.4 * calls[0, 0]
    assert missed[1] < 0.9 * missed[0]
    few = np.zeros(2400, dtype=int)
    few[np.flatnonzero(is_wrong)[:300]] = 1
    alike = norm.sf(random.normal(np.where(np.arange(2400) % 7 == 0, 0, 2.0)))
    for told, of in ((alike, language), (p_value, few), (p_value, 0 * language)):
        together, apart = posteriors_of(told, clip), posteriors_of(told, clip, of)
        assert apart.wrong.tolist() == together.wrong.tolist()


def test_the_stated_share_holds_on_small_sets_whose_hard_right_pairs_fit_no_better_than_random_ones() -> None:
    """Six right pairs in a thousand have a p-value above 1/2: by Storey's estimate as it is, an eighth would be false alarms."""
    random = np.random.default_rng(3)
    is_wrong = np.arange(1500) < 300
    alarms = []
    for _ in range(40):
        scores = np.where(is_wrong, random.normal(size=1500), random.normal(2.5, 1, size=1500))
        flagged = estimate_posteriors(scores, random.normal(size=20_000)).flagged(0.1)
        alarms.append((~is_wrong & flagged).sum() / max(1, flagged.sum()))
    assert 0 < np.mean(alarms) < 0.1


def test_pairs_of_one_clip_that_fit_together_or_not_are_one_observation() -> None:
    """Eight captions of a hard clip are no more proof of wrong pairs than one: fewer pairs may be called wrong."""
    random = np.random.default_rng(4)
    is_wrong = np.arange(190) < 38
    by_clip = np.where(is_wrong, random.normal(size=190), random.normal(2.5, 1, size=190))
    scores, clip, mispairs = np.repeat(by_clip, 8), np.repeat(np.arange(190), 8), random.normal(size=20_000)
    apart, together = (estimate_posteriors(scores, mispairs, one).flagged(0.1).sum() for one in (None, clip))
    once = estimate_posteriors(by_clip, mispairs).flagged(0.1).sum()
    assert apart > together
    assert together == pytest.approx(8 * once, rel=0.3)


def test_swapped_captions_are_found_and_clean_ones_left() -> None:
    owner = shuffled(0.3)
    found = audit_pairs(clustered(owner), SETTINGS)
    is_wrong = owner != np.arange(N)
    flagged = found.posteriors.flagged(0.2)
    assert (is_wrong & flagged).sum() / is_wrong.sum() > 0.6
    assert (~is_wrong & flagged).sum() / flagged.sum() < 0.2
    assert found.posteriors.wrong_share == pytest.approx(0.3, abs=0.12)
    # What the heads would rather see is of the clip's own class far more often than chance.
    preferred = owner[found.preferred[is_wrong]] % CLASSES
    assert (preferred == np.flatnonzero(is_wrong) % CLASSES).mean() > 0.5


@pytest.mark.slow
def test_without_held_out_folds_the_regression_believes_what_it_saw(monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken out, the cross-fitting shows: a regression on the wrong pairs too finds fewer of them."""
    owner = shuffled(0.3)
    is_wrong = owner != np.arange(N)
    few = clustered(owner)
    # As many numbers a clip as clips, so that a regression can remember each.
    many = np.maximum(few.audio @ np.random.default_rng(9).normal(size=(40, N)), 0).astype(np.float32)
    pairs = Pairs(many, few.text, few.clip, few.language, few.key)

    class SawAll(BothWays):
        """Takes a clip that is held out for another one that sounds the same."""

        def vectors(self, held_out: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            self.audio = np.concatenate([self.audio[:N], self.audio[:N]])
            return super().vectors(held_out + N)

    def auc(judge: type[BothWays]) -> float:
        fit = np.empty(N)
        for fold in cross_fit(pairs, 2, 0, scorer=judge):
            fit[fold.captions] = fold.score(np.searchsorted(fold.clips, pairs.clip[fold.captions]), fold.captions)
        return float((fit[~is_wrong][:, None] > fit[is_wrong][None, :]).mean())

    honest = auc(BothWays)
    assert honest > 0.99
    monkeypatch.setattr(ridge, "STRENGTHS", (1e-3,))
    assert auc(SawAll) < honest - 0.005


def test_pairs_that_occur_again_are_scored_as_each_alone() -> None:
    random = np.random.default_rng(0)
    audio, text, language = random.normal(size=(2, 5, 7)), random.normal(size=(30, 7)), random.integers(0, 2, 30)
    fold = Fold(np.arange(5), np.arange(30), audio, text, language)
    place, caption = random.integers(0, 5, 1000), random.integers(3, 30, 1000)
    alone = [fold.score(place[n : n + 1], caption[n : n + 1])[0] for n in range(len(place))]
    np.testing.assert_allclose(fold.score(place, caption), alone, atol=1e-12)


@pytest.mark.slow
def test_the_preferred_caption_is_the_best_of_its_language_in_double_precision() -> None:
    """Also where single precision cannot tell captions apart; of captions that say the same it is the first. Of more clips and
    captions than are compared at once.
    """
    random = np.random.default_rng(0)
    clips, M = 2 * score.CLIPS_AT_ONCE + 100, 5 * score.CAPTIONS_AT_ONCE // 2
    clip, language = np.arange(M) % clips, np.array(["deu", "eng"])[random.integers(0, 2, M)]
    text = 1000 + random.normal(size=(M, 6))
    text[M // 2 :] = text[: M // 2] + 1e-9 * random.normal(size=(M // 2, 6))
    same = random.permutation(M)
    same[: M // 20] = same[-M // 20 :]
    pairs = Pairs(np.ones((clips, 2), np.float32), same[:, None].astype(np.float32), clip, language, same)
    language_of = np.unique(language, return_inverse=True)[1]
    held_out = np.arange(3, clips)
    captions = np.flatnonzero(np.isin(clip, held_out))[:clips]
    fold = Fold(held_out, captions, random.normal(size=(2, clips - 3, 6)), text[same], language_of)
    place = np.arange(clips) - 3
    products = fold.audio[language_of[captions], place[clip[captions]]] @ fold.text.T
    products[language_of[captions][:, None] != language_of] = -np.inf
    is_different = score._different(pairs, language_of)
    assert is_different.sum() == len(set(zip(language, same, strict=True)))
    assert min(np.bincount(language_of[is_different])) > score.CAPTIONS_AT_ONCE
    assert min(np.bincount(language_of[captions])) > score.CLIPS_AT_ONCE
    preferred = score._preferred(pairs, fold, place, is_different)
    np.testing.assert_array_equal(same[preferred], same[products.argmax(axis=1)])
    assert (language[preferred] == language[captions]).all()
    assert is_different[preferred].all()
    rough = fold.audio.astype(np.float32)[language_of[captions], place[clip[captions]]] @ text.astype(np.float32).T
    assert (rough.argmax(axis=1) != same[preferred]).any()


def test_the_interval_is_that_of_a_binomial_where_there_is_one_stratum() -> None:
    """Its ends lose as much likelihood as the test allows, by a plain search; a stratum heard to its end is known."""
    found = interval(np.array([10**9]), np.array([60]), np.array([12]))
    rates = np.linspace(0.001, 0.999, 99_801)
    likelihood = binom.logpmf(12, 60, rates)
    allowed = rates[2 * (binom.logpmf(12, 60, 0.2) - likelihood) <= student.ppf(0.975, 59) ** 2]
    assert found == pytest.approx((0.2, allowed[0], allowed[-1]), abs=1e-4)
    assert interval(np.array([10]), np.array([10]), np.array([3])) == (0.3, 0.3, 0.3)
    nothing_wrong = interval(np.array([1000, 10]), np.array([30, 0]), np.array([0, 0]))
    assert nothing_wrong.low == 0
    assert 0.1 < nothing_wrong.high < 0.13


def test_the_interval_covers_any_share_where_the_scores_tell_nothing() -> None:
    """Of 60 answers, exactly, by the binomial; where none is wrong its upper end is that of Clopper and Pearson."""
    number = np.arange(61)
    ends = np.array([interval(np.array([10**9]), np.array([60]), np.array([k])) for k in number])
    assert ends[0, 2] == pytest.approx(1 - 0.025 ** (1 / 60), abs=1e-4)
    for share in np.arange(0.005, 1, 0.005):
        is_held = (ends[:, 1] <= share) & (share <= ends[:, 2])
        assert binom.pmf(number[is_held], 60, share).sum() > 0.93, share


def test_strata_whose_errors_do_not_rise_are_one_and_what_is_left_unheard_alone_is_uncertain() -> None:
    whole = interval(np.array([10**9]), np.array([60]), np.array([10]))
    in_strata = interval(np.full(10, 10**8), np.full(10, 6), np.array([2, 0] * 5))
    assert in_strata == pytest.approx(whole, abs=1e-4)
    apart = interval(np.full(10, 10**8), np.full(10, 6), np.repeat([0, 2], 5))
    assert apart.high - apart.low < 0.95 * (whole.high - whole.low)
    # A sample of 60 of 400 varies as one of 60 * 399 / 340 of very many.
    finite = interval(np.array([400]), np.array([60]), np.array([10]))
    assert (finite.high - finite.low) / (whole.high - whole.low) == pytest.approx(np.sqrt(340 / 399), abs=0.01)


def test_the_interval_holds_no_total_that_what_was_heard_excludes() -> None:
    """Of random strata that are heard nearly or wholly to their ends."""
    random = np.random.default_rng(0)
    for _ in range(100):
        sizes = random.integers(1, 30, size=random.integers(1, 11))
        heard = np.maximum(sizes - random.integers(0, 4, size=len(sizes)), 1)
        wrong = random.integers(0, heard + 1)
        found = interval(sizes, heard, wrong)
        known = np.array([wrong.sum(), sizes.sum() - (heard - wrong).sum()]) / sizes.sum()
        assert known[0] - 1e-9 <= found.low <= found.share + 1e-9
        assert found.share - 1e-9 <= found.high <= known[1] + 1e-9


def test_the_interval_of_strata_has_a_degree_of_freedom_less_for_each_rate() -> None:
    """Of two strata of one size with 1 wrong of 5 and 4 of 5, by a plain search over both rates."""
    found = interval(np.full(2, 10**9), np.full(2, 5), np.array([1, 4]))
    rates = np.linspace(0.001, 0.999, 999)
    lost = [2 * (binom.logpmf(x, 5, x / 5) - binom.logpmf(x, 5, rates)) for x in (1, 4)]
    is_allowed = lost[0][:, None] + lost[1] <= student.ppf(0.975, 10 - 2) ** 2
    totals = (rates[:, None] + rates)[is_allowed] / 2
    assert found == pytest.approx((0.5, totals.min(), totals.max()), abs=2e-3)


@pytest.mark.slow
def test_intervals_cover_and_kept_pairs_keep_their_promise() -> None:
    """Of known normals, 400 pairs with 80 wrong: nearly all of 200 intervals, bounds and kept sets hold what they say."""
    random = np.random.default_rng(5)
    is_wrong = np.arange(400) < 80
    null = random.normal(size=20_000)
    held = []
    for seed in range(200):
        posteriors = estimate_posteriors(
            np.where(is_wrong, random.normal(size=400), random.normal(3, 1, size=400)), null
        )
        strata = strata_of(posteriors.p_value, posteriors.wrong_share)
        heard = draw(strata, 60, seed)
        counts = (
            np.bincount(some, minlength=STRATA) for some in (strata, strata[heard], strata[heard[is_wrong[heard]]])
        )
        found = interval(*counts)
        kept = certified(posteriors.p_value, 0.05, posteriors.share)
        held.append(
            (
                found.low <= 0.2 <= found.high,
                posteriors.share.most >= 0.2,
                is_wrong[kept].mean() <= 0.05,
                kept[~is_wrong].mean() > 0.9,
                found.high - found.low < 0.15,
            )
        )
    shares = np.mean(held, axis=0)
    assert (shares[:3] >= 0.93).all(), shares
    assert (shares[3:] > 0.8).all(), shares


def largest_kept(p_value: np.ndarray, rate: float) -> int:
    """Of sorted p-values: those up to t are a negative binomial, given how many are above 1/2, each of which counts as wrong."""
    number, is_above, low = np.arange(1, len(p_value) + 1), p_value > 0.5, np.minimum(p_value, 0.5)
    allowed = (rate * number + 1e-9).astype(int) - np.cumsum(is_above)
    is_unlikely = nbinom.sf(allowed, is_above.sum() + 1, 1 - low / (low + 0.5)) <= 0.03
    return int(number[(allowed >= 0) & is_unlikely].max())


def test_the_kept_set_is_the_largest_in_which_too_many_wrong_pairs_are_unlikely() -> None:
    random = np.random.default_rng(6)
    for right in (random.beta(0.2, 8, 320), np.full(4000, 1e-5)):
        p_value = np.sort(np.concatenate([random.random(80), right]))
        largest, kept = largest_kept(p_value, 0.05), certified(p_value, 0.05, wrong_share(p_value))
        assert largest > 100
        assert kept.sum() == largest
        assert kept[:largest].all()
    # One in fifty: all may stay.
    assert largest == len(p_value)
    few = np.sort(np.concatenate([np.linspace(0.01, 0.99, 20), np.linspace(1e-6, 1e-3, 60)]))
    for rate in (0.05, 0.1, 0.15, 0.2, 0.25, 0.3):
        assert certified(few, rate, wrong_share(few)).sum() == largest_kept(few, rate), rate
    with pytest.raises(ValueError, match="--keep: got 1; allowed a share above 0 and below 1"):
        certified(few, 1, wrong_share(few))


def test_kept_pairs_keep_their_promise_where_those_of_a_clip_are_wrong_together() -> None:
    random = np.random.default_rng(7)
    clip, is_wrong = np.repeat(np.arange(100), 4), np.repeat(np.arange(100) < 20, 4)
    held = []
    for _ in range(200):
        right = norm.sf(random.normal(4, 1, size=400))
        p_value = np.where(is_wrong, np.repeat(random.random(100), 4), right)
        sets = (certified(p_value, 0.05, wrong_share(p_value, of)) for of in (clip, None))
        held.append([is_wrong[kept].mean() <= 0.05 for kept in sets])
    together, apart = np.mean(held, axis=0)
    assert together >= 0.95 > apart + 0.05, (together, apart)


def test_p_values_of_wrong_pairs_are_uniform_though_some_mispairs_are_right() -> None:
    """8 captions, so that a wrong pair's clip gets its own caption in one of seven mispairs."""
    random = np.random.default_rng(8)
    found = []
    for _ in range(20):
        own, said = random.integers(0, 8, size=(2, 1000))
        said = np.where(random.random(1000) < 0.4, said, own)
        fit = random.normal(size=(1000, 8)) + 3 * (np.arange(8) == own[:, None])
        scores, mispairs = fit[np.arange(1000), said], fit[np.arange(8) != said[:, None]]
        same = np.mean([(said == one).sum() * ((said == one).sum() - 1) for one in range(8)]) * 8 / (1000 * 999)
        apart, plain = (estimate_posteriors(scores, mispairs, same=one).p_value[said != own] for one in (same, 0.0))
        found.append([[(p <= t).mean() for t in (0.02, 0.05, 0.1)] for p in (apart, plain)])
    corrected, plain = np.mean(found, axis=0)
    assert (corrected < [0.022, 0.053, 0.105]).all(), corrected
    assert (corrected > [0.014, 0.044, 0.095]).all(), corrected
    assert (plain < [0.005, 0.02, 0.065]).all(), plain


def test_an_audit_takes_right_mispairs_out_of_its_p_values() -> None:
    random = np.random.default_rng(10)
    said, nothing = random.integers(0, 5, 100), np.zeros((100, 1), np.float32)
    of = Pairs(nothing, nothing, np.arange(100), np.full(100, "eng"), said.astype(str))
    fit, mispairs = random.normal(1, size=100), random.normal(size=2000)
    found = score._p_values(of, np.zeros(100, np.int64), fit, [[mispairs]])
    plain = p_values(fit, mispairs)
    np.testing.assert_array_equal(found, without_right_mispairs(plain, score._same(of), of.clip))
    assert found.sum() < plain.sum()


def test_the_chance_that_captions_of_two_clips_say_the_same_is_that_of_all_pairs_of_clips() -> None:
    key = np.random.default_rng(9).integers(0, 5, 60).astype(str)
    of = Pairs(np.ones((60, 2), np.float32), np.ones((60, 2), np.float32), np.arange(60), np.full(60, "eng"), key)
    same = [key[one] == key[other] for one, other in itertools.permutations(range(60), 2)]
    assert score._same(of) == pytest.approx(np.mean(same))
    twice = of.subset(np.repeat(np.arange(60), 2))
    assert score._same(twice) == score._same(of), "a clip that says it twice is no other clip"


@pytest.mark.slow
def test_wrong_pairs_of_a_language_are_told_from_mispairs_in_it() -> None:
    """Where 40% of one language are wrong its regression is less sure: against all mispairs its wrong pairs looked right. And its
    posteriors are its own.
    """
    random, N = np.random.default_rng(0), 4 * LEAST_PAIRS
    meaning, of_language = random.normal(size=(20, 24)), random.normal(size=(2, 24, 20))
    kind = random.integers(0, 20, N)
    audio = (meaning[kind] + 0.6 * random.normal(size=(N, 24))).astype(np.float32)
    clip = np.concatenate([np.arange(N), np.flatnonzero(random.random(N) < 0.4)])
    language = np.where(np.arange(len(clip)) < N, 0, 1)
    is_wrong = (language == 1) & (random.random(len(clip)) < 0.4)
    said = np.where(is_wrong, (kind[clip] + random.integers(1, 20, len(clip))) % 20, kind[clip])
    text = np.stack([meaning[one] @ of_language[k] for one, k in zip(said, language, strict=True)]).astype(np.float32)
    key = np.char.add(language.astype(str), said.astype(str))
    found = audit_pairs(
        Pairs(audio, text, clip, np.array(["eng", "fra"])[language], key), CrossFit(folds=5, mispairs=20_000)
    )
    p_value, french = found.posteriors.p_value, language == 1
    of_french = wrong_share(p_value[french], clip[french])
    assert of_french.least < is_wrong[french].mean() < of_french.most
    assert wrong_share(p_value[~french], clip[~french]).most < 0.03
    kept = certified(p_value, 0.05, found.posteriors.share)
    assert is_wrong[kept].mean() <= 0.05
    assert kept[~is_wrong].mean() > 0.95
    assert found.posteriors.wrong.tolist() == posteriors_of(p_value, clip, language).wrong.tolist()
    assert found.posteriors.wrong.tolist() != posteriors_of(p_value, clip).wrong.tolist()


def test_a_language_that_says_one_thing_alone_is_named() -> None:
    pairs = clustered()
    text, language = np.tile(pairs.text[:40], (2, 1)), np.repeat(["eng", "fra"], 40)
    key = np.concatenate([pairs.key[:40], np.full(40, "du bruit")])
    # Every clip that it could be a mispair of says it.
    only = Pairs(pairs.audio[:40], text, np.tile(np.arange(40), 2), language, key)
    with pytest.raises(ValueError, match="no caption in fra differs from a clip's own"):
        audit_pairs(only, CrossFit(folds=4))


def test_a_shifted_block_is_named() -> None:
    owner = np.arange(N)
    owner[100:140] = np.arange(99, 139)  # row i has the caption of row i - 1: its own is one further on
    (shift,) = audit_pairs(clustered(owner), SETTINGS).shifts
    assert shift.offset == 1
    assert abs(shift.first - 100) <= 2
    assert abs(shift.last - 139) <= 2


def test_segments_are_found_apart_and_do_not_overlap() -> None:
    own = np.full(60, 0.02)
    own[10:20] = own[40:50] = 0.98
    shifted = np.full(60, 0.98)
    shifted[10:20] = shifted[40:50] = 0.02
    found = find_shifts(own, {1: shifted, -1: np.full(60, 0.98)})
    assert {(s.first, s.last, s.offset) for s in found} == {(10, 19, 1), (40, 49, 1)}
    assert find_shifts(np.full(60, 0.02), {1: np.full(60, 0.98)}) == []
    # At both ends of the list.
    ends = find_shifts(np.roll(own, -10), {1: np.roll(shifted, -10)}) + find_shifts(own[:50], {1: shifted[:50]})
    assert {(s.first, s.last) for s in ends} == {(0, 9), (30, 39), (10, 19), (40, 49)}
    # Blocks that share a row are no two blocks: the weaker one begins where the other ends.
    own[20:25], other = 0.98, np.full(60, 0.98)
    other[19:25] = 0.02
    assert {(s.first, s.last, s.offset) for s in find_shifts(own, {1: shifted, -1: other})} == {
        (10, 19, 1),
        (40, 49, 1),
    }
    assert isinstance(found[0], Shift)


def test_heads_that_tell_nothing_say_so_and_name_no_pair_and_no_block(of_clean_pairs: Audit) -> None:
    random = np.random.default_rng(0)
    pairs = clustered()
    noise = random.normal(size=pairs.audio.shape).astype(np.float32)
    blind = audit_pairs(Pairs(noise, pairs.text, pairs.clip, pairs.language, pairs.key), SETTINGS)
    assert blind.found_share < 0.4
    assert blind.shifts == []
    # All pairs seem as wrong as random ones are.
    assert blind.posteriors.flagged(0.1).mean() > 0.5
    assert not blind.flagged(0.1).any()
    assert of_clean_pairs.is_something_found
    assert of_clean_pairs.found_share > 0.7


def test_the_caption_that_fits_better_is_of_the_same_language() -> None:
    """Though those of the other language are the same vectors, without the half of them that is wrong."""
    spoken, clean = clustered(shuffled(0.5)), clustered()
    both = Pairs(
        audio=spoken.audio,
        text=np.concatenate([spoken.text, clean.text]),
        clip=np.tile(np.arange(N), 2),
        language=np.repeat(["eng", "fra"], N),
        key=np.concatenate([spoken.key, clean.key]),
    )
    found = audit_pairs(both, SETTINGS)
    assert (both.language[found.preferred] == both.language).all()
    assert (found.preferred != np.arange(2 * N)).any()


def test_a_clip_s_equal_captions_are_no_mispairs_and_the_result_repeats(of_clean_pairs: Audit) -> None:
    pairs = clustered()
    same = Pairs(pairs.audio, pairs.text, pairs.clip, pairs.language, np.full(N, "one caption"))
    with pytest.raises(ValueError, match="nothing to compare"):
        audit_pairs(same, SETTINGS)
    np.testing.assert_array_equal(audit_pairs(pairs, SETTINGS).score, of_clean_pairs.score)


def test_bad_vectors_are_refused_with_the_row() -> None:
    pairs = clustered()
    audio = pairs.audio.copy()
    audio[7, 3] = np.nan
    with pytest.raises(ValueError, match=r"audio\[7\]"):
        Pairs(audio, pairs.text, pairs.clip, pairs.language, pairs.key)
    with pytest.raises(ValueError, match=r"^--cross-fit\.folds: got 400; allowed at most \d+, half of the"):
        audit_pairs(pairs, CrossFit(folds=400))
    few = Pairs(pairs.audio, pairs.text[:3], np.arange(3), pairs.language[:3], pairs.key[:3])
    with pytest.raises(ValueError, match=r"split: got '3 clips with captions'; allowed 4 or more"):
        audit_pairs(few, CrossFit())
