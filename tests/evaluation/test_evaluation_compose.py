"""From embeddings to the whole page, and from lists of captions to one numbering."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
import soundfile

from ray_atr.evaluation import evaluate_languages
from ray_atr.evaluation.captions import align_captions
from ray_atr.evaluation.compose import ZeroShot, compose_page
from ray_atr.evaluation.page import as_html, as_json
from ray_atr.evaluation.plan_ranking import MAX_ENTRIES
from ray_atr.evaluation.storage import from_arrays, to_arrays


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


def test_page_holds_the_evaluation_and_the_comparison_with_itself_is_zero(embeddings: tuple) -> None:
    audio, text, captions = embeddings

    def listen(clip: int) -> bytes:
        buffer = io.BytesIO()
        soundfile.write(buffer, np.full(160, clip / 100), 16_000, format="WAV")
        return buffer.getvalue()

    zero_shot = ZeroShot({"eng": audio[:3], "jpn": audio[:3]}, ["a", "b", "c"], list("abc") * 4)
    page, retrievals = compose_page(
        "t", {"data": "x"}, audio, text, captions, zero_shot=zero_shot, listen=listen, draws=20
    )
    expected = evaluate_languages(audio, text, captions.clip_of_caption, present=captions.present)
    expected |= evaluate_languages(audio, text, captions.clip_of_caption, present=captions.present, ranking="plan")
    assert {k: v for k, v in page.metrics.items() if not k.startswith("zero_shot")} == expected
    assert "zero_shot/jpn/accuracy" in page.metrics
    assert len(page.pictures) == 3
    html = as_html(page)
    assert html.count("<audio") == 8 * 5
    assert html.count('class="relevant"') <= 8
    assert 'lang="jpn">音 ' in html
    again, _ = compose_page(
        "t", {}, audio, text, captions, baseline=from_arrays(to_arrays(retrievals)), compared=("old", "new"), draws=20
    )
    assert all(d["value"] == 0 for d in json.loads(as_json(again))["comparison"].values())


def test_a_set_too_large_for_a_plan_says_so(embeddings: tuple, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_ENTRIES > 5 * 10_000 * 5000
    monkeypatch.setattr("ray_atr.evaluation.compose.MAX_ENTRIES", 100)
    page, _ = compose_page("t", {}, *embeddings, draws=5)
    assert any("No ranking by plan" in note for note in page.reading)
    assert not [key for key in page.metrics if "by_plan" in key]
