"""Models of sentence-transformers and ClapModels as frozen towers: their vectors are that library's own."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import AutoTokenizer, ClapModel
from transformers.utils import logging as transformers_logging

from ray_atr.common.override import override
from ray_atr.data.caption_vectors import open_caption_vectors
from ray_atr.models.adaptation import Adaptation
from ray_atr.models.model_settings import ModelSettings
from ray_atr.models.retriever import Retriever, build_retriever
from ray_atr.models.sentence_transformers import (
    SentenceTransformersAudio,
    SentenceTransformersText,
    SentenceTransformersTextTower,
)
from ray_atr.models.text import SmallTransformer
from ray_atr.models.vectors import encode_captions
from ray_atr.training.inputs import prepare
from tests.support import tiny_checkpoints as tiny
from tests.support.tiny import make_data
from tests.support.tiny import tiny as small

sentence_transformers = pytest.importorskip(
    "sentence_transformers", reason="no sentence_transformers: an optional extra"
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A text encoder with mean pooling, and a ClapModel with a tokeniser."""
    home = tmp_path_factory.mktemp("models")
    modules = sentence_transformers.sentence_transformer.modules
    encoder = sentence_transformers.base.modules.Transformer(str(tiny.bert(home / "bert")))
    model = sentence_transformers.SentenceTransformer(modules=[encoder, modules.Pooling(32, "mean")], device="cpu")
    model.save_pretrained(str(home / "text"), create_model_card=False)
    tiny.clap(home / "clap")
    AutoTokenizer.from_pretrained(tiny.xlm_roberta(home / "words")).save_pretrained(home / "clap")
    return home


def test_a_saved_retriever_of_frozen_towers_embeds_as_the_library(folders, tmp_path):
    settings = ModelSettings(
        audio=SentenceTransformersAudio(checkpoint=str(folders / "clap")),
        text=SentenceTransformersText(checkpoint=str(folders / "text")),
        embedding_width=8,
    )
    assert settings.audio.front_end.clip_seconds == 2.0  # what CLAP's extractor takes before it crops at random
    retriever = build_retriever(settings, seed=0)
    assert not [name for name, one in retriever.named_parameters() if one.requires_grad and "tower" in name]
    texts = sentence_transformers.SentenceTransformer(str(folders / "text"), device="cpu").encode(tiny.TEXTS)
    tower = retriever.text_tower
    found = retriever.embed_sentences(tiny.TEXTS)
    expected = torch.nn.functional.normalize(retriever.text_projection(torch.from_numpy(texts)), dim=-1)
    torch.testing.assert_close(found, expected.detach(), atol=1e-6, rtol=0)
    assert tower.width == 32

    clips = [np.random.default_rng(n).normal(0, 0.1, 8_000 + 900 * n).astype(np.float32) for n in range(3)]
    clap = ClapModel.from_pretrained(folders / "clap").eval()
    extractor = tiny.ClapFeatureExtractor.from_pretrained(folders / "clap")
    with torch.inference_mode():
        vectors = torch.cat(
            [
                clap.get_audio_features(**extractor(clip, sampling_rate=8_000, return_tensors="pt")).pooler_output
                for clip in clips
            ]
        )
        expected = torch.nn.functional.normalize(retriever.audio_projection(vectors), dim=-1)
    torch.testing.assert_close(retriever.encode_audio(clips), expected, atol=1e-6, rtol=0)

    retriever.save_pretrained(tmp_path / "R")
    # Each tower's weights are there once: in its own folder.
    with safe_open(tmp_path / "R" / "model.safetensors", "pt") as file:
        assert not [name for name in file.keys() if "tower" in name]  # noqa: SIM118
    again = Retriever.from_pretrained(tmp_path / "R")
    assert torch.equal(again.embed_sentences(tiny.TEXTS), found)
    assert torch.equal(again.encode_audio(clips), retriever.encode_audio(clips))


@pytest.mark.parametrize("kind", ["prompt", "prompt left out of the mean", "table of token vectors"])
def test_a_tower_gives_the_vectors_of_the_library_s_encode(folders, tmp_path, kind):
    modules = sentence_transformers.sentence_transformer.modules
    if kind == "table of token vectors":
        parts = [modules.StaticEmbedding(AutoTokenizer.from_pretrained(folders / "bert"), embedding_dim=8)]
    else:
        encoder = sentence_transformers.base.modules.Transformer(str(folders / "bert"))
        parts = [encoder, modules.Pooling(32, "mean", include_prompt=kind == "prompt")]
    prompts = {"prompts": {"query": "A dog ", "document": "Rain "}, "default_prompt_name": "query"}
    sentence_transformers.SentenceTransformer(modules=parts, device="cpu", **prompts).save_pretrained(
        str(tmp_path / "text"), create_model_card=False
    )
    texts = [*tiny.TEXTS, ""]
    expected = sentence_transformers.SentenceTransformer(str(tmp_path / "text"), device="cpu").encode(texts)
    tower = SentenceTransformersText(checkpoint=str(tmp_path / "text")).build().requires_grad_(False)
    for size in (1, 3):
        rows = range(0, len(texts), size)
        found = [encode_captions(tower, [(text, "eng") for text in texts[row : row + size]]) for row in rows]
        np.testing.assert_allclose(torch.cat(found), expected, atol=1e-6)


