"""What a regression expects of a clip that it has not seen, against loops, and the partners that a batch gets by it."""

from __future__ import annotations

import copy
import math
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from sklearn.metrics import roc_auc_score

from ray_atr.objectives import PAIRS, Embeddings, LearnedParameters, Objective
from ray_atr.objectives.correspondence import CORRESPONDENCES, TrainingPairs, leave_one_out, left_out, ridge
from ray_atr.objectives.correspondence.clean_share import CleanShares, PairVectors, TrueShare, true_share
from ray_atr.objectives.correspondence.cross_fit import LEAST_RANDOM, Pairs, random_share
from ray_atr.objectives.correspondence.leave_one_out import LeaveOneOutEstimator
from ray_atr.objectives.correspondence.left_out import leave_out
from ray_atr.objectives.pairs import Comparison
from ray_atr.training import correspondence
from ray_atr.training.group import WorkerGroup
from tests.support.spies import spied

CLASSES, WIDTH = 12, 24


def noisy_set(clips: int, wrong: float, seed: int = 0) -> tuple[Any, Any, Any, Any]:
    """Clips [N, D], captions of classes [N, E], the class of each caption and whether it is the clip's own."""
    random = np.random.default_rng(seed)
    sounds, words = random.standard_normal((CLASSES, WIDTH)), random.standard_normal((CLASSES, WIDTH + 4))
    own = random.integers(0, CLASSES, clips)
    audio = sounds[own] + 1.2 * random.standard_normal((clips, WIDTH))
    given = np.where(random.random(clips) < wrong, random.permutation(own), own)
    return audio, words[given], given, given == own


def pairs_of(audio: Any, text: Any, given: Any) -> Pairs:
    return Pairs(audio, text, np.arange(len(audio)), np.full(len(audio), ""), given.astype(str))


def test_what_is_predicted_is_a_regression_that_was_fitted_without_the_clip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rounds in loops, each clip with a ridge regression of its own."""
    monkeypatch.setattr(ridge, "STRENGTHS", (1.0,))
    monkeypatch.setattr(left_out, "ROUNDS", 2)
    N, share = 48, 0.6
    audio, text, given, _ = noisy_set(N, 0.4)
    found = leave_out(audio, text, np.arange(N), given, share=share, seed=0)
    x = audio / np.linalg.norm(audio, axis=1, keepdims=True)
    strength = np.linalg.eigvalsh(np.cov(x.T, ddof=0) * N).mean()
    t = text - text.mean(axis=0)
    t = t / np.linalg.norm(t, axis=1, keepdims=True)
    classes = np.unique(given)
    caption = np.stack([t[given == c][0] for c in classes])
    prior = [float((given == c).mean()) for c in classes]
    targets = t
    for _ in range(2):
        predicted = []
        for i in range(N):
            others = [n for n in range(N) if n != i]
            fit = Ridge(alpha=strength).fit(x[others], targets[others])
            predicted.append(fit.predict(x[i : i + 1])[0] - targets[others].mean(axis=0))
        similarity = np.array(predicted) @ caption.T
        s = (similarity - similarity.mean(axis=0)) / similarity.std(axis=0)
        best, probabilities, posteriors = -math.inf, [], np.array([])
        for tau in left_out.TAUS:
            p = np.array([[q * math.exp(value / tau) for q, value in zip(prior, row, strict=True)] for row in s])
            p /= p.sum(axis=1, keepdims=True)
            ratio = [p[i, list(classes).index(given[i])] / prior[list(classes).index(given[i])] for i in range(N)]
            likelihood = sum(math.log(share * r + 1 - share) for r in ratio)
            if likelihood > best:
                best, posteriors, tau_of_best = likelihood, p, tau
                probabilities = [share * r / (share * r + 1 - share) for r in ratio]
        b = np.array(probabilities)[:, None]
        targets = b * t + 0.5 * (1 - b) * (posteriors @ caption)
    assert found.clean_probability.tolist() == pytest.approx(probabilities, abs=1e-6)
    own = np.einsum("nw,nw->n", found.predicted, found.wanted)
    wanted = [s[i, list(classes).index(given[i])] / tau_of_best for i in range(N)]
    assert own.tolist() == pytest.approx(wanted, abs=1e-6)
    fitting = np.exp(own + found.log_prior - found.log_total)
    assert fitting.tolist() == pytest.approx([posteriors[i, list(classes).index(given[i])] for i in range(N)], abs=1e-6)


@pytest.mark.parametrize(("wrong", "least"), [(0.0, 1.0), (0.4, 0.97), (0.8, 0.85)])
def test_it_finds_wrong_pairs_and_their_share_and_trusts_clean_data(wrong: float, least: float) -> None:
    audio, text, given, truth = noisy_set(600, wrong)
    told = true_share([pairs_of(audio, text, given)], 0)
    found = leave_out(audio, text, np.arange(600), given, share=told.share, seed=0)
    assert told.share == pytest.approx(truth.mean(), abs=0.08)
    assert found.clean_probability.mean() == pytest.approx(truth.mean(), abs=0.08)
    if wrong:
        assert roc_auc_score(truth, found.clean_probability) > least
    else:
        assert (found.clean_probability > 0.5).mean() > 0.97


@pytest.mark.parametrize("share", [None, 0.3])
def test_the_regression_takes_the_share_that_trainings_are_told_and_a_known_one_as_it_is(
    monkeypatch: pytest.MonkeyPatch, share: float | None
) -> None:
    estimator, outputs, _ = estimator_of(wrong=0.4)
    estimator.pairs = replace(estimator.pairs, wrong_shares=None if share is None else [1 - share, 0.0])
    taken: list[float] = []
    spied(monkeypatch, leave_one_out, "leave_out", lambda _, *of, share, seed: taken.append(share))
    tables = estimator.estimate_from(outputs)
    shares = CleanShares(2)
    shares.estimate([outputs], estimator.pairs.seed)
    assert taken[0] == pytest.approx(share or float(shares.shares[0]))
    if share is None:
        assert torch.equal(tables["found_share"], shares.found_shares)


def test_captions_of_one_clip_are_left_out_together() -> None:
    """Random pairs, each with its caption twice: a clip's other caption would speak for the first."""
    audio, text, given, _ = noisy_set(300, 0.0)
    shuffled = np.random.default_rng(1).permutation(300)
    text, given = text[shuffled], given[shuffled]
    clip, twice = np.tile(np.arange(300), 2), np.tile(given, 2)
    found = leave_out(audio, np.tile(text, (2, 1)), clip, twice, share=0.5, seed=0)
    once = leave_out(audio, text, np.arange(300), given, share=0.5, seed=0)
    assert found.clean_probability[:300].tolist() == pytest.approx(once.clean_probability.tolist(), abs=0.05)


