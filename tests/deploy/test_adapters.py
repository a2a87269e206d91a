"""A retriever of any towers as a SentenceTransformer in process."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ray_atr.models.audio import SmallCnn
from ray_atr.models.model_settings import ModelSettings
from ray_atr.models.retriever import build_retriever
from ray_atr.models.text import SmallTransformer, train_tokenizer

pytest.importorskip("sentence_transformers", reason="no sentence_transformers: an optional extra")

TEXTS = ["A dog barks.", "Rain falls on a roof.", "Una campana suena lejos, muy lejos."]


@pytest.fixture(scope="module")
def retriever():
    settings = ModelSettings(audio=SmallCnn(width=32), text=SmallTransformer(width=32), embedding_width=16)
    return build_retriever(settings, tokenizer=train_tokenizer(TEXTS * 20, 300), seed=0)


def test_it_embeds_as_the_retriever_and_resamples(retriever):
    import ray_atr

    model = ray_atr.as_sentence_transformer(retriever, "spa")
    np.testing.assert_allclose(model.encode(TEXTS), retriever.encode_text(TEXTS, "spa"), atol=1e-6)
    clips = [np.random.default_rng(n).normal(0, 0.1, 16_000 * (n + 1)).astype(np.float32) for n in range(3)]
    given = [{"audio": {"array": clip, "sampling_rate": 16_000}} for clip in clips]
    found = model.encode(given)
    np.testing.assert_allclose(found, retriever.encode_audio(clips, 16_000), atol=1e-6)
    similarity = model.similarity(model.encode(TEXTS), found)
    expected = retriever.similarity(retriever.encode_text(TEXTS), retriever.encode_audio(clips, 16_000))
    torch.testing.assert_close(similarity, expected, atol=1e-5, rtol=0)


def test_what_it_cannot_embed_or_save_is_refused(retriever, tmp_path):
    from ray_atr.deploy.export.adapters import as_sentence_transformer

    model = as_sentence_transformer(retriever)
    with pytest.raises(ValueError, match="texts alone, or clips alone"):
        model[0].preprocess([{"audio": {"array": np.zeros(9)}}])
    with pytest.raises(ValueError, match="ray-atr export --to sentence-transformers"):
        model[0].save(str(tmp_path))
