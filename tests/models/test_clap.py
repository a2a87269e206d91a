"""A published CLAP, as transformers writes it, is read as a retriever: its embeddings are the library's own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import ClapFeatureExtractor, ClapModel, PreTrainedTokenizerFast

from ray_atr.common.override import override
from ray_atr.models.retriever import Retriever
from ray_atr.training.experiment import Experiment
from ray_atr.training.run_folder import saved_retriever
from tests.support import tiny_checkpoints
from tests.support.tiny import make_data, prepared_for

TEXTS = ["a dog barks twice", "rain falls", "a tone"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both towers with RoBERTa's special tokens, as on the hub."""
    place = tiny_checkpoints.clap(tmp_path_factory.mktemp("clap"))
    tiny_checkpoints.roberta_words(place)
    return place


@torch.inference_mode()
def test_texts_and_clips_are_embedded_as_the_library_embeds_them_also_once_saved(folder: Path, tmp_path: Path) -> None:
    waveforms = [np.random.RandomState(seed).uniform(-0.5, 0.5, 16_000).astype(np.float32) for seed in range(3)]
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    inputs = {
        **tokenizer(TEXTS, padding=True, return_tensors="pt"),
        **ClapFeatureExtractor.from_pretrained(folder)(waveforms, sampling_rate=8_000, return_tensors="pt"),
    }
    inputs.pop("token_type_ids", None)
    expected = ClapModel.from_pretrained(folder).eval()(**inputs)
    retriever = Retriever.from_pretrained(saved_retriever(folder, "--checkpoint"))
    for one in (retriever, _saved(retriever, tmp_path)):
        torch.testing.assert_close(one.encode_text(TEXTS, ["eng"] * 3), expected.text_embeds, atol=1e-5, rtol=1e-4)
        audio = one.encode_audio(waveforms, 8_000)
        torch.testing.assert_close(audio, expected.audio_embeds, atol=1e-4, rtol=1e-3)


def _saved(retriever: Retriever, folder: Path) -> Retriever:
    retriever.save_pretrained(folder / "saved")
    return Retriever.from_pretrained(folder / "saved")


def test_training_starts_from_it(folder: Path, tmp_path: Path) -> None:
    settings = {
        "data.source": str(make_data(tmp_path / "tones")),
        "data.languages": "eng",
        "model.audio": "htsat",
        "model.audio.checkpoint": str(folder),
        "model.text": "transformers",
        "model.text.checkpoint": str(folder),
        "model.text.pooling": "pooler",
        "model.projection": "mlp",
        "model.embedding_width": 16,
        "train.batch_size": 8,
        "train.start_from": str(folder),
    }
    experiment = override(Experiment(), settings)
    first = prepared_for(experiment, tmp_path).first_retriever(experiment).state_dict()
    published = Retriever.from_pretrained(folder).state_dict()
    assert all(torch.equal(first[name], value) for name, value in published.items() if not name.startswith("learned."))


def test_what_is_no_clap_is_refused_with_what_is_missing(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with pytest.raises(ValueError, match=r"--checkpoint: got .*retriever.json, transformers' ClapModel, or the folder"):
        saved_retriever(tmp_path, "--checkpoint")
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    with pytest.raises(ValueError, match="model folder"):
        Retriever.from_pretrained(tmp_path)