def test_clips_beyond_the_fitted_ones_and_captions_beyond_the_bank_are_weighed_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    audio, text, given, truth = noisy_set(600, 0.4)
    monkeypatch.setattr(left_out, "FITTED", 300)
    monkeypatch.setattr(left_out, "BANK", 10)
    found = leave_out(audio, text, np.arange(600), given, share=0.6, seed=0)
    assert np.isfinite(found.clean_probability).all()
    assert roc_auc_score(truth, found.clean_probability) > 0.93


def test_too_few_clips_or_one_caption_say_nothing() -> None:
    audio, text, given, _ = noisy_set(60, 0.0)
    for pairs in (pairs_of(audio[:10], text[:10], given[:10]), pairs_of(audio, text[np.zeros(60, int)], 0 * given)):
        assert true_share([pairs], 0) == TrueShare(1.0, 0.0, False)


def confused_set(clips: int = 600, wrong: float = 0.4) -> tuple[Any, Any, Any, Any]:
    """As `noisy_set`, but a class's wrong captions are always those of the next class."""
    audio, text, own, _ = noisy_set(clips, 0.0)
    words = np.stack([text[own == c][0] for c in range(CLASSES)])
    given = np.where(np.random.default_rng(1).random(clips) < wrong, (own + 1) % CLASSES, own)
    return audio, words[given], given, given == own


@pytest.mark.parametrize("several", [1, 3])
def test_captions_that_are_always_confused_with_the_same_other_one_are_told_from_random_ones(several: int) -> None:
    sets = ((noisy_set(600, 0.4), 0.8, 1.0), (noisy_set(600, 0.1), 0.8, 1.0), (confused_set(), 0.0, 0.5))
    for (audio, text, given, truth), low, high in sets:
        clip, twice = np.tile(np.arange(600), several), np.tile(given, several)
        found = leave_out(audio, np.tile(text, (several, 1)), clip, twice, share=float(truth.mean()), seed=0)
        assert low <= found.random <= high