def test_a_sweep_over_objectives_encodes_once(folders, tmp_path, monkeypatch):
    data = make_data(tmp_path / "tones", num_train=12, num_val=4, num_test=4)
    built: list[str] = []

    def counted(build):
        def counting(settings, *arguments):
            built.append(settings.name)
            return build(settings, *arguments)

        return counting

    for kind in (SentenceTransformersAudio, SentenceTransformersText):
        monkeypatch.setattr(kind, "build", counted(kind.build))
    models = {
        "model.audio": "sentence_transformers",
        "model.audio.checkpoint": str(folders / "clap"),
        "model.text": "sentence_transformers",
        "model.text.checkpoint": str(folders / "text"),
    }
    for objective in ("kcl", "contrastive", "triplet"):
        experiment = override(small(data, objective=objective), models)
        prepared = prepare(experiment, tmp_path, use_ray=False, echo=lambda _: None)
        assert prepared.is_audio_encoded
        assert prepared.captions is not None
        if objective == "kcl":
            first = len(built)
            assert first
    assert len(built) == first


def test_a_model_that_differs_in_its_pooling_alone_has_vectors_of_its_own(folders, tmp_path):
    modules = sentence_transformers.sentence_transformer.modules
    data = make_data(tmp_path / "tones", num_train=12, num_val=4, num_test=4)
    found = {}
    # The last one is changed in its place: its weights are those of before.
    for folder, pooling in (("mean", "mean"), ("cls", "cls"), ("cls", "max")):
        encoder = sentence_transformers.base.modules.Transformer(str(folders / "bert"))
        model = sentence_transformers.SentenceTransformer(modules=[encoder, modules.Pooling(32, pooling)], device="cpu")
        place = tmp_path / (folder if pooling != "max" else "other")
        model.save_pretrained(str(place), create_model_card=False)
        if pooling == "max":
            for file in place.rglob("1_*/*"):
                file.replace(tmp_path / folder / file.relative_to(place))
        models = {"model.text": "sentence_transformers", "model.text.checkpoint": str(tmp_path / folder)}
        prepared = prepare(override(small(data), models), tmp_path, use_ray=False, echo=lambda _: None)
        assert prepared.captions is not None
        vectors, captions = open_caption_vectors(prepared.captions), [("a low tone, number 0", "eng")]
        found[pooling] = vectors.vectors(vectors.rows(captions))
        np.testing.assert_allclose(found[pooling], model.encode([captions[0][0]]), atol=1e-5)
    assert len({vector.tobytes() for vector in found.values()}) == 3


def test_a_tower_is_opened_and_saved_without_progress_bars(folders, tmp_path, capsys):
    transformers_logging.enable_progress_bar()
    SentenceTransformersText(checkpoint=str(folders / "text")).build().save(tmp_path)
    assert "it/s" not in capsys.readouterr().err


def test_the_rate_is_that_of_the_model_that_is_at_its_place_now(folders, tmp_path):
    shutil.copytree(folders / "clap", tmp_path / "clap")
    settings = SentenceTransformersAudio(checkpoint=str(tmp_path / "clap"))
    assert settings.front_end.sample_rate == 8_000
    file = tmp_path / "clap" / "preprocessor_config.json"
    file.write_text(file.read_text().replace('"sampling_rate": 8000', '"sampling_rate": 16000'))
    assert settings.front_end.sample_rate == 16_000


def test_what_is_no_frozen_tower_is_refused(folders):
    with pytest.raises(ValueError, match=r"model.text.adapt.is_frozen: got False; allowed true"):
        SentenceTransformersText(checkpoint="x", adapt=Adaptation())
    with pytest.raises(ValueError, match=r"model.audio.checkpoint: got .*; allowed a model that takes audio"):
        build_retriever(
            ModelSettings(audio=SentenceTransformersAudio(checkpoint=str(folders / "text")), text=SmallTransformer())
        )
    with pytest.raises(ValueError, match=r"model.text.checkpoint: got '/nowhere'; allowed a folder that exists"):
        SentenceTransformersText(checkpoint="/nowhere").build()
    counts = sentence_transformers.sentence_transformer.modules.BoW(vocab=["dog", "rain"])
    counting = sentence_transformers.SentenceTransformer(modules=[counts], device="cpu")
    with pytest.raises(
        ValueError, match=r"model.text.checkpoint: got 'a model that begins with BoW'; allowed one that"
    ):
        SentenceTransformersTextTower(counting)
