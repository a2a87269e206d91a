"""From embeddings to the whole page, and from lists of captions to one numbering."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import numpy as np
import pytest
import soundfile

from ray_atr.common.ranking import RankingSettings
from ray_atr.evaluation.report.evaluation_content import (
    CaptionScores,
    Embedded,
    ZeroShot,
    compose_page,
    ranked_how,
    score_model,
)
from ray_atr.evaluation.report.evaluation_page import as_html, as_json
from ray_atr.metrics import evaluate_languages
from ray_atr.metrics.alignment import align_captions
from ray_atr.metrics.ranking import MAX_ENTRIES, plan_scores
from ray_atr.metrics.samples import from_arrays, to_arrays


def test_captions_are_numbered_alike_in_all_languages() -> None:
    got = align_captions({"eng": [["a", "b"], ["c"]], "jpn": [["あ"], ["", "え"]]})
    assert got.clip_of_caption.tolist() == [0, 0, 1, 1]
    assert got.sentences == {"eng": ["a", "b", "c", ""], "jpn": ["あ", "", "", "え"]}
    assert got.present["eng"].tolist() == [True, True, True, False]
    assert got.present["jpn"].tolist() == [True, False, False, True]
    assert align_captions({"eng": [["a", "b"], ["c"]]}, limit=1).sentences == {"eng": ["a", "c"]}


def test_captions_of_other_clips_or_of_no_clip_are_refused() -> None:
    with pytest.raises(ValueError, match=r"captions: got \{'eng': 2, 'fra': 1\}"):
        align_captions({"eng": [["a"], ["b"]], "fra": [["c"]]})
    with pytest.raises(ValueError, match="no caption in fra"):
        align_captions({"eng": [["a"]], "fra": [[" "]]})


@pytest.fixture(scope="module")
def embeddings() -> tuple:
    rng = np.random.default_rng(0)
    captions = align_captions(
        {
            "eng": [[f"sound {i} a", f"sound {i} b"] for i in range(12)],
            "jpn": [[f"音 {i} a", f"音 {i} b"][: 1 + i % 2] for i in range(12)],
        }
    )
    audio = rng.normal(size=(12, 6))
    text = {k: audio[captions.clip_of_caption] + rng.normal(size=(len(captions), 6)) for k in ("eng", "jpn")}
    return audio, text, captions


@pytest.mark.slow
def test_page_holds_the_evaluation_and_the_comparison_with_itself_is_zero(embeddings: tuple) -> None:
    audio, text, captions = embeddings

    asked: list[int] = []

    def listen(clip: int) -> bytes:
        asked.append(clip)
        buffer = io.BytesIO()
        soundfile.write(buffer, np.full(160, clip / 100), 16_000, format="WAV")
        return buffer.getvalue()

    zero_shot = ZeroShot({"eng": audio[:3], "jpn": audio[:3]}, ["a", "b", "c"], list("abc") * 4)
    embedded = Embedded(audio, text, zero_shot=zero_shot)
    scored = score_model(embedded, captions)
    page = compose_page("t", {"data": "x"}, embedded, captions, [scored], listen=listen, draws=20)
    expected = evaluate_languages(audio, text, captions.clip_of_caption, present=captions.present, beside=("plan",))
    assert {k: v for k, v in page.metrics.items() if not k.startswith("classification")} == expected
    assert "classification/jpn/accuracy" in page.metrics
    for name, interval in page.intervals.items():
        assert interval.value == pytest.approx(page.metrics[name]), name
    without = {name.split("/")[-1] for name in set(page.metrics) - set(page.intervals)}
    assert without == {
        "tied_queries", "queries", "chance_at_1", "modality_gap", "language_gap", "language_distance", "mean_rank_variance",
    }  # fmt: skip
    assert len(page.pictures) == 3
    html = as_html(page)
    assert html.count("<audio") == 8 * 5
    assert len(asked) == len(set(asked))
    assert html.count('class="relevant"') <= 8
    assert 'lang="jpn" dir="auto">音 ' in html
    baseline = [from_arrays(to_arrays(scored.samples))]
    again = compose_page(
        "t", {}, embedded, captions, [scored], baseline=baseline, compared=("old", "new"), draws=20, figures=False
    )
    comparison = json.loads(as_json(again))["comparison"]
    assert all(d["value"] == 0 for d in comparison.values())
    assert {"classification/mean/accuracy", "text_to_audio_by_plan/jpn/median_rank"} <= set(comparison)


@pytest.mark.parametrize("by", ["cosine", "learned", "plan", "similarity"])
def test_what_a_query_finds_is_in_the_order_of_its_rank(embeddings: tuple, by: str) -> None:
    audio, text, captions = embeddings
    rng = np.random.default_rng(3)
    ranking = RankingSettings(ranking="learned" if by == "similarity" else by)
    embedded = Embedded(3 * audio, text, np.arange(6.0) ** 3, ranking)
    rows = {language: np.flatnonzero(present) for language, present in captions.present.items()}
    if by == "similarity":
        given = {language: rng.normal(size=(len(own), len(audio))) for language, own in rows.items()}
        embedded = replace(embedded, metric=None, similarity=given)
    scores = CaptionScores(embedded, captions)
    for language, own in rows.items():
        found = scores.of(language, own).numpy()
        for place, row in enumerate(own):
            u, v = (
                text[language][row] / np.linalg.norm(text[language][row]),
                audio / np.linalg.norm(audio, axis=1)[:, None],
            )
            if by == "similarity":
                wanted = given[language][place]
            elif by == "cosine":
                wanted = v @ u
            elif by == "learned":
                wanted = -np.sqrt(((v - u) ** 2 * np.arange(6.0) ** 3).sum(axis=1))
            else:
                wanted = plan_scores(text[language][own], audio, metric=np.arange(6.0) ** 3)[place].numpy()
            np.testing.assert_allclose(found[place], wanted, atol=1e-5)
    page = compose_page(
        "t", {}, embedded, captions, [score_model(embedded, captions)], listen=lambda clip: None, draws=5, figures=False
    )
    assert len(page.queries) == 8
    for query in page.queries:
        right = [place for place, one in enumerate(query.found, start=1) if one.is_relevant]
        assert (right[0] == query.rank) if right else (query.rank or 0) > len(query.found)


def test_tasks_of_one_model_alone_are_named_and_the_others_compared(embeddings: tuple) -> None:
    """A learned metric has the ranking by cosine besides its own, and prompts are not asked of every model."""
    audio, text, captions = embeddings
    learned = Embedded(audio, text, metric=np.arange(1.0, 7.0))
    asked = Embedded(audio, text, zero_shot=ZeroShot({"eng": audio[:3]}, ["a", "b", "c"], list("abc") * 4, set()))
    runs = [score_model(embedded, captions) for embedded in (learned, asked)]
    page = compose_page(
        "t", {}, asked, captions, runs[1:], baseline=[runs[0].samples], compared=("old", "new"), draws=5, figures=False
    )
    assert [note for note in page.reading_without_brackets if note.startswith("Not compared")] == [
        "Not compared, as old alone has it: Text to audio, ranked by cosine; Audio to text, ranked by cosine.",
        "Not compared, as new alone has it: Zero-shot classification.",
    ]
    assert {name.task for name in page.comparison} == {
        "text_to_audio", "audio_to_text", "text_to_audio_by_plan", "audio_to_text_by_plan",
    }  # fmt: skip


def test_seeds_give_means_deviations_and_the_interval_of_the_mean(embeddings: tuple) -> None:
    audio, text, captions = embeddings
    rng = np.random.default_rng(5)
    models = [Embedded(audio + noise * rng.normal(size=audio.shape), text) for noise in (0.0, 0.5, 1.0)]
    runs = [score_model(embedded, captions) for embedded in models]
    page = compose_page("t", {}, models[0], captions, runs, draws=50, figures=False)
    name = "text_to_audio/eng/map_at_10"
    values = [run.metrics[name] for run in runs]
    assert page.metrics[name] == pytest.approx(np.mean(values))
    assert page.spreads[name].deviation == pytest.approx(np.std(values, ddof=1))
    assert page.intervals[name].value == pytest.approx(np.mean(values))
    assert "±" in as_html(page)
    alone = compose_page("t", {}, models[0], captions, runs[:1], draws=50, figures=False)
    assert not alone.spreads


def test_captions_that_say_the_class_are_one_query_and_its_clips_are_all_relevant() -> None:
    names = ["dog", "cat", "rain"] * 4
    captions = {"eng": [[f"a {name}"] for name in names], "fra": [[f"un {name}"] for name in names]}
    labels = [[name] for name in names]
    got = align_captions(captions, labels=labels, relevance="auto")
    assert got.is_by_label
    assert got.sentences == {"eng": ["a dog", "a cat", "a rain"], "fra": ["un dog", "un cat", "un rain"]}
    assert got.clip_of_caption.tolist() == [0, 1, 2]
    pairs = set(zip(got.relevance.text.tolist(), got.relevance.clip.tolist(), strict=True))
    assert pairs == {(clip % 3, clip) for clip in range(12)}
    # A caption that is not its class's alone makes each clip its own again.
    other = {"eng": [[f"a {name}, number {i}"] for i, name in enumerate(names)]}
    assert not align_captions(other, labels=labels, relevance="auto").is_by_label
    by_label = align_captions(other, labels=labels, relevance="label")
    assert len(by_label) == 12
    assert len(by_label.relevance.text) == 12 * 4
    with pytest.raises(ValueError, match="relevance: got 'label'; allowed clip, for clips without labels"):
        align_captions(other, labels=[[]] * 12, relevance="label")
    with pytest.raises(ValueError, match=r"relevance: got 'labels'; .*did you mean label\?"):
        align_captions(other, labels=labels, relevance="labels")


def test_a_class_that_the_first_language_lacks_is_one_query_too() -> None:
    labels, french = [["dog"], ["dog"], ["rain"], ["rain"]], [["un chien"], ["un chien"], ["la pluie"], ["la pluie"]]
    got = align_captions({"eng": [["a dog"], ["a dog"], [""], [""]], "fra": french}, labels=labels, relevance="auto")
    assert got.sentences == {"eng": ["a dog", ""], "fra": ["un chien", "la pluie"]}
    assert got.relevance.matrix.tolist() == [[True, True, False, False], [False, False, True, True]]


def test_class_captions_retrieve_as_they_classify() -> None:
    rng = np.random.default_rng(3)
    names = [f"class {c}" for c in range(6)]
    label = rng.permutation(np.repeat(np.arange(6), 5))
    audio, texts = rng.normal(size=(30, 8)), rng.normal(size=(6, 8))
    labels = [[names[c]] for c in label]
    captions = align_captions({"eng": [[f"sound of {names[c]}"] for c in label]}, labels=labels, relevance="auto")
    order = [int(text.rsplit(" ", 1)[1]) for text in captions.sentences["eng"]]
    embedded = Embedded(audio, {"eng": texts[order]}, zero_shot=ZeroShot({"eng": texts}, names, labels))
    page = compose_page("t", {}, embedded, captions, [score_model(embedded, captions)], draws=100, figures=False)
    assert page.metrics["audio_to_text/eng/recall_at_1"] == page.metrics["classification/eng/accuracy"]
    # The interval over clips does not care whether they are seen as queries or as things to classify.
    one, other = page.intervals["audio_to_text/eng/recall_at_1"], page.intervals["classification/eng/accuracy"]
    assert (one.low, one.high) == (other.low, other.high)
    classes = page.intervals["text_to_audio/eng/map_at_10"]
    assert classes.low < classes.value < classes.high


def test_a_late_interaction_is_ranked_by_its_similarity_within_a_part_too(embeddings: tuple) -> None:
    audio, text, captions = embeddings
    rng, clips = np.random.default_rng(1), np.array([1, 2, 5, 10])
    similarity = {code: rng.normal(size=(int(has.sum()), len(audio))) for code, has in captions.present.items()}
    scored = score_model(Embedded(audio, text, similarity=similarity), captions, parts={"one": clips})
    for code, matrix in similarity.items():
        own = captions.clip_of_caption[captions.present[code]]
        ranks = [
            (matrix[row, clips] > matrix[row, own[row]]).sum() for row in np.flatnonzero(np.isin(own, clips)).tolist()
        ]
        assert scored.metrics[f"text_to_audio_in_one/{code}/recall_at_1"] == pytest.approx(np.mean(np.equal(ranks, 0)))
        sample = scored.samples[f"text_to_audio_in_one/{code}"]
        assert sample.unit.tolist() == own[np.isin(own, clips)].tolist()


def test_class_captions_are_ranked_within_a_part_too() -> None:
    rng = np.random.default_rng(4)
    names = ["dog", "cat", "rain"] * 4
    labels = [[name] for name in names]
    captions = align_captions({"eng": [[f"a {name}"] for name in names]}, labels=labels, relevance="auto")
    audio, texts, clips = rng.normal(size=(12, 6)), rng.normal(size=(3, 6)), np.array([1, 2, 5, 7, 11])
    embedded = Embedded(audio, {"eng": texts})
    scored = score_model(embedded, captions, parts={"one": clips})
    within = audio[clips] / np.linalg.norm(audio[clips], axis=1, keepdims=True) @ texts.T
    # No dog is in this part: a query for one is none.
    first = [names[clips[within[:, number].argmax()]] == name for number, name in ((1, "cat"), (2, "rain"))]
    assert scored.metrics["text_to_audio_in_one/eng/recall_at_1"] == np.mean(first)
    whole, part = (scored.samples[f"text_to_audio{end}/eng"] for end in ("", "_in_one"))
    assert part.unit.tolist() == whole.unit[1:].tolist() == [13, 14], "each is drawn by itself, as in the whole"
    assert scored.samples["audio_to_text_in_one/eng"].unit.tolist() == clips.tolist()
    page = compose_page("t", {}, embedded, captions, [scored], draws=20, figures=False)
    assert "text_to_audio_in_one/eng/map_at_10" in page.intervals


@pytest.mark.parametrize(
    ("metric", "ranking", "how"),
    [
        (None, "learned", "by cosine"),
        (np.ones(4), "cosine", "by cosine"),
        (np.ones(4), "learned", "by the learned distance"),
        (None, "plan", "by the transport plan at epsilon 0.05, to convergence"),
    ],
)
def test_a_page_says_how_candidates_are_ranked(metric: np.ndarray | None, ranking: str, how: str) -> None:
    settings = RankingSettings(ranking=ranking, plan_epsilon=0.05, plan_sweeps=0)
    assert ranked_how(Embedded(np.ones((2, 4)), {"eng": np.ones((2, 4))}, metric, settings)).startswith(how)


def test_a_set_too_large_for_a_plan_says_so(embeddings: tuple) -> None:
    audio, text, captions = embeddings
    assert MAX_ENTRIES > 5 * 10_000 * 5000
    embedded = Embedded(audio, text)
    page = compose_page("t", {}, embedded, captions, [score_model(embedded, captions, most_entries=100)], draws=5)
    assert any("No ranking by plan" in note for note in page.reading)
    assert not [key for key in page.metrics if "by_plan" in key]


@pytest.mark.slow
def test_what_is_found_has_captions_in_the_querys_language_set_in_its_direction_and_short() -> None:
    rng = np.random.default_rng(0)
    long = "word " * 1_000
    captions = align_captions(
        {"ara": [[f"كلب {i}."] for i in range(6)], "kor": [[f"개 {i}" if i else long] for i in range(5)] + [[]]}
    )
    audio, text = rng.normal(size=(6, 4)), {code: rng.normal(size=(6, 4)) for code in ("ara", "kor")}
    embedded = Embedded(audio, text)
    scored = score_model(embedded, captions)
    page = compose_page("t", {}, embedded, captions, [scored], listen=lambda clip: None, draws=5)
    for query in page.queries:
        for found in query.found:
            # The last clip has no caption in Korean.
            expected = query.language if found.clip_id != "5" else "ara"
            assert (found.language, found.caption[0] in "كلب") == (expected, expected == "ara")
    html = as_html(page)
    assert html.count('lang="ara" dir="auto"') + html.count('lang="kor" dir="auto"') == len(page.queries) * 6
    assert long[:400] not in html
    assert "word …" in html or "word…" in html
