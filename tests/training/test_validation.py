"""A validation equals the evaluation of the same embeddings, by clip and by class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ray_atr.common.override import override
from ray_atr.data.features import FeatureSet, open_features
from ray_atr.data.shards import write_clips
from ray_atr.metrics import classify, evaluate_languages, retrieval_metrics
from ray_atr.metrics.alignment import align_captions
from ray_atr.metrics.metric import Metric
from ray_atr.metrics.samples import from_arrays
from ray_atr.models.retriever import Retriever, build_retriever
from ray_atr.training.checks import check_experiment
from ray_atr.training.encoding.texts import TextBatcher
from ray_atr.training.experiment import Experiment
from ray_atr.training.group import WorkerGroup
from ray_atr.training.inputs import prepare
from ray_atr.training.loop import train_trial
from ray_atr.training.run_folder import TEST_SCORES
from ray_atr.training.validation import embed_captions, embed_clips, evaluate_split
from tests.support.tiny import make_data, prepared_for, tiny, tone_clip


def start(experiment: Experiment, home: Path, split: str) -> tuple[Retriever, FeatureSet]:
    prepared = prepare(experiment, home, use_ray=False, echo=lambda message: None)
    retriever = build_retriever(experiment.model, tokenizer=prepared.load_tokenizer(), seed=0)
    return retriever, open_features(prepared.features, split)


def evaluate(retriever: Retriever, features: FeatureSet, experiment: Experiment, **options: int) -> dict[Metric, float]:
    return evaluate_split(retriever, TextBatcher(retriever), features, experiment, WorkerGroup(), **options)


def test_every_metric_of_an_evaluation_is_there(tmp_path: Path) -> None:
    experiment = tiny(make_data(tmp_path / "data"))
    retriever, features = start(experiment, tmp_path, "val")
    retriever.train()
    got = evaluate(retriever, features, experiment)
    assert retriever.training
    audio = embed_clips(retriever.eval(), features, 3, WorkerGroup())
    text = {
        language: retriever.encode_text([own[0] for own in features.captions_in(language)], language)
        for language in ("eng", "fra")
    }
    expected = evaluate_languages(audio, text, range(len(features)), trained=["eng"])
    assert got == pytest.approx(expected, abs=1e-5)
    for name in ("modality_gap", "language_gap", "language_distance"):
        assert f"embedding/fra/{name}" in got
    assert "text_to_audio/mean/mean_rank_variance" in got


def test_a_validation_ranks_by_what_was_learnt_unless_told_otherwise(tmp_path: Path) -> None:
    experiment = tiny(make_data(tmp_path / "data"), objective="m_ltm")
    _, features = start(experiment, tmp_path, "val")
    learned = build_retriever(
        experiment.model, tokenizer=prepare(experiment, tmp_path, use_ray=False, echo=lambda message: None).load_tokenizer(),
        seed=0, ranking=experiment.ranking, learned=experiment.learned,
    )  # fmt: skip
    assert learned.learned.metric is not None
    learned.learned.metric.data = torch.diag(torch.linspace(0, 8, learned.settings.embedding_width))
    audio = embed_clips(learned.eval(), features, 3, WorkerGroup())
    text = {
        language: learned.embed_sentences([own[0] for own in features.captions_in(language)], language)
        for language in ("eng", "fra")
    }
    found = {}
    for ranking in ("learned", "cosine", "plan"):
        learned.ranking = override(experiment, {"evaluation.ranking": ranking}).ranking
        found[ranking] = evaluate(learned, features, experiment)
        expected = evaluate_languages(
            audio, text, range(len(features)), ranking=ranking, metric=learned.learned_metric, trained=["eng"]
        )
        assert found[ranking] == pytest.approx(expected, abs=1e-5)
    name = "text_to_audio/mean/map_at_10"
    assert len({values[name] for values in found.values()}) == 3
    final = evaluate_split(learned, TextBatcher(learned), features, experiment, WorkerGroup(), has_other_rankings=True)
    assert final["text_to_audio_by_learned/mean/map_at_10"] == found["learned"][name]
    assert final["text_to_audio_by_cosine/mean/map_at_10"] == found["cosine"][name]


def test_a_plan_has_the_objectives_own_epsilon_unless_one_is_set() -> None:
    own = override(Experiment(), {"objective": "m_ltm", "objective.pair.epsilon": 0.11})
    assert own.ranking.plan_epsilon == 0.11
    assert override(own, {"evaluation.plan_epsilon": 0.03}).ranking.plan_epsilon == 0.03
    assert Experiment().ranking.plan_epsilon == 0.05


def test_class_captions_are_asked_once_a_class(tmp_path: Path) -> None:
    names = ("dog", "cat", "rain", "bell")
    clips = [
        tone_clip(
            split,
            index,
            {"eng": [f"a sound of a {names[index % 4]}"]}
            | ({"fra": [f"le bruit de {names[index % 4]}"]} if split == "train" else {}),
            names[index % 4],
        )
        for split in ("train", "val")
        for index in range(16)
    ]
    write_clips(tmp_path / "data", clips, name="classes", licence="none")
    experiment = tiny(tmp_path / "data", model__text__dropout=0.5)
    retriever, features = start(experiment, tmp_path, "val")
    got = evaluate(retriever, features, experiment)
    # Without dropout, though training, which validates between two steps, has it on and keeps it on.
    assert evaluate(retriever.train(), features, experiment) == got
    assert retriever.training
    retriever.eval()
    audio = embed_clips(retriever, features, 16, WorkerGroup())
    texts = retriever.encode_text([f"a sound of a {name}" for name in names])
    expected = classify(audio, texts, names, features.labels).metrics()
    assert got["audio_to_text/eng/recall_at_1"] == pytest.approx(expected["accuracy"])
    # The split has no French captions: the language is left out of it, and of its mean.
    assert not [key for key in got if "/fra/" in key]
    assert got["text_to_audio/mean/recall_at_1"] == got["text_to_audio/eng/recall_at_1"]


def test_only_the_first_captions_are_asked_for_where_a_limit_says_so(tmp_path: Path) -> None:
    clips = [
        tone_clip(split, index, {"eng": [f"tone {index}", f"sound {index}"]})
        for split in ("train", "val")
        for index in range(10)
    ]
    write_clips(tmp_path / "data", clips, name="two", licence="none")
    experiment = tiny(tmp_path / "data", data__languages="eng")
    retriever, features = start(experiment, tmp_path, "val")
    audio = embed_clips(retriever, features, 16, WorkerGroup())
    for limit, captions in ((1, ["tone"]), (0, ["tone", "sound"])):
        texts = [f"{word} {index}" for index in range(10) for word in captions]
        own = np.repeat(np.arange(10), len(captions))
        expected = retrieval_metrics(audio, retriever.encode_text(texts), own)
        got = evaluate(retriever, features, experiment, max_captions=limit)
        for name, value in expected.items():
            direction, metric = name.split("/")
            assert got[f"{direction}/eng/{metric}"] == pytest.approx(value)


def test_labels_that_a_split_lacks_are_missed_before_anything_is_prepared(tmp_path: Path) -> None:
    clips = [
        tone_clip(split, index, {"eng": [f"tone {index}"]}, "a tone" if split == "val" else "")
        for split in ("train", "val", "test")
        for index in range(8)
    ]
    write_clips(tmp_path / "data", clips, name="few", licence="none")
    by_label = {"data__languages": "eng", "evaluation__relevance": "label"}
    check_experiment(tiny(tmp_path / "data", **by_label))
    with pytest.raises(ValueError, match=r"evaluation\.relevance: got 'label'; allowed clip: no clip of split test of"):
        check_experiment(tiny(tmp_path / "data", **by_label, data__test_split="test"))


@pytest.mark.parametrize("interaction", ["global", "late"])
def test_a_language_that_some_clips_lack_is_asked_of_the_others(interaction: str, tmp_path: Path) -> None:
    """As where it is the only language, and nothing is absent."""
    french = [[f"son {index}", f"bruit {index}"][: 0 if index in (0, 3) else 1 + index % 2] for index in range(10)]
    clips = [
        tone_clip(split, index, {"eng": [f"tone {index}", f"sound {index}"], **({"fra": own} if own else {})})
        for split in ("train", "val")
        for index, own in enumerate(french)
    ]
    write_clips(tmp_path / "data", clips, name="some", licence="none")
    experiment = tiny(tmp_path / "data", model__interaction=interaction)
    retriever, features = start(experiment, tmp_path, "val")
    got = evaluate(retriever, features, experiment)
    alone = evaluate(retriever, features, override(experiment, {"data.languages": "fra"}))
    asked = {name: value for name, value in alone.items() if name.language == "fra"}
    assert asked[Metric("text_to_audio", "fra", "queries")] == 12
    assert {name: got[name] for name in asked} == pytest.approx(asked, abs=1e-6)


def test_no_two_workers_embed_the_same_caption(tmp_path: Path) -> None:
    """Each would round it otherwise, and what is equal would not tie."""
    experiment = tiny(make_data(tmp_path / "data"))
    retriever, _ = start(experiment, tmp_path, "val")
    sentences = [f"tone {index % 5}" for index in range(18)]
    captions = align_captions({"eng": [[text] for text in sentences]})
    embedded: list[list[str]] = []

    class OneOfTwo(WorkerGroup):
        def gather_rows(self, tensor: torch.Tensor) -> torch.Tensor:
            return torch.eye(5)

    class Recording(TextBatcher):
        def embed(self, captions: Sequence[tuple[str, str]], **options: Any) -> torch.Tensor:
            embedded.append([text for text, _ in captions])
            return super().embed(captions, **options)

    for rank in (0, 1):
        found = embed_captions(Recording(retriever), captions, "eng", 5, OneOfTwo(rank, 2))
        assert found.argmax(dim=1).tolist() == [index % 5 for index in range(18)]
    assert embedded == [["tone 0", "tone 1", "tone 2"], ["tone 3", "tone 4"]]


def test_a_trial_keeps_whether_each_test_query_found_its_own(tmp_path: Path) -> None:
    experiment = tiny(make_data(tmp_path / "data"), train__epochs=1, data__test_split="test")
    reports: list[dict[str, float]] = []
    train_trial(experiment, prepared_for(experiment, tmp_path), tmp_path / "trial", reports.append, use_ray_data=False)
    with np.load(tmp_path / "trial" / TEST_SCORES) as arrays:
        kept = from_arrays(dict(arrays))
    # English alone was trained; a reality check may select by another language.
    directions = ("text_to_audio", "audio_to_text")
    assert list(kept) == [f"{direction}/{language}" for direction in directions for language in ("eng", "fra")]
    for key, sample in kept.items():
        assert list(sample.means) == ["recall_at_1"]
        assert sample.means["recall_at_1"].mean() == pytest.approx(reports[-1][f"test/{key}/recall_at_1"])
        assert sorted(set(sample.unit.tolist())) == list(range(8))