@pytest.mark.parametrize("clips", [8, 16])
def test_a_few_random_captions_are_not_called_confused(clips: int) -> None:
    """Their estimated share of random ones is .5 at times; its interval's end is what counts, and nothing is said of eight."""
    for seed in range(10):
        random = np.random.default_rng(seed)
        audio, text = (random.standard_normal((clips, width)).astype(np.float32) for width in (12, 10))
        names = np.arange(clips)
        pairs = Pairs(audio, text, names, np.full(clips, ""), names.astype(str))
        assert random_share(pairs, 0) >= LEAST_RANDOM


def test_a_language_whose_captions_are_confused_is_kept_whole_and_the_run_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    estimator, outputs, _ = estimator_of(600, wrong=0.4)
    estimator.pairs = replace(estimator.pairs, wrong_shares=[0.4, 0.4])
    _, text, given, _ = confused_set()
    confused = outputs._replace(
        text=np.concatenate([outputs.text[:600], text]), key=np.concatenate([outputs.key[:600], given + CLASSES])
    )
    monkeypatch.setattr(correspondence, "_readings", lambda *of: [confused])
    frozen: Any = SimpleNamespace(evaluating=nullcontext, equal_calls=nullcontext)
    captions: Any = SimpleNamespace(languages=["eng", "fra"])
    correspondence.read_pairs(estimator, frozen, captions, ["eng", "fra"], WorkerGroup(), "auto")
    assert "captions in fra that look wrong" in caplog.text
    assert float(estimator.tables["left_out"][:, 0, 0].min()) < 0.1
    assert bool((estimator.tables["left_out"][:, 0, 1] == 1).all())
    rows = torch.arange(30)
    _, weighed = batch_of(estimator, confused, rows, 0 * rows + 1)
    assert weighed.sample_weight.tolist() == [1.0] * 30
    assert weighed.targets is None


def estimator_of(
    clips: int = 240, wrong: float = 0.5, *, shares_words: bool = False, **settings: Any
) -> tuple[LeaveOneOutEstimator, Any, Any]:
    """An estimator of two languages, of which the second one's captions are right, and what it was given. The languages
    may have words in common, as proper names.
    """
    audio, text, given, truth = noisy_set(clips, wrong)
    _, right, own, _ = noisy_set(clips, 0.0)
    rows, both = np.arange(clips), np.repeat([0, 1], clips)
    outputs = PairVectors(
        audio=audio,
        text=np.concatenate([text, right]),
        pair_index=(np.tile(rows, 2), np.zeros(2 * clips, int), both),
        key=np.concatenate([given, own if shares_words else own + CLASSES]),
    )
    pairs = TrainingPairs(clip_ids=[f"clip {row}" for row in rows], languages=2)
    estimator = CORRESPONDENCES["leave_one_out"](**settings).estimator(pairs)
    assert isinstance(estimator, LeaveOneOutEstimator)
    return estimator, outputs, torch.from_numpy(truth)


@cache
def _told() -> tuple[LeaveOneOutEstimator, Any]:
    estimator, outputs, _ = estimator_of()
    estimator.take(estimator.estimate_from(outputs))
    return estimator, outputs


def told() -> tuple[LeaveOneOutEstimator, Any]:
    """A copy of an estimator that has read what it was given, and that."""
    estimator, outputs = _told()
    return copy.deepcopy(estimator), outputs


def batch_of(estimator: LeaveOneOutEstimator, outputs: PairVectors, rows: Any, languages: Any) -> tuple[Any, Any]:
    """A comparison of random embeddings of these clips in these languages, before and after it was weighed."""
    torch.manual_seed(0)
    u, v = torch.nn.functional.normalize(torch.randn(2, len(rows), 8), dim=2)
    caption = torch.from_numpy(outputs.key)[rows + languages * len(outputs.audio)]
    given = Comparison(u=u, v=v, v_language=languages, positives=caption[:, None] == caption)
    return caption, estimator.for_batch(rows, 0 * rows)(given)


