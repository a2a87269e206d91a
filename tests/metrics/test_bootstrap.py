"""Intervals: their values against resampling by hand, their coverage, and the paired comparison."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binomtest, norm, t

from ray_atr.metrics import bootstrap, evaluate_languages, retrieve_languages
from ray_atr.metrics.bootstrap import (
    _unit_groups,
    _weights,
    across_seeds,
    bootstrap_runs,
    compare_runs,
    over_clips_and_seeds,
)
from ray_atr.metrics.measures import MEASURES
from ray_atr.metrics.metric import Metric, QueryGroup
from ray_atr.metrics.relevance import relevance_by_label
from ray_atr.metrics.retrieval import Retrieval
from ray_atr.metrics.samples import Sample, _means, _weighted_median, retrieval_samples, zero_shot_samples
from ray_atr.metrics.zero_shot import classify_languages
from tests.support.whole_product import ONLY_IN_WHOLE


def model(seed: int, noise: float, clips: int = 60) -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray]:
    data, own = np.random.default_rng(0), np.random.default_rng(seed)
    audio = data.normal(size=(clips, 16))
    clip = np.repeat(np.arange(clips), 3)
    return audio, {k: audio[clip] + noise * own.normal(size=(3 * clips, 16)) for k in ("eng", "fra")}, clip


def bootstrapped(retrievals: dict[str, Retrieval], **options) -> dict:
    return bootstrap_runs([retrieval_samples(retrievals)], **options)


def compared(first: dict[str, Retrieval], second: dict[str, Retrieval], **options) -> dict:
    return compare_runs([retrieval_samples(first)], [retrieval_samples(second)], **options)


def test_units_of_two_kinds_are_drawn_apart() -> None:
    """Clips and classes are as many here: drawn alike, the errors of both would move together."""
    (weight,) = _weights([np.arange(50), np.arange(50, 100)], 20, 0)
    assert (weight[:, :50].sum(axis=1) == 50).all()
    assert not (weight[:, :50] == weight[:, 50:]).all(axis=1).any()


def test_weights_act_as_copies_of_the_clips() -> None:
    rng = np.random.default_rng(1)
    clip = rng.integers(0, 8, size=30)
    values = rng.integers(0, 9, size=30).astype(float)
    for _ in range(20):
        drawn = rng.integers(0, 8, size=8)
        copies = np.concatenate([values[clip == c] for c in drawn])
        weight = np.bincount(drawn, minlength=8)[None].astype(float)
        assert _weighted_median(values, clip, weight)[0] == np.median(copies)
        assert _means([values], clip, weight)[0, 0] == pytest.approx(copies.mean())


def test_values_are_those_of_the_evaluation_and_lie_within() -> None:
    audio, text, clip = model(1, 1.5)
    metrics = evaluate_languages(audio, text, clip)
    intervals = bootstrapped(retrieve_languages(audio, text, clip), draws=200)
    for name, interval in intervals.items():
        assert interval.value == pytest.approx(metrics[name]), name
        assert interval.low <= interval.value <= interval.high, name
    assert "text_to_audio/mean/mean_rank_variance" in intervals
    wider = bootstrapped(retrieve_languages(audio, text, clip), draws=200, level=0.99)
    recall = Metric.parse("text_to_audio/fra/recall_at_1")
    assert wider[recall].high - wider[recall].low > intervals[recall].high - intervals[recall].low


def test_width_is_that_of_the_standard_error_over_clips() -> None:
    audio, text, clip = model(2, 1.5, clips=400)
    retrievals = retrieve_languages(audio, {"eng": text["eng"]}, clip)
    per_clip = retrievals["eng"].audio_to_text.recall[1]
    expected = 2 * norm.ppf(0.975) * per_clip.std() / math.sqrt(len(per_clip))
    interval = bootstrapped(retrievals, draws=2000)["audio_to_text/eng/recall_at_1"]
    assert interval.high - interval.low == pytest.approx(expected, rel=0.08)
    # Three captions of a clip that hit or miss together must not pass for three independent queries.
    together = Retrieval(retrievals["eng"].text_to_audio, retrievals["eng"].audio_to_text)
    hits = np.repeat(per_clip, 3)
    together.text_to_audio.recall[1] = hits
    clustered = bootstrapped({"eng": together}, draws=2000)["text_to_audio/eng/recall_at_1"]
    assert clustered.high - clustered.low == pytest.approx(expected, rel=0.08)


def test_paired_difference_sees_what_separate_intervals_hide() -> None:
    audio, text, clip = model(3, 1.6, clips=150)
    first = retrieve_languages(audio, text, clip)
    better = {k: v + 0.05 * audio[clip] for k, v in text.items()}
    second = retrieve_languages(audio, better, clip)
    name = "text_to_audio/mean/map_at_10"
    a, b = bootstrapped(first, draws=500)[name], bootstrapped(second, draws=500)[name]
    assert b.low < a.high
    difference = compared(first, second, draws=500)[name]
    assert difference.value == pytest.approx(b.value - a.value)
    assert difference.is_distinguishable
    assert difference.p_value <= 0.01
    assert difference.low > 0


def test_no_difference_is_not_distinguishable() -> None:
    audio, text, clip = model(4, 1.5)
    same = compared(retrieve_languages(audio, text, clip), retrieve_languages(audio, text, clip), draws=50)
    assert all(d.value == d.low == d.high == 0 and d.p_value == 1 and not d.is_distinguishable for d in same.values())
    false_alarms = 0
    for seed in range(20):
        one, two = (retrieve_languages(*model(seed + add, 1.5)) for add in (100, 200))
        false_alarms += compared(one, two, draws=200)["text_to_audio/mean/recall_at_1"].is_distinguishable
    assert false_alarms <= 5


def test_the_seed_decides_the_draws_and_chunks_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    retrievals = retrieve_languages(*model(5, 1.5))
    first = bootstrapped(retrievals, draws=100, seed=3)
    assert bootstrapped(retrievals, draws=100, seed=3) == first
    assert bootstrapped(retrievals, draws=100, seed=4) != first
    groups = np.arange(30), np.arange(30, 35)
    (whole,) = _weights(groups, 100, 3)
    monkeypatch.setattr(bootstrap, "WEIGHTS_AT_ONCE", 700)
    chunks = list(_weights(groups, 100, 3))
    assert [len(chunk) for chunk in chunks] == [20] * 5
    np.testing.assert_array_equal(np.concatenate(chunks), whole)


def test_across_seeds() -> None:
    got = across_seeds([{"a": 1.0, "b": 2.0}, {"a": 2.0, "b": 2.0}, {"a": 6.0}])
    assert set(got) == {"a"}
    assert got["a"].mean == 3
    assert got["a"].deviation == pytest.approx(math.sqrt((4 + 1 + 9) / 2))
    assert math.isnan(across_seeds([{"a": 1.0}])["a"].deviation)


def test_models_of_different_queries_are_refused() -> None:
    audio, text, clip = model(6, 1.5)
    first = retrieve_languages(audio, text, clip)
    with pytest.raises(ValueError, match="other queries"):
        compared(first, retrieve_languages(audio, text, clip[::-1].copy()))
    with pytest.raises(ValueError, match="second: got"):
        compared(first, {"eng": first["eng"]})
    with pytest.raises(ValueError, match=r"second: got \['text_to_audio_by_plan/eng', .*languages of the first"):
        compare_runs([retrieval_samples(first)], [retrieval_samples(first, "plan")])


def test_what_both_were_asked_is_compared_whatever_the_order() -> None:
    first = retrieval_samples(retrieve_languages(*model(14, 1.5)))
    second = retrieval_samples(retrieve_languages(*model(15, 1.5)))
    expected = compare_runs([first], [second], draws=20)
    beside = retrieval_samples(retrieve_languages(*model(15, 1.5), ranking="cosine"), "cosine")
    more = dict(reversed({**second, **beside}.items()))
    assert compare_runs([first], [more], draws=20) == expected
    assert list(compare_runs([more], [first], draws=20)) != list(expected)
    assert {name: -d.value for name, d in compare_runs([more], [first], draws=20).items()} == pytest.approx(
        {name: d.value for name, d in expected.items()}
    )


def test_zero_shot_accuracy_has_the_interval_of_a_share_over_clips() -> None:
    rng = np.random.default_rng(8)
    texts = rng.normal(size=(5, 12))
    label = rng.integers(0, 5, size=500)
    audio = texts[label] + 2.0 * rng.normal(size=(500, 12))
    names = list("abcde")
    found = classify_languages(audio, {"eng": texts, "fra": texts + 0.1}, names, [names[i] for i in label])
    intervals = bootstrap_runs([zero_shot_samples(found)], draws=2000)
    accuracy = intervals["classification/eng/accuracy"]
    expected = 2 * norm.ppf(0.975) * math.sqrt(accuracy.value * (1 - accuracy.value) / 500)
    assert accuracy.high - accuracy.low == pytest.approx(expected, rel=0.08)
    metrics = {name: (found["eng"].metrics()[name] + found["fra"].metrics()[name]) / 2 for name in ("map", "accuracy")}
    for name, value in metrics.items():
        assert intervals[f"classification/mean/{name}"].value == pytest.approx(value)


def test_the_mean_of_seeds_is_compared_as_a_mean() -> None:
    models = [retrieval_samples(retrieve_languages(*model(seed, 1.5))) for seed in (10, 11)]
    worse = [retrieval_samples(retrieve_languages(*model(seed, 2.5))) for seed in (12, 13)]
    name = "text_to_audio/mean/recall_at_10"
    got = compare_runs(worse, models, draws=200)[name]
    means = [np.mean([bootstrap_runs([one], draws=2)[name].value for one in runs]) for runs in (worse, models)]
    assert [got.first, got.second] == pytest.approx(means)
    assert got.is_distinguishable
    # Two seeds against three are not paired.
    got = compare_runs(worse, [*models, models[0]], draws=200)[name]
    assert got.first == pytest.approx(means[0])
    assert got.value == pytest.approx(got.second - got.first)


def test_an_interval_of_a_share_ends_where_shares_end() -> None:
    # Eight clips, of which two seeds find nearly all, or hardly any, among ten.
    easy, hard = (
        [retrieval_samples(retrieve_languages(*model(seed, noise, 8))) for seed in (3, 4)] for noise in (0.8, 9)
    )
    found = [*bootstrap_runs(easy, draws=100).items(), *bootstrap_runs(hard, draws=100).items()]
    shares = [one for name, one in found if MEASURES[name.name].is_share]
    assert all(0 <= one.low <= one.value <= one.high <= 1 for one in shares)
    # Some are cut off, and those of ranks are not.
    assert {0.0, 1.0} <= {end for one in shares if one.low < one.high for end in (one.low, one.high)}
    assert any(one.high > 1 for name, one in found if name.name == "median_rank")


def test_an_interval_allows_for_misses_where_none_was_seen() -> None:
    """Of 100 clips 99% are found: in a third of such sets all are, and no draw of these differs."""
    generator, clips, truth = np.random.default_rng(5), 100, 0.99
    recall, mean = Metric.parse("text_to_audio/fra/recall_at_1"), Metric.parse("text_to_audio/mean/recall_at_1")
    covered, runs = [], 150
    for _ in range(runs):
        hit = (generator.random(clips) < truth).astype(float)
        of_clips = Sample(np.arange(clips), np.arange(clips), {"recall_at_1": hit}, {})
        found = bootstrap_runs([{QueryGroup("text_to_audio", "fra"): of_clips}], draws=100)[recall]
        covered.append(found.low <= truth <= found.high)
    assert np.mean(covered) > 0.9
    of_class = Sample(np.arange(5), clips + np.arange(5), {"text_to_audio_map": np.zeros(5)}, {})
    all_right = of_clips._replace(means={"recall_at_1": np.ones(clips)})
    both = {QueryGroup("text_to_audio", language): all_right for language in ("eng", "fra")}
    for samples in ([both], [both, both]):
        several = bootstrap_runs([{**one, QueryGroup("classification", "eng", "classes"): of_class} for one in samples])
        for name in (recall, mean):
            assert (several[name].low, several[name].high) == (
                pytest.approx(binomtest(clips, clips).proportion_ci().low),
                1,
            )
        of_classes = several[Metric.parse("classification/eng/text_to_audio_map")]
        assert (of_classes.low, of_classes.high) == (0, pytest.approx(binomtest(0, 5).proportion_ci().high))


def test_a_mean_over_unseen_languages_has_as_many_clips_as_these() -> None:
    """Of 60 clips three have a French caption: its interval, and that of the mean over it, is of three clips."""
    audio, clips = np.eye(60), np.arange(60)
    present = {"eng": clips < 60, "fra": clips < 3}
    retrievals = retrieve_languages(audio, {"eng": audio, "fra": audio}, clips, present=present)
    found = bootstrapped(retrievals, trained=["eng"], draws=10)
    lows = {part: found[Metric("text_to_audio", part, "recall_at_1")].low for part in ("fra", "unseen", "trained")}
    of_three, of_all = (binomtest(n, n).proportion_ci().low for n in (3, 60))
    assert lows == pytest.approx({"fra": of_three, "unseen": of_three, "trained": of_all})


CLIPS, SIMULATIONS = 400, 400


def simulated(generator: np.random.Generator, seeds: int, deviation: float) -> np.ndarray:
    """What two methods of the same true accuracy find of each clip less one another, [seeds, clips].

    Clips are hard or easy for a method, each run is lucky or not with each, and a run's accuracy deviates over seeds.
    """
    hard, lucky = generator.normal(size=(2, 1, CLIPS)), generator.normal(size=(2, seeds, CLIPS))
    level = norm.ppf(0.6) + deviation / norm.pdf(norm.ppf(0.6)) * generator.normal(size=(2, seeds, 1))
    first, second = (
        0.35 * hard + np.sqrt(1 - 0.35**2 - 0.7) * lucky + np.sqrt(0.7) * generator.normal(size=CLIPS) + level
    )
    return (second > 0).astype(float) - (first > 0)


@pytest.mark.parametrize(
    ("seeds", "deviation"),
    [
        pytest.param(seeds, deviation, marks=() if (number + place) % 2 == 0 else ONLY_IN_WHOLE)
        for place, seeds in enumerate((3, 5))
        for number, deviation in enumerate((0.0, 0.01, 0.02, 0.03))
    ],
)
def test_intervals_over_clips_and_seeds_cover_what_they_state(seeds: int, deviation: float) -> None:
    generator = np.random.default_rng([seeds, int(1000 * deviation)])
    weight = generator.multinomial(CLIPS, np.full(CLIPS, 1 / CLIPS), size=200) / CLIPS
    covered = 0
    for _ in range(SIMULATIONS):
        of_clips = simulated(generator, seeds, deviation)
        bounds = over_clips_and_seeds(of_clips.mean(axis=1), of_clips @ weight.T)
        covered += bounds.low <= 0 <= bounds.high
        assert (bounds.p_value < 0.05) == (not bounds.low <= 0 <= bounds.high)
    # What is meant is .93 to .97; two standard errors of this many simulations are .025.
    assert 0.905 <= covered / SIMULATIONS <= 0.985


def test_p_values_are_two_sided() -> None:
    generator = np.random.default_rng(0)
    drawn = generator.normal(0.02, 0.01, size=(1, 200_000))
    one_run = over_clips_and_seeds(np.array([0.02]), drawn)
    assert one_run.p_value == pytest.approx(2 * norm.sf(2), rel=0.05)
    down = over_clips_and_seeds(np.array([-0.02]), -drawn)
    assert down.p_value == pytest.approx(one_run.p_value)
    # Three seeds that agree, on the same clips: the variance is that over clips.
    same = over_clips_and_seeds(np.full(3, 0.02), np.repeat(drawn, 3, axis=0))
    assert same.p_value == pytest.approx(2 * norm.sf(2), rel=0.05)
    assert (same.low, same.high) == pytest.approx((0.02 - 1.96 * 0.01, 0.02 + 1.96 * 0.01), abs=2e-4)


def test_a_p_value_is_that_of_the_draws_which_have_a_value() -> None:
    """Where a language has few clips, many draws hold none of them: they are no evidence."""
    generator = np.random.default_rng(3)
    values, drawn = np.array([0.02]), generator.normal(0.02, 0.01, size=(1, 4000))
    whole = over_clips_and_seeds(values, drawn)
    drawn[:, ::2] = np.nan
    found = over_clips_and_seeds(values, drawn)
    assert found.p_value == pytest.approx(2 * norm.sf(2), abs=0.015)
    assert found.p_value == pytest.approx(whole.p_value, abs=0.015)


def test_runs_of_unequal_number_are_compared_as_independent_seeds() -> None:
    generator = np.random.default_rng(0)
    clips = 0.001 * generator.normal(size=400)
    first, second = np.array([0.5, 0.54, 0.52, 0.56]), np.array([0.60, 0.63])
    bounds = over_clips_and_seeds(second, second[:, None] + clips, 0.95, first, first[:, None] + clips)
    parts = first.var(ddof=1) / 4, second.var(ddof=1) / 2
    # The clips are the same for all, and cancel: Cochran's interval of two unequal variances is what is left.
    half = (t.ppf(0.975, 3) ** 2 * parts[0] + t.ppf(0.975, 1) ** 2 * parts[1]) ** 0.5
    assert (bounds.low, bounds.high) == pytest.approx((0.085 - half, 0.085 + half), rel=1e-6)


def test_a_single_run_is_taken_to_differ_over_seeds_as_the_others_do() -> None:
    generator = np.random.default_rng(0)
    clips, several, one = 0.001 * generator.normal(size=400), np.array([0.60, 0.63, 0.58]), np.array([0.55])
    bounds = over_clips_and_seeds(several, several[:, None] + clips, 0.95, one, one[:, None] + clips)
    # A mean of three seeds less one seed: 4/3 of the variance of a seed.
    half = t.ppf(0.975, 2) * (several.var(ddof=1) * (1 / 3 + 1)) ** 0.5
    assert bounds.high - bounds.low == pytest.approx(2 * half, rel=1e-6)
    turned = over_clips_and_seeds(one, one[:, None] + clips, 0.95, several, several[:, None] + clips)
    assert (turned.low, turned.high) == pytest.approx((-bounds.high, -bounds.low))


def test_clips_and_class_texts_are_drawn_each_as_many_as_there_are() -> None:
    rng = np.random.default_rng(9)
    label = np.arange(40) % 4
    relevance = relevance_by_label(list("abcd"), ["abcd"[i] for i in label])
    retrievals = retrieve_languages(rng.normal(size=(40, 8)), {"eng": rng.normal(size=(4, 8))}, relevance)
    samples = retrieval_samples(retrievals)
    weight = next(_weights(_unit_groups(samples), 100, 0))
    for direction, number in (("text_to_audio", 4), ("audio_to_text", 40)):
        drawn = weight[:, samples[f"{direction}/eng"].unit]
        assert (drawn.sum(1) == number).all()
        assert drawn.std() > 0.5
