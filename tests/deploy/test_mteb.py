"""MTEB, which knows nothing of us, scores a retriever on data sets here as `evaluate` does, by language and direction."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support import tiny
from tests.support.archives import save_retriever

pytest.importorskip("mteb", reason="no mteb: an optional extra")

from mteb.results import TaskResult

from ray_atr.data.shards import write_clips
from ray_atr.evaluation.checkpoints import find_checkpoint
from ray_atr.evaluation.mteb_encoder import RetrieverEncoder, language_of
from ray_atr.evaluation.mteb_scoring import find_tasks, score_tasks
from ray_atr.evaluation.mteb_tasks import local_tasks, read_clips
from ray_atr.evaluation.options import Encoding, EvaluationOptions
from ray_atr.evaluation.run import Evaluated, evaluate
from ray_atr.models.audio import SmallCnn
from ray_atr.models.model_settings import ModelSettings
from ray_atr.models.retriever import Retriever, build_retriever
from ray_atr.models.text import SmallTransformer, train_tokenizer

OPTIONS: dict[str, Any] = {"draws": 20, "mlflow": False}


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Evaluated:
    """A retriever evaluated on 60 tones in two languages, of which French lacks some captions."""
    home = tmp_path_factory.mktemp("mteb")
    data = tiny.make_data(home / "tones", num_test=60)
    settings = ModelSettings(audio=SmallCnn(width=32), text=SmallTransformer(width=32), embedding_width=16)
    words = ["a low tone, number 1234567890", "un son grave, numéro 1234567890"] * 9
    build_retriever(settings, tokenizer=train_tokenizer(words, 300), seed=0).save_pretrained(home / "R")
    options = EvaluationOptions(data=str(data), **OPTIONS)
    return evaluate([str(home / "R")], options, encoding=Encoding(ray="never"), out=home / "E", echo=lambda _: None)


def test_recall_of_a_local_data_set_is_ours(evaluated):
    data = str(evaluated.eval_split.manifest.folder)
    tasks = find_tasks([data], EvaluationOptions(**OPTIONS), evaluated.checkpoint)
    scores = score_tasks(evaluated, tasks, echo=lambda _: None)
    assert [(one.task, one.subset) for one in scores] == [
        (f"Tones{direction}Retrieval", language) for direction in ("T2A", "A2T") for language in ("eng", "fra")
    ]
    for one in scores:
        direction = "text_to_audio" if "T2A" in one.task else "audio_to_text"
        ours = {k: evaluated.page.metrics[f"{direction}/{one.subset}/recall_at_{k}"] for k in (1, 5, 10)}
        assert one.recall == pytest.approx(ours, abs=1e-9)
        assert one.main == pytest.approx(ours[10], abs=1e-5)
    # Neither nothing nor everything is found: equality says something.
    assert {0.0, 1.0}.isdisjoint(one.recall[10] for one in scores)
    assert len({one.recall[10] for one in scores}) > 1
    file = Path(str(evaluated.folder)) / "mteb" / "TonesT2ARetrieval.json"
    assert TaskResult.from_disk(file).scores["test"][0]["r_at_10"] == pytest.approx(scores[0].recall[10])


def test_a_name_of_neither_kind_is_refused_before_anything_is_encoded(evaluated):
    with pytest.raises(ValueError, match=r"--mteb: got 'ClothoT2ARetrival'.*did you mean 'ClothoT2ARetrieval'"):
        find_tasks(["ClothoT2ARetrival"], EvaluationOptions(**OPTIONS), evaluated.checkpoint)
    (task,) = find_tasks(["ClothoT2ARetrieval"], EvaluationOptions(**OPTIONS), evaluated.checkpoint)
    assert task.metadata.category == "t2a"


def test_split_and_languages_are_those_of_the_evaluation(evaluated):
    data = str(evaluated.eval_split.manifest.folder)
    with pytest.raises(ValueError, match=r"TonesT2ARetrieval, .*; allowed tasks of different names"):
        find_tasks([data, data], EvaluationOptions(**OPTIONS), evaluated.checkpoint)
    options = EvaluationOptions(split="val", languages=("fra",), **OPTIONS)
    tasks = find_tasks([data], options, evaluated.checkpoint)
    assert [task.metadata.eval_splits for task in tasks] == [["val"], ["val"]]
    assert [task.hf_subsets for task in tasks] == [["fra"], ["fra"]]
    assert tasks[0].metadata.eval_langs == {"fra": ["fra-Latn", "zxx-Zxxx"]}


def test_relevance_by_class_is_carried_over(evaluated, tmp_path):
    """A class captions asks for: every clip of it is relevant, and each clip asks for the one caption of its class."""
    clips = [
        tiny.tone_clip("test", row, {"eng": [f"a {tiny.NOTES[row % 4]} tone"]}, tiny.NOTES[row % 4])
        for row in range(12)
    ]
    write_clips(tmp_path / "classes", clips, name="four classes", licence="none")
    t2a, a2t = find_tasks([str(tmp_path / "classes")], EvaluationOptions(**OPTIONS), evaluated.checkpoint)
    assert t2a.metadata.name == "FourClassesT2ARetrieval"
    for task, queries, relevant in ((t2a, 4, 3), (a2t, 12, 1)):
        task.load_data()
        content = task.dataset["eng"]["test"]
        assert len(content["relevant_docs"]) == queries
        assert {len(own) for own in content["relevant_docs"].values()} == {relevant}


def test_clips_are_read_as_they_are_stored_or_as_others_hold_them(evaluated):
    from datasets import Audio, Dataset

    retriever = Retriever.from_pretrained(str(evaluated.checkpoint.folder))
    encoder = RetrieverEncoder(retriever, "R")
    clips = read_clips(evaluated.eval_split).select(range(3))
    waveform = np.random.default_rng(0).normal(0, 0.1, 16_000).astype(np.float32)
    other = Dataset.from_list([{"audio": {"array": waveform, "sampling_rate": 16_000}}])
    (task, _) = local_tasks(evaluated.eval_split)

    class Loader:
        """What is read of a DataLoader."""

        def __init__(self, dataset: Any) -> None:
            self.dataset = dataset

    told: Any = {"task_metadata": task.metadata, "hf_split": "test", "hf_subset": "fra"}
    found = encoder.encode(Loader(clips.cast_column("audio", Audio())), prompt_type="document", batch_size=2, **told)
    # As the evaluation has them: their frames are rounded, which moves some ranks.
    ours = retriever.vectors(torch.from_numpy(evaluated.embedded.audio[:3]))
    np.testing.assert_allclose(found, ours, atol=1e-6)
    assert np.abs(found - retriever.encode_audio([row["bytes"] for row in clips["audio"]])).max() > 1e-6
    found = encoder.encode(Loader(other), prompt_type="document", **told)
    np.testing.assert_allclose(found, retriever.encode_audio(waveform, 16_000), atol=1e-6)
    with pytest.raises(ValueError, match="a task of clips alone or texts alone"):
        encoder.encode(Loader(Dataset.from_dict({"image": [1]})), prompt_type="document", **told)
    of_pairs = encoder.similarity(ours, ours.flip(0)).diagonal()
    np.testing.assert_allclose(encoder.similarity_pairwise(ours, ours.flip(0)), of_pairs, atol=1e-6)
    assert encoder.mteb_model_meta.modalities == ["text", "audio"]


@pytest.mark.parametrize(
    ("codes", "subset", "expected"),
    [
        ({"fra": ["zxx-Zxxx", "fra-Latn"]}, "fra", "fra"),
        (["eng-Latn", "zxx-Zxxx"], "default", "eng"),
        (["jpn-Jpan"], "default", "jpn"),
        (["zxx-Zxxx"], "default", "eng"),
    ],
)
def test_the_language_of_a_task_is_told_to_the_text_tower(codes, subset, expected):
    assert language_of(codes, subset) == expected


def test_a_retriever_without_one_vector_a_clip_is_refused_by_its_settings_alone(evaluated, tmp_path):
    save_retriever(tmp_path / "late", interaction="late")
    (weights,) = (tmp_path / "late").glob("*.safetensors")
    weights.write_bytes(b"not read")
    with pytest.raises(ValueError, match=r"late.*; allowed a retriever of model\.interaction global"):
        find_tasks(["ClothoT2ARetrieval"], EvaluationOptions(**OPTIONS), find_checkpoint(tmp_path / "late"))
    settings = tmp_path / "late" / "retriever.json"
    settings.write_text(json.dumps({"model": {"interaction": "global", "audio": "vectors", "text": "bert"}}))
    with pytest.raises(ValueError, match="encoders of its own"):
        find_tasks(["ClothoT2ARetrieval"], EvaluationOptions(**OPTIONS), find_checkpoint(tmp_path / "late"))
    assert len(find_tasks(["ClothoT2ARetrieval"], EvaluationOptions(**OPTIONS), evaluated.checkpoint)) == 1