@pytest.mark.parametrize("shares_words", [False, True])
def test_partners_are_the_own_caption_and_those_that_are_predicted_in_loops(shares_words: bool) -> None:
    estimator, outputs, _ = estimator_of(wrong=0.3, shares_words=shares_words)
    estimator.take(estimator.estimate_from(outputs))
    estimator.begin_epoch(0)
    rows, languages = torch.arange(0, 60, 6), torch.tensor([0, 1]).repeat(5)
    caption, weighed = batch_of(estimator, outputs, rows, languages)
    tables, N = {name: table.numpy() for name, table in estimator.tables.items()}, len(outputs.audio)
    for a, (i, k) in enumerate(zip(rows.tolist(), languages.tolist(), strict=True)):
        b = float(tables["left_out"][i, 0, k])
        partners = [0.0] * len(rows)
        for c, other in enumerate(languages.tolist()):
            every = {}
            for n in range(N):
                number = int(tables["caption"][n, 0, other])
                fit = float(tables["predicted"][i, 0, other] @ tables["wanted"][n, 0, other])
                every[number] = math.exp(fit + float(tables["log_prior"][n, 0, other]))
            p = every[int(caption[c])] / sum(every.values())
            texts = list(zip(caption.tolist(), languages.tolist(), strict=True))
            partners[c] = (1 - b) * p / texts.count(texts[c]) / 2
        own = b + sum(p for p, one in zip(partners, texts, strict=True) if one == texts[a])
        partners = [0.0 if one == texts[a] else p for p, one in zip(partners, texts, strict=True)]
        partners[a] = own
        assert float(weighed.sample_weight[a]) == pytest.approx(min(1.0, sum(partners)), abs=1e-4)
        assert weighed.targets[a].tolist() == pytest.approx([p / sum(partners) for p in partners], abs=1e-4)


def test_nothing_is_predicted_in_a_language_that_could_not_be_estimated() -> None:
    estimator, outputs = told()
    truth = estimator_of()[2]
    for name in ("left_out", "log_total"):
        estimator.tables[name][:, :, 1] = torch.nan
    rows = torch.from_numpy(np.flatnonzero(~truth)[:20])
    languages = torch.arange(20) % 2
    _, weighed = batch_of(estimator, outputs, rows, languages)
    assert weighed.targets is not None
    assert bool((weighed.targets[languages == 0][:, languages == 1] == 0).all())
    assert bool((weighed.targets.diagonal()[languages == 0] < 1).any())
    torch.testing.assert_close(weighed.targets[languages == 1], torch.eye(20)[languages == 1])


def test_each_language_is_weighed_by_itself_and_without_relabelling_only_probabilities_are_given() -> None:
    estimator, outputs, truth = estimator_of(relabels=False)
    estimator.take(estimator.estimate_from(outputs))
    found = estimator.tables["left_out"][:, 0]
    assert float(found[truth, 0].mean()) > 0.7
    assert float(found[~truth, 0].mean()) < 0.3
    assert float(found[:, 1].mean()) > 0.95
    rows = torch.arange(20)
    _, weighed = batch_of(estimator, outputs, rows, 0 * rows)
    assert weighed.targets is None
    assert weighed.sample_weight.tolist() == found[:20, 0].tolist()


def test_a_known_share_of_wrong_pairs_takes_the_place_of_the_estimate() -> None:
    estimator, outputs, _ = estimator_of(relabels=False)
    known = CORRESPONDENCES["leave_one_out"]().estimator(
        TrainingPairs(clip_ids=estimator.pairs.clip_ids, languages=2, wrong_shares=[0.7, 0.0])
    )
    assert isinstance(known, LeaveOneOutEstimator)
    known.take(known.estimate_from(outputs))
    assert float(known.tables["left_out"][:, 0, 1].min()) == pytest.approx(1.0)
    estimator.take(estimator.estimate_from(outputs))
    assert float(known.tables["left_out"][:, 0, 0].mean()) < float(estimator.tables["left_out"][:, 0, 0].mean())


def test_towers_that_know_nothing_leave_it_to_small_loss() -> None:
    estimator, outputs, _ = estimator_of(wrong=0.2)
    random = np.random.default_rng(0).standard_normal(outputs.audio.shape)
    estimator.take(estimator.estimate_from(outputs._replace(audio=random)))
    assert bool(estimator.tables["left_out"].isnan().all())
    rows = torch.arange(20)
    small_loss = CORRESPONDENCES["small_loss"]().estimator(estimator.pairs)
    for epoch in range(4):
        for one in (estimator, small_loss):
            one.begin_epoch(epoch)
            _, weighed = batch_of(one, outputs, rows, 0 * rows)
    assert weighed.targets is None
    torch.testing.assert_close(estimator.tables["clean_probabilities"], small_loss.tables["clean_probabilities"])
    estimator.take(estimator.estimate_from(outputs))
    _, weighed = batch_of(estimator, outputs, rows, 0 * rows)
    assert weighed.targets is not None


