"""Retrieval metrics against hand-computed examples, plain loops and scikit-learn."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import label_ranking_average_precision_score

from ray_atr.metrics import ranks, retrieval_metrics, retrieve
from ray_atr.metrics.measures import is_recall_at_chance, measure
from ray_atr.metrics.metric import Metric
from ray_atr.metrics.ranks import MANY_PAIRS, count_ranks, count_ranks_of_matrix, full_float32
from ray_atr.metrics.relevance import Relevance, relevance_by_clip, relevance_by_label
from ray_atr.metrics.retrieval import score
from tests.support.spies import spied
from tests.support.unit_rows import unit


def expected_over_orders(scores: np.ndarray, relevant: np.ndarray, ks: tuple[int, ...]) -> np.ndarray:
    """Recalls at each k, APs at each k and first 0-based rank of one query, averaged over every order that breaks the ties."""
    results = []
    for order in itertools.permutations(range(len(scores))):
        if any(scores[a] < scores[b] for a, b in itertools.pairwise(order)):
            continue
        places = [place for place, candidate in enumerate(order, 1) if relevant[candidate]]
        recalls = [float(places[0] <= k) for k in ks]
        aps = [sum(m / place for m, place in enumerate(places, 1) if place <= k) / min(len(places), k) for k in ks]
        results.append((*recalls, *aps, places[0] - 1))
    return np.mean(results, axis=0)


def test_two_clips_with_two_captions_by_hand() -> None:
    # Clips at 0 and 90 degrees; clip 0's captions at 10 and 60 degrees, clip 1's at 80 and 20.
    angle = np.radians([0, 90, 10, 60, 80, 20])
    points = np.stack([np.cos(angle), np.sin(angle)], 1)
    metrics = retrieval_metrics(points[:2], points[2:], [0, 0, 1, 1])
    # Text to audio: captions at 10 and 80 find their clip first, those at 60 and 20 second.
    assert metrics["text_to_audio/recall_at_1"] == 0.5
    assert metrics["text_to_audio/recall_at_5"] == 1
    assert metrics["text_to_audio/map_at_10"] == pytest.approx((1 + 0.5 + 1 + 0.5) / 4)
    assert metrics["text_to_audio/median_rank"] == 1.5
    # Audio to text: clip 0 sees 10 (own), 20, 60 (own), 80: AP = (1 + 2/3) / 2. Clip 1 sees 80 (own), 60, 20 (own), 10.
    assert metrics["audio_to_text/recall_at_1"] == 1
    assert metrics["audio_to_text/map_at_10"] == pytest.approx((1 + 2 / 3) / 2)
    assert metrics["audio_to_text/median_rank"] == 1
    assert metrics["text_to_audio/tied_queries"] == metrics["audio_to_text/tied_queries"] == 0


def test_collapsed_model_scores_chance() -> None:
    n, captions = 40, 5
    same = torch.ones(n, 16)
    metrics = retrieval_metrics(same, same.repeat(captions, 1), list(range(n)) * captions)
    assert metrics["text_to_audio/recall_at_1"] == pytest.approx(1 / n)
    assert metrics["text_to_audio/recall_at_10"] == pytest.approx(10 / n)
    assert metrics["text_to_audio/map_at_10"] == pytest.approx(sum(1 / r for r in range(1, 11)) / n)
    assert metrics["text_to_audio/median_rank"] == (n + 1) / 2
    assert metrics["audio_to_text/recall_at_1"] == pytest.approx(1 / n)
    assert metrics["text_to_audio/tied_queries"] == n * captions


def test_collapsed_audio_alone_scores_chance() -> None:
    rng = np.random.default_rng(0)
    audio = np.tile(rng.normal(size=(1, 8)), (30, 1))
    metrics = retrieval_metrics(audio, rng.normal(size=(30, 8)), np.arange(30))
    assert metrics["text_to_audio/recall_at_1"] == pytest.approx(1 / 30)
    # All clips see the captions in one order: exactly one of them finds its own caption first.
    assert metrics["audio_to_text/recall_at_1"] == pytest.approx(1 / 30)


@pytest.mark.parametrize("seed", range(3))
def test_ties_equal_the_mean_over_all_orders(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(12):
        scores = rng.integers(0, 3, size=(1, 6)).astype(float)
        relevant = np.zeros(6, dtype=bool)
        relevant[rng.choice(6, size=rng.integers(1, 5), replace=False)] = True
        relevance = relevance_by_label(["x"], ["x" if r else "y" for r in relevant])
        got = score(count_ranks_of_matrix(scores, relevance), relevance).text_to_audio
        *recalls, _, _, ap, first = expected_over_orders(scores[0], relevant, (1, 5, 10))
        assert [got.recall[k][0] for k in (1, 5, 10)] == pytest.approx(recalls)
        assert got.average_precision[0] == pytest.approx(ap)
        assert got.first_rank[0] == pytest.approx(first)


@pytest.mark.parametrize("popular", [0, MANY_PAIRS])
@pytest.mark.parametrize("block_side", [7, 64, 1000])
def test_blocks_equal_the_full_float64_matrix(monkeypatch: pytest.MonkeyPatch, block_side: int, popular: int) -> None:
    """Also where a clip has so many captions that it is ranked by sorting their scores."""
    generator = torch.Generator().manual_seed(1)
    audio = torch.randn(53, 24, generator=generator)
    clip = torch.cat([torch.full((popular,), 7), torch.randint(0, 53, (60,), generator=generator)])
    captions = audio[clip] + 2 * torch.randn(len(clip), 24, generator=generator)
    audio[7] = audio[30]  # clips that are the same recording
    captions[5:9] = 4 * captions[20]  # captions of the same direction, exactly so in binary
    relevance = relevance_by_clip(clip, len(clip), 53)
    monkeypatch.setattr(ranks, "BLOCK_SIDE_CPU", block_side)
    got = count_ranks(captions, audio, relevance)
    a, t = unit(audio.double().numpy()), unit(captions.double().numpy())
    s = t @ a.T
    for p, (i, j) in enumerate(zip(relevance.text.tolist(), relevance.clip.tolist(), strict=True)):
        assert got.text_to_audio.greater[p] == (s[i] > s[i, j] + 1e-7).sum()
        assert got.text_to_audio.tied[p] == (abs(s[i] - s[i, j]) < 1e-7).sum()
        assert got.audio_to_text.greater[p] == (s[:, j] > s[i, j] + 1e-7).sum()
        assert got.audio_to_text.tied[p] == (abs(s[:, j] - s[i, j]) < 1e-7).sum()
    assert got.text_to_audio.tied.max() == 2
    assert got.audio_to_text.tied.max() == 5


@pytest.mark.parametrize("popular", [0, MANY_PAIRS])
def test_the_same_at_every_block_size_where_float32_cannot_tell(monkeypatch: pytest.MonkeyPatch, popular: int) -> None:
    # Candidates one unit in the last place apart: a float32 product orders them by its own rounding.
    generator = torch.Generator().manual_seed(3)
    centre = torch.randn(1, 96, generator=generator)
    audio = centre + 1e-7 * torch.randn(60, 96, generator=generator)
    clip = torch.cat([torch.arange(40), torch.full((popular,), 7)])
    captions = centre + 1e-7 * torch.randn(len(clip), 96, generator=generator)
    relevance = relevance_by_clip(clip, len(clip), 60)
    whole = count_ranks(captions, audio, relevance)
    for side in (11, 17, 59):
        monkeypatch.setattr(ranks, "BLOCK_SIDE_CPU", side)
        part = count_ranks(captions, audio, relevance)
        assert all(torch.equal(a, b) for x, y in zip(whole, part, strict=True) for a, b in zip(x, y, strict=True))


def test_average_precision_equals_scikit_learn() -> None:
    # With at most ten candidates, AP at 10 is AP; scikit-learn's label ranking AP averages it over queries.
    rng = np.random.default_rng(2)
    audio, captions, clip = rng.normal(size=(4, 6)), rng.normal(size=(9, 6)), np.array([0, 0, 0, 1, 1, 2, 2, 3, 3])
    scores = unit(audio) @ unit(captions).T
    truth = clip[None] == np.arange(4)[:, None]
    metrics = retrieval_metrics(audio, captions, clip)
    assert metrics["audio_to_text/map_at_10"] == pytest.approx(label_ranking_average_precision_score(truth, scores))
    assert metrics["text_to_audio/map_at_10"] == pytest.approx(label_ranking_average_precision_score(truth.T, scores.T))


def test_average_precision_never_exceeds_one() -> None:
    rng = np.random.default_rng(4)
    audio = rng.normal(size=(20, 8))
    perfect = np.repeat(audio, 5, axis=0) + 1e-3 * rng.normal(size=(100, 8))
    got = retrieve(audio, perfect, np.repeat(np.arange(20), 5))
    np.testing.assert_allclose(got.audio_to_text.average_precision, 1)
    many = retrieve(audio, np.repeat(perfect, 4, axis=0), np.repeat(np.arange(20), 20))
    assert many.audio_to_text.average_precision.max() <= 1 + 1e-12


def test_clips_without_captions_are_candidates_only() -> None:
    audio = np.eye(3)
    got = retrieve(audio, np.array([[0.6, 0.8, 0.0]]), [0])
    assert got.audio_to_text.query.tolist() == [0]
    assert got.text_to_audio.first_rank.tolist() == [1]


def test_numpy_torch_half_and_scaled_rows_agree() -> None:
    rng = np.random.default_rng(5)
    audio, captions = rng.normal(size=(30, 8)).astype(np.float32), rng.normal(size=(60, 8)).astype(np.float32)
    clip = np.arange(60) // 2
    expected = retrieval_metrics(audio, captions, clip)
    assert retrieval_metrics(torch.from_numpy(audio), torch.from_numpy(captions), torch.from_numpy(clip)) == expected
    assert retrieval_metrics(audio * rng.uniform(0.1, 9, size=(30, 1)), captions, clip.tolist()) == expected
    half = retrieval_metrics(torch.from_numpy(audio).half(), torch.from_numpy(captions).half(), clip)
    assert half["text_to_audio/recall_at_10"] == pytest.approx(expected["text_to_audio/recall_at_10"], abs=0.05)


def test_a_thousand_captions_of_a_clip_are_not_compared_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0

    def note(_: torch.Tensor, scores: torch.Tensor, *of: torch.Tensor, **options: torch.Tensor) -> None:
        nonlocal compared
        compared += scores.numel()

    spied(monkeypatch, torch, "gt", note)
    captions = torch.randn(2000, 8, generator=torch.Generator().manual_seed(0))
    count_ranks(captions, torch.eye(2, 8), relevance_by_clip(torch.arange(2000) // 1000, 2000, 2))
    # Each caption with the two clips; one by one a thousand captions of two clips would be compared with two thousand.
    assert compared <= 2 * 2000


def test_chance_is_the_share_of_relevant_candidates() -> None:
    """Clip 0 has two captions of three; a caption has one clip of four."""
    got = retrieve(np.eye(4), np.eye(4)[[0, 0, 1]], np.array([0, 0, 1]))
    assert got.audio_to_text.chance.tolist() == pytest.approx([2 / 3, 1 / 3])
    assert got.text_to_audio.chance.tolist() == [0.25] * 3


def test_a_tie_of_relevant_candidates_alone_is_none() -> None:
    relevance = relevance_by_label(["rain"], ["rain", "rain", "bell"])
    got = retrieve(np.array([[1.0, 0], [1, 0], [0, 1]]), np.array([[1.0, 0]]), relevance)
    assert got.text_to_audio.is_tied.tolist() == [False]
    got = retrieve(np.array([[1.0, 0], [1, 0], [1, 0]]), np.array([[1.0, 0]]), relevance)
    assert got.text_to_audio.is_tied.tolist() == [True]


def test_more_runs_tell_a_recall_from_chance() -> None:
    values = {"recall_at_1": 0.07, "chance_at_1": 0.05, "queries": 100.0}
    row = {Metric("text_to_audio", "eng", name): value for name, value in values.items()}
    assert [is_recall_at_chance(row, "text_to_audio", "eng", runs) for runs in (1, 20)] == [True, False]


def test_a_query_is_of_its_own_clip_in_whatever_order_the_pairs_come() -> None:
    relevance = Relevance(text=torch.tensor([2, 0, 1]), clip=torch.tensor([2, 1, 0]), num_texts=3, num_clips=3)
    got = score(count_ranks(np.eye(3), np.eye(3), relevance), relevance)
    assert got.text_to_audio.query.tolist() == [0, 1, 2]
    assert got.text_to_audio.clip.tolist() == [1, 0, 2]


def test_class_labels_make_all_clips_of_a_class_relevant() -> None:
    audio = np.array([[1, 0], [0.9, 0.1], [0, 1], [0.2, 1.0]])
    relevance = relevance_by_label(["rain", "bell"], ["rain", "bell", "bell", ["rain", "wind"]])
    got = score(count_ranks(np.eye(2), audio, relevance), relevance)
    # "rain" sees clips 0 (relevant), 1, 3 (relevant), 2: AP = (1 + 2/3) / 2.
    assert got.text_to_audio.average_precision.tolist() == pytest.approx([(1 + 2 / 3) / 2, (1 + 2 / 3) / 2])
    assert got.audio_to_text.recall[1].tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize(
    ("audio", "captions", "clip", "message"),
    [
        (np.ones((2, 3)), np.ones((2, 4)), [0, 1], r"text.shape: got \(2, 4\)"),
        (np.ones((2, 3)), np.ones((2, 3)), [0, 2], r"clip_of_caption: got '0..2'; allowed 0..1"),
        (np.ones((2, 3)), np.ones((2, 3)), [0], r"clip_of_caption.shape"),
        (np.ones((2, 3)), np.ones((2, 3)), [0.0, 1.0], r"clip_of_caption.dtype"),
        (np.ones((2, 3)), np.array([[1, 2, 3], [1, np.nan, 3]]), [0, 1], r"text\[1\]"),
        (np.ones((0, 3)), np.ones((0, 3)), np.zeros(0, int), r"audio.shape"),
    ],
)
def test_bad_input_is_refused(audio: np.ndarray, captions: np.ndarray, clip: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        retrieval_metrics(audio, captions, clip)


@pytest.mark.parametrize("way", ["legacy", "backend"])
def test_reduced_matrix_precision_does_not_change_the_ranks(way: str) -> None:
    generator = torch.Generator().manual_seed(6)
    audio, captions = torch.randn(64, 128, generator=generator), torch.randn(64, 128, generator=generator)
    expected = retrieval_metrics(audio, captions, range(64))
    mkldnn: Any = torch.backends.mkldnn
    matmul = mkldnn.matmul
    before = torch.backends.cuda.matmul.fp32_precision, matmul.fp32_precision
    if way == "legacy":
        torch.set_float32_matmul_precision("medium")
    else:
        matmul.fp32_precision = "bf16"
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert retrieval_metrics(audio, captions, range(64)) == expected
            with full_float32(torch.device("cpu")):
                assert (audio @ captions.T).dtype == torch.float32
                assert matmul.fp32_precision == torch.backends.cuda.matmul.fp32_precision == "ieee"
        assert matmul.fp32_precision == "bf16"
    finally:
        torch.backends.cuda.matmul.fp32_precision, matmul.fp32_precision = before


def test_inputs_are_left_as_they_are() -> None:
    rng = np.random.default_rng(7)
    for kind in (np.float32, np.float64):
        audio, captions = rng.normal(size=(5, 3)).astype(kind), rng.normal(size=(5, 3)).astype(kind)
        before = audio.copy(), captions.copy()
        retrieval_metrics(audio, captions, range(5))
        assert (audio == before[0]).all()
        assert (captions == before[1]).all()


def test_what_rounds_to_nothing_has_no_sign() -> None:
    assert measure("recall_at_1").show(-1e-9) == "0.0"
    assert measure("recall_at_1").show(-1e-9, signed=True) == "+0.0"
    assert measure("recall_at_1").show(-0.01, signed=True) == "−1.0"


def test_average_precision_at_ten_of_more_than_ten_relevant_by_loops() -> None:
    """Ten right answers in the first ten places are all that there can be: AP is 1 then, not 10 / R."""
    rng = np.random.default_rng(2)
    scores = rng.permuted(np.tile(np.arange(60.0), (5, 1)), axis=1)
    relevant = rng.random((5, 60)) < np.array([0.1, 0.2, 0.4, 0.6, 0.9])[:, None]
    relevant[4] = scores[4] >= 40
    for one, right in zip(scores, relevant, strict=True):
        found = expected = 0.0
        for place, candidate in enumerate(np.argsort(-one)[:10], start=1):
            if right[candidate]:
                found += 1
                expected += found / place
        relevance = relevance_by_label(["x"], ["x" if own else "y" for own in right])
        got = score(count_ranks_of_matrix(one[None], relevance), relevance).text_to_audio
        assert got.average_precision[0] == pytest.approx(expected / min(right.sum(), 10))
    assert got.average_precision[0] == pytest.approx(1)
