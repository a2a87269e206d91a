"""Zero-shot classification against scikit-learn and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, label_ranking_average_precision_score

from ray_atr.metrics import classification_metrics, classify, classify_languages
from tests.support.unit_rows import unit


def test_equals_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    classes = [f"class {c}" for c in range(7)]
    texts = rng.normal(size=(7, 9))
    label = rng.integers(0, 7, size=60)
    audio = texts[label] + rng.normal(size=(60, 9))
    scores = unit(audio) @ unit(texts).T
    truth = label[:, None] == np.arange(7)
    got = classify(audio, texts, classes, [classes[i] for i in label]).metrics()
    assert got["accuracy"] == pytest.approx((scores.argmax(1) == label).mean())
    assert got["map"] == pytest.approx(label_ranking_average_precision_score(truth, scores))
    expected = average_precision_score(truth, scores, average="macro")
    assert got["text_to_audio_map"] == pytest.approx(expected)


def test_clips_with_several_classes() -> None:
    audio = np.array([[1.0, 0.5, 0.0], [0.0, 0.1, 1.0]])
    got = classify(audio, np.eye(3), ["rain", "wind", "dog"], [["rain", "dog"], ["dog"]]).metrics()
    assert got["accuracy"] == 1
    assert got["map"] == pytest.approx(((1 + 2 / 3) / 2 + 1) / 2)


def test_a_collapsed_model_is_right_by_chance() -> None:
    got = classify(np.ones((10, 4)), np.ones((5, 4)), list("abcde"), list("abcde") * 2).metrics()
    assert got["accuracy"] == pytest.approx(1 / 5)


def test_languages_and_their_mean() -> None:
    rng = np.random.default_rng(1)
    audio, labels = rng.normal(size=(30, 6)), [["x", "y", "z"][i % 3] for i in range(30)]
    texts = {"eng": rng.normal(size=(3, 6)), "fra": rng.normal(size=(3, 6))}
    got = classification_metrics(classify_languages(audio, texts, ["x", "y", "z"], labels))
    each = [classify(audio, t, ["x", "y", "z"], labels).metrics()["accuracy"] for t in texts.values()]
    assert [got["classification/eng/accuracy"], got["classification/fra/accuracy"]] == each
    assert got["classification/mean/accuracy"] == pytest.approx(np.mean(each))


def test_an_unknown_label_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"labels\[1\]: got 'rian'; .*did you mean rain\?"):
        classify(np.eye(2), np.eye(2), ["rain", "wind"], ["rain", "rian"])
