"""The evaluation of all languages together, against its parts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ray_atr.metrics import evaluate_languages, retrieval_metrics
from tests.support.consistency import language_distance, language_gap, mean_rank_variance, modality_gap
from tests.support.unit_rows import unit

LANGUAGES = ("eng", "fra", "jpn")


@pytest.fixture
def problem() -> tuple[np.ndarray, dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(0)
    audio = rng.normal(size=(25, 12))
    clip = np.repeat(np.arange(25), 3)
    text = {k: audio[clip] + (1 + n) * rng.normal(size=(75, 12)) + 0.3 * n for n, k in enumerate(LANGUAGES)}
    return audio, text, clip


def test_each_language_and_the_mean(problem: tuple) -> None:
    audio, text, clip = problem
    result = evaluate_languages(audio, text, clip)
    single = {language: retrieval_metrics(audio, text[language], clip) for language in LANGUAGES}
    for name in single["eng"]:
        direction, metric = name.split("/")
        for language in LANGUAGES:
            assert result[f"{direction}/{language}/{metric}"] == single[language][name]
        assert result[f"{direction}/mean/{metric}"] == pytest.approx(np.mean([single[k][name] for k in LANGUAGES]))
    assert result["text_to_audio/eng/recall_at_1"] > result["text_to_audio/jpn/recall_at_1"]


def test_rank_variance_gap_and_distance(problem: tuple) -> None:
    audio, text, clip = problem
    result = evaluate_languages(audio, text, clip)
    ranks = np.stack(
        [(s := unit(text[k]) @ unit(audio).T) > s[np.arange(75), clip][:, None] for k in LANGUAGES], 1
    ).sum(-1)
    assert result["text_to_audio/mean/mean_rank_variance"] == pytest.approx(mean_rank_variance(ranks))
    stacked = np.stack([unit(text[k]) for k in LANGUAGES], 1)
    for n, language in enumerate(LANGUAGES):
        assert result[f"embedding/{language}/language_gap"] == pytest.approx(language_gap(stacked)[n])
        assert result[f"embedding/{language}/language_distance"] == pytest.approx(language_distance(stacked)[n])
        assert result[f"embedding/{language}/modality_gap"] == pytest.approx(modality_gap(unit(audio), stacked[:, n]))
    assert result["embedding/mean/language_gap"] == pytest.approx(language_gap(stacked)[1:].mean())
    assert result["embedding/fra/language_gap"] <= result["embedding/fra/language_distance"]


def test_absent_captions_are_neither_queries_nor_candidates(problem: tuple) -> None:
    audio, text, clip = problem
    mask = np.ones(75, dtype=bool)
    mask[[0, 1, 2, 40]] = False
    spoilt = text["jpn"].copy()
    spoilt[~mask] = np.nan
    result = evaluate_languages(audio, {**text, "jpn": spoilt}, clip, present={"jpn": mask})
    alone = retrieval_metrics(audio, text["jpn"][mask], clip[mask])
    assert result["text_to_audio/jpn/recall_at_5"] == alone["text_to_audio/recall_at_5"]
    assert result["audio_to_text/jpn/map_at_10"] == alone["audio_to_text/map_at_10"]
    everywhere = evaluate_languages(audio, {k: v[mask] for k, v in text.items()}, clip[mask])
    for name in ("text_to_audio/mean/mean_rank_variance", "embedding/jpn/language_distance"):
        assert result[name] == pytest.approx(everywhere[name])


def test_distances_are_of_the_captions_that_are_there(problem: tuple) -> None:
    """Clip 0 has none in Japanese, and clip 2 lacks an English one that it has in Japanese; what is absent may hold anything."""
    audio, text, clip = problem
    present = {"eng": np.ones(75, dtype=bool), "jpn": np.ones(75, dtype=bool)}
    present["eng"][[6, 50]], present["jpn"][[0, 1, 2, 40]] = False, False
    spoilt = {k: np.where(present[k][:, None], text[k], np.nan) for k in present}
    result = evaluate_languages(audio, spoilt, clip, present=present)
    for k, mask in present.items():
        clips = unit(audio)[np.unique(clip[mask])]
        assert result[f"embedding/{k}/modality_gap"] == pytest.approx(modality_gap(clips, unit(text[k][mask])))
    both = present["eng"] & present["jpn"]
    paired = np.stack([unit(text["eng"][both]), unit(text["jpn"][both])], axis=1)
    assert result["embedding/jpn/language_gap"] == pytest.approx(language_gap(paired)[1])
    assert result["embedding/jpn/language_distance"] == pytest.approx(language_distance(paired)[1])


def test_one_language_has_no_variance_and_no_english_no_gap(problem: tuple) -> None:
    audio, text, clip = problem
    result = evaluate_languages(audio, {"fra": text["fra"]}, clip)
    assert not [key for key in result if "variance" in key or "language" in key]
    assert result["text_to_audio/mean/map_at_10"] == result["text_to_audio/fra/map_at_10"]


def test_a_ranking_beside_the_chosen_one_has_its_own_name(problem: tuple) -> None:
    audio, text, clip = problem
    result = evaluate_languages(audio, text, clip, ranking="cosine", beside=("plan",))
    assert "text_to_audio_by_plan/mean/mean_rank_variance" in result
    chosen = evaluate_languages(audio, text, clip, ranking="plan")
    for key in chosen:
        if key.task in ("text_to_audio", "audio_to_text"):
            assert result[f"{key.task}_by_plan/{key.language}/{key.name}"] == chosen[key]
    assert result["text_to_audio/mean/recall_at_1"] != chosen["text_to_audio/mean/recall_at_1"]


def test_trained_and_unseen_languages_have_means_of_their_own(problem: tuple) -> None:
    audio, text, clip = problem
    result = evaluate_languages(audio, text, clip, trained=("eng", "fra"))
    for name in ("text_to_audio/{}/recall_at_1", "audio_to_text/{}/map_at_10", "text_to_audio/{}/median_rank"):
        value = {k: result[name.format(k)] for k in LANGUAGES}
        assert result[name.format("trained")] == pytest.approx((value["eng"] + value["fra"]) / 2)
        assert result[name.format("unseen")] == pytest.approx(value["jpn"])
        assert result[name.format("mean")] == pytest.approx(sum(value.values()) / 3)
    everywhere = evaluate_languages(audio, text, clip)
    assert everywhere["text_to_audio/trained/recall_at_1"] == everywhere["text_to_audio/mean/recall_at_1"]
    assert not [key for key in everywhere if key.language == "unseen"]


def test_bad_input_is_refused(problem: tuple) -> None:
    audio, text, clip = problem
    with pytest.raises(ValueError, match=r"text: got \{'eng': 75, 'fra': 74"):
        evaluate_languages(audio, {"eng": text["eng"], "fra": text["fra"][:-1]}, clip)
    with pytest.raises(ValueError, match="text: got 'no language'"):
        evaluate_languages(audio, {}, clip)
    with pytest.raises(ValueError, match=r"ranking: got 'plans'; .*did you mean plan\?"):
        evaluate_languages(audio, text, clip, ranking="plans")
    with pytest.raises(ValueError, match=r"present\['fra'\]"):
        evaluate_languages(audio, text, clip, present={"fra": torch.zeros(75, dtype=torch.bool)})
