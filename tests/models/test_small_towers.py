"""The towers that train from scratch: batch invariance, determinism, and that they can learn."""

from __future__ import annotations

import pytest
import torch

from ray_atr.models.audio import SmallCnn
from ray_atr.models.model_settings import ModelSettings
from ray_atr.models.retriever import Retriever, build_retriever
from ray_atr.models.text import SmallTransformer, train_tokenizer
from ray_atr.models.tower import masked_mean, pad_tokens, tower_fingerprint
from ray_atr.objectives import LearnedSettings

CAPTIONS = {
    "eng": ["A dog barks twice.", "Rain falls on a tin roof while a bell rings in the distance.", "A siren"],
    "deu": ["Ein Hund bellt zweimal.", "Regen fällt auf ein Blechdach.", "Eine Sirene heult."],
    "jpn": ["犬が二回吠える。", "トタン屋根に雨が降る。", "サイレンが鳴る。"],
}


def retriever(**model: object) -> Retriever:
    tokenizer = train_tokenizer([text for texts in CAPTIONS.values() for text in texts], vocab_size=400)
    return build_retriever(ModelSettings(**model), tokenizer=tokenizer, seed=0).eval()


def test_an_audio_embedding_depends_on_its_own_clip_alone() -> None:
    model = retriever()
    generator = torch.Generator().manual_seed(1)
    lengths = torch.tensor([201, 40, 7, 1, 133])
    clips = [torch.randn(int(length), 64, generator=generator) for length in lengths]
    batch = torch.full((5, 201, 64), 1e4)
    for row, clip in zip(batch, clips, strict=True):
        row[: len(clip)] = clip
    together = model.embed_audio(batch, lengths)
    for row, clip in zip(together, clips, strict=True):
        alone = model.embed_audio(clip[None], torch.tensor([len(clip)]))[0]
        torch.testing.assert_close(row, alone, atol=1e-5, rtol=0)


def test_a_text_embedding_depends_on_its_own_text_alone() -> None:
    model = retriever()
    texts = [text for texts in CAPTIONS.values() for text in texts]
    languages = [language for language, texts in CAPTIONS.items() for _ in texts]
    token_ids = model.text_tower.tokenise(texts, languages)
    together = model.embed_text(*pad_tokens(token_ids, model.text_tower.pad_token_id))
    for row, ids in zip(together, token_ids, strict=True):
        alone = model.embed_text(*pad_tokens([ids], model.text_tower.pad_token_id))[0]
        torch.testing.assert_close(row, alone, atol=1e-5, rtol=0)


def test_what_stands_in_masked_tokens_does_not_reach_the_mean() -> None:
    tokens = torch.tensor([[[1.0], [3.0], [float("nan")]], [[5.0], [float("inf")], [2.0]]])
    mask = torch.tensor([[True, True, False], [True, False, False]])
    assert masked_mean(tokens, mask).tolist() == [[2.0], [5.0]]


def test_embeddings_are_unit_norm_float32() -> None:
    model = retriever(projection="mlp", embedding_width=48)
    audio = model.embed_audio(torch.randn(3, 50, 64), torch.tensor([50, 20, 3]))
    assert audio.shape == (3, 48)
    assert audio.dtype == torch.float32
    torch.testing.assert_close(audio.norm(dim=-1), torch.ones(3))


def test_a_seed_determines_every_weight_and_moves_no_other_generator() -> None:
    torch.manual_seed(5)
    first = retriever()
    drawn = torch.rand(1)
    torch.manual_seed(6)
    second = retriever()
    torch.manual_seed(5)
    assert torch.rand(1) == drawn
    for name, value in first.state_dict().items():
        torch.testing.assert_close(second.state_dict()[name], value, atol=0, rtol=0)
    assert tower_fingerprint(first.audio_tower) == tower_fingerprint(second.audio_tower)
    with torch.no_grad():
        next(second.audio_tower.parameters()).view(-1)[0] += 1e-6
    assert tower_fingerprint(first.audio_tower) != tower_fingerprint(second.audio_tower)


def test_the_vocabulary_is_deterministic_and_knows_every_byte() -> None:
    texts = CAPTIONS["eng"] + CAPTIONS["jpn"]
    first, second = train_tokenizer(texts, 300), train_tokenizer(texts[::-1], 300)
    assert first.to_str() == second.to_str()
    assert first.decode(first.encode("ein größerer Hund 狗 🐕").ids).strip() == "ein größerer hund 狗 🐕"


@pytest.mark.parametrize(
    ("kind", "rank", "shape"),
    [
        ("diagonal", None, (16,)),
        ("mahalanobis", None, (16, 16)),
        ("factored", 4, (16, 4)),
        ("factored", None, (16, 16)),
    ],
)
def test_the_metric_has_the_shape_its_kind_asks_for_and_is_positive(
    kind: str, rank: int | None, shape: tuple[int, ...]
) -> None:
    tokenizer = train_tokenizer(CAPTIONS["eng"], 300)
    learned = LearnedSettings(metric=kind, metric_rank=rank)
    model = build_retriever(ModelSettings(embedding_width=16), tokenizer=tokenizer, learned=learned, seed=0)
    assert model.learned.metric is not None
    assert model.learned.metric.shape == shape
    M = {"diagonal": torch.diag, "mahalanobis": lambda M: M, "factored": lambda L: L @ L.T}[kind](
        model.learned.metric.detach()
    )
    assert torch.linalg.eigvalsh(M).min() > -1e-6
    assert torch.trace(M) == pytest.approx(16, rel=0.05)


def test_both_towers_learn_to_tell_a_few_pairs_apart() -> None:
    model = retriever(audio=SmallCnn(channels=4, width=32), text=SmallTransformer(width=32), embedding_width=32).train()
    features = torch.randn(3, 60, 64, generator=torch.Generator().manual_seed(0))
    tokens = pad_tokens(model.text_tower.tokenise(CAPTIONS["eng"], ["eng"] * 3), model.text_tower.pad_token_id)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(40):
        similarity = model.embed_audio(features, torch.tensor([60, 60, 60])) @ model.embed_text(*tokens).T
        loss = torch.nn.functional.cross_entropy(similarity / 0.07, torch.arange(3))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss.item() < 0.05


def test_a_learnt_temperature_has_a_gradient_and_else_the_objectives_own_holds() -> None:
    model = retriever(learn_temperature=True)
    temperature = model.learned.values().temperature
    assert temperature.item() == pytest.approx(0.07)
    assert temperature.requires_grad
    assert retriever().learned.values().temperature is None


def test_a_tower_from_scratch_asks_for_its_tokeniser() -> None:
    with pytest.raises(ValueError, match="tokeniser trained on the training captions"):
        build_retriever(ModelSettings())
