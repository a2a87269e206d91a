"""What each clip adds to a metric: the mean over clips is the metric, and a text gives it back."""

from __future__ import annotations

import base64
import zlib

import numpy as np
import pytest

from ray_atr.metrics.languages import language_metrics, retrieve_languages
from ray_atr.metrics.metric import Metric
from ray_atr.metrics.unit_scores import packed_scores, unit_scores, unpacked_scores


@pytest.mark.parametrize("language", ["eng", "fra", "mean", "trained", "unseen"])
@pytest.mark.parametrize("task", ["text_to_audio", "audio_to_text"])
@pytest.mark.parametrize("name", ["recall_at_1", "recall_at_5", "map_at_10"])
def test_their_mean_is_the_metric(task: str, language: str, name: str) -> None:
    """Several captions of some clips, captions that lack a language, ties."""
    generator = np.random.default_rng(0)
    own = np.array([0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    audio = generator.integers(-2, 3, (10, 4)).astype(float) + 0.01
    text = {code: generator.integers(-2, 3, (12, 4)) + audio[own] for code in ("eng", "fra", "deu")}
    present = {code: np.arange(12) != lacking for code, lacking in (("eng", 1), ("fra", 4), ("deu", 11))}
    retrievals = retrieve_languages(audio, text, own, present=present)
    metric, trained = Metric(task, language, name), ("eng", "fra")
    found = unit_scores(retrievals, metric, trained)
    assert found is not None
    assert found.mean() == pytest.approx(language_metrics(retrievals, trained=trained)[metric])


def test_a_clip_has_the_hits_of_its_captions() -> None:
    audio, own = np.eye(3), np.array([0, 0, 1, 2])
    captions = np.eye(3)[[0, 1, 1, 2]]
    retrievals = retrieve_languages(audio, {"eng": captions}, own)
    found = unit_scores(retrievals, Metric("text_to_audio", "eng", "recall_at_1"))
    # One caption of four finds another clip; a clip's share is of the mean number of captions, 4 / 3.
    assert found is not None
    np.testing.assert_allclose(found, np.array([1, 1, 1]) * 3 / 4)


@pytest.mark.parametrize(
    "name", ["text_to_audio/eng/median_rank", "embedding/eng/modality_gap", "text_to_audio/jpn/recall_at_1"]
)
def test_what_is_no_mean_over_queries_has_none(name: str) -> None:
    assert unit_scores(retrieve_languages(np.eye(3), {"eng": np.eye(3)}, np.arange(3)), Metric.parse(name)) is None


def test_a_text_gives_them_back_and_is_small() -> None:
    hits = (np.random.default_rng(0).random(10_000) < 0.6).astype(np.float64)
    text = packed_scores(hits)
    np.testing.assert_array_equal(unpacked_scores(text), hits)
    assert len(text) < 10_000 * 2 / 8 * 4 / 3


@pytest.mark.parametrize(
    "text", ["", "%", "AAAA", packed_scores(np.ones(9))[:-8], base64.b64encode(zlib.compress(b"abc")).decode()]
)
def test_a_damaged_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="scores"):
        unpacked_scores(text)