@pytest.mark.parametrize("is_certain", [True, False])
def test_a_regression_is_relied_on_where_it_finds_more_than_chance_whatever_it_finds(
    monkeypatch: pytest.MonkeyPatch, *, is_certain: bool
) -> None:
    estimator, outputs, _ = estimator_of()
    monkeypatch.setattr(leave_one_out, "true_share", lambda *of: TrueShare(0.5, 0.1 if is_certain else 0.9, is_certain))
    estimator.take(estimator.estimate_from(outputs))
    assert bool(estimator.left_out.isnan().all()) is not is_certain


def test_of_two_readings_each_language_takes_the_one_that_finds_more() -> None:
    estimator, outputs, _ = estimator_of()
    random = np.random.default_rng(0).standard_normal(outputs.text.shape)
    first, second = outputs.pair_index[2] == 0, outputs.pair_index[2] == 1
    # Each knows one of the languages, and they have vectors of other widths.
    one = outputs._replace(text=np.where(first[:, None], outputs.text, random))
    two = outputs._replace(
        audio=np.pad(outputs.audio, ((0, 0), (0, 9))),
        text=np.pad(np.where(second[:, None], outputs.text, random), ((0, 0), (0, 5))),
    )
    each, taken = [estimator.estimate_from(reading) for reading in (one, two)], estimator.estimate_from(one, two)
    assert [bool(tables["found_share"][k] > 0.5) for tables in each for k in range(2)] == [True, False, False, True]
    for k, alone in enumerate(each):
        for name in ("left_out", "log_total", "log_prior", "found_share"):
            torch.testing.assert_close(taken[name][..., k], alone[name][..., k], rtol=0, atol=0)
        rows = torch.arange(20)
        weighed = []
        for tables in (alone, taken):
            estimator.take(tables)
            weighed.append(batch_of(estimator, outputs, rows, 0 * rows + k)[1])
        torch.testing.assert_close(weighed[0].sample_weight, weighed[1].sample_weight)
        torch.testing.assert_close(weighed[0].targets, weighed[1].targets)


def test_what_was_weighed_is_in_a_checkpoint_by_clip() -> None:
    estimator, outputs = told()
    order = list(reversed(estimator.pairs.clip_ids))
    resumed = CORRESPONDENCES["leave_one_out"]().estimator(TrainingPairs(clip_ids=order, languages=2))
    resumed.load_state_dict(estimator.state_dict())
    rows = torch.arange(30)
    _, weighed = batch_of(estimator, outputs, rows, rows % 2)
    mirrored = resumed.for_batch(len(order) - 1 - rows, 0 * rows)(
        Comparison(u=weighed.u, v=weighed.v, v_language=rows % 2, positives=weighed.positives)
    )
    torch.testing.assert_close(mirrored.sample_weight, weighed.sample_weight, rtol=0, atol=0)
    torch.testing.assert_close(mirrored.targets, weighed.targets, rtol=0, atol=0)


@pytest.mark.parametrize("pair", list(PAIRS))
def test_every_pair_loss_takes_its_partners(pair: str) -> None:
    estimator, outputs = told()
    rows = torch.arange(16)
    caption = torch.from_numpy(outputs.key)[:16]
    audio, text = (torch.randn(16, 8, requires_grad=True) for _ in range(2))
    unit = torch.nn.functional.normalize
    embeddings = Embeddings(
        audio=unit(audio, dim=1), text=unit(text, dim=1)[:, None], positives=caption[:, None] == caption
    )
    objective = Objective(pair=PAIRS[pair]())
    learned = LearnedParameters(objective.pair.learns(), 8).values()
    terms = objective(embeddings, weigh_pairs=estimator.for_batch(rows, 0 * rows), learned=learned)
    terms.loss.backward()
    assert audio.grad is not None
    assert bool(audio.grad.isfinite().all())
    assert float(audio.grad.abs().sum()) > 0
