"""Towers backed by transformers: equal to the library's own outputs, and an embedding depends on its own clip or text alone."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    CONFIG_MAPPING,
    ASTModel,
    AutoTokenizer,
    BertModel,
    ClapFeatureExtractor,
    ClapModel,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2Model,
    XLMRobertaModel,
)
from transformers.models.m2m_100.modeling_m2m_100 import M2M100Encoder

from ray_atr.common.language_codes import LANGUAGES
from ray_atr.data.audio import fit, log_mel
from ray_atr.models.audio import Ast, Htsat, TransformersAudio
from ray_atr.models.text import Bert, Labse, Sonar, TransformersText, XlmRoberta
from ray_atr.models.tower import pad_tokens
from ray_atr.models.transformers import TransformersTextTower, length_groups, text_encoder
from tests.support import tiny_checkpoints as tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    made: dict[Any, str] = {}

    def make(kind: Callable[..., Path], **arguments: Any) -> str:
        key = (kind.__name__, *arguments.items())
        if key not in made:
            made[key] = str(kind(tmp_path_factory.mktemp(kind.__name__), **arguments))
        return made[key]

    return make


def encode(tower: Any, texts: list[str], languages: list[str]) -> torch.Tensor:
    with torch.inference_mode():
        return tower(*pad_tokens(tower.tokenise(texts, languages), tower.pad_token_id)).pooled


def library_states(model: Any, tokenizer: Any, text: str, language: str) -> Any:
    if hasattr(tokenizer, "src_lang"):
        tokenizer.src_lang = LANGUAGES[language].tag
    with torch.inference_mode():
        return model.eval()(**{k: v for k, v in tokenizer(text, return_tensors="pt").items() if k != "token_type_ids"})


CASES: dict[str, Any] = {
    "sonar": (Sonar, tiny.sonar, M2M100Encoder, lambda out: out.last_hidden_state[0].mean(dim=0)),
    "labse": (Labse, tiny.bert, BertModel, lambda out: out.pooler_output[0]),
    "bert": (Bert, tiny.bert, BertModel, lambda out: out.last_hidden_state[0, 0]),
    "xlm_roberta": (XlmRoberta, tiny.xlm_roberta, XLMRobertaModel, lambda out: out.last_hidden_state[0].mean(dim=0)),
    "transformers": (TransformersText, tiny.bert, BertModel, lambda out: out.last_hidden_state[0].mean(dim=0)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(CASES))
def test_text_embeddings_of_a_mixed_batch_are_the_librarys_own_one_by_one(name: str, folder: Any) -> None:
    settings, checkpoint, model_class, pool = CASES[name]
    path = folder(checkpoint)
    tower = settings(checkpoint=path, length_groups=3).build().eval()
    tokenizer: Any
    tokenizer, model = AutoTokenizer.from_pretrained(path), model_class.from_pretrained(path)
    texts, languages = tiny.TEXTS * 3, tiny.LANGUAGES * 3
    together = encode(tower, texts, languages)
    assert tower.width == together.shape[1]
    for row, text, language in zip(together, texts, languages, strict=True):
        expected = pool(library_states(model, tokenizer, text, language))
        torch.testing.assert_close(row, expected, atol=1e-5, rtol=0)
    order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(0)).tolist()
    turned = encode(tower, [texts[row] for row in order], [languages[row] for row in order])
    torch.testing.assert_close(turned, together[order], atol=1e-5, rtol=0)


def test_sonar_marks_each_text_with_its_own_language(folder: Any) -> None:
    tower = Sonar(checkpoint=folder(tiny.sonar)).build().eval()
    ids = tower.tokenise(["A siren", "A siren", "A siren"], ["eng", "deu", "eng"])
    assert ids[0] == ids[2]
    assert ids[0][0] != ids[1][0]
    assert ids[0][1:] == ids[1][1:]
    assert tower.tokenizer.convert_ids_to_tokens(ids[1][0]) == "deu_Latn"


def test_sonar_marks_each_text_with_its_own_language_in_any_thread(folder: Any) -> None:
    """As in a server, which encodes labels of one language while it encodes a text of another."""
    tower = Sonar(checkpoint=folder(tiny.sonar)).build()
    texts, languages = tiny.TEXTS * 20, ("deu", "eng")
    expected = {code: tower.tokenise(texts, [code] * len(texts)) for code in languages}

    def is_right(code: str) -> bool:
        return all(tower.tokenise(texts, [code] * len(texts)) == expected[code] for _ in range(20))

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(is_right, languages * 2))


def test_length_groups_change_neither_values_nor_gradients(folder: Any) -> None:
    results = []
    for num_groups in (1, 3):
        tower = Sonar(checkpoint=folder(tiny.sonar), length_groups=num_groups, dropout=0.0).build()
        tokens = pad_tokens(tower.tokenise(tiny.TEXTS * 3, tiny.LANGUAGES * 3), tower.pad_token_id)
        encoded = tower(*tokens)
        weights = torch.arange(encoded.pooled.numel()).view_as(encoded.pooled) / encoded.pooled.numel()
        (encoded.pooled * weights).sum().backward()
        gradients = {name: parameter.grad for name, parameter in tower.named_parameters()}
        results.append((encoded.pooled, encoded.tokens[tokens[1]], gradients))
    torch.testing.assert_close(results[0], results[1], atol=1e-5, rtol=1e-4)


def test_length_groups_are_sorted_and_hold_every_row_once() -> None:
    lengths = torch.tensor([5, 3, 9, 2, 2, 7, 4, 4, 8, 1, 6, 3, 5, 5, 9, 2, 30])
    groups = length_groups(lengths, 2)
    assert sorted(torch.cat([rows for rows, _ in groups]).tolist()) == list(range(17))
    assert [longest for _, longest in groups] == [5, 30]
    assert len(length_groups(lengths, 50)) == 2
    assert len(length_groups(lengths, 50, least_tokens=52)) == 2
    assert len(length_groups(lengths, 50, least_tokens=53)) == 1


def test_every_trained_weight_of_every_text_tower_gets_a_gradient(folder: Any) -> None:
    for name, (settings, checkpoint, _, _) in CASES.items():
        tower = settings(checkpoint=folder(checkpoint)).build().train()
        tower(*pad_tokens(tower.tokenise(tiny.TEXTS, tiny.LANGUAGES), tower.pad_token_id)).pooled.sum().backward()
        without = [label for label, weight in tower.named_parameters() if weight.requires_grad and weight.grad is None]
        assert not without, name


def test_heads_of_the_pre_training_are_left_out(folder: Any) -> None:
    tower = Bert(checkpoint=folder(tiny.bert, with_heads=True)).build()
    assert not [name for name, _ in tower.named_parameters() if "pooler" in name or "cls" in name]


def test_longer_texts_are_cut_and_keep_their_last_special_token(folder: Any) -> None:
    tower = Bert(checkpoint=folder(tiny.bert), max_tokens=6).build()
    ids = tower.tokenise([tiny.TEXTS[1]], ["eng"])[0]
    assert len(ids) == 6
    assert ids[-1] == tower.tokenizer.sep_token_id


@pytest.mark.parametrize("kind", ["bert", "roberta", "mpnet", "camembert", "clap_text_model"])
def test_a_text_is_no_longer_than_the_model_has_positions(kind: str, folder: Any) -> None:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    made: Any = CONFIG_MAPPING[kind]
    config = made(vocab_size=1_000, max_position_embeddings=22, pad_token_id=1, **sizes)
    tokenizer = AutoTokenizer.from_pretrained(folder(tiny.xlm_roberta))
    tower = TransformersTextTower(TransformersText(), text_encoder(config, "mean")[0](config).eval(), tokenizer)
    assert tower.max_tokens == (22 if kind == "bert" else 20)
    assert encode(tower, ["a dog " * 30], ["eng"]).shape == (1, 8)


def noise(num_samples: int, seed: int) -> np.ndarray:
    return np.random.RandomState(seed).uniform(-0.5, 0.5, num_samples).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("num_samples", [3_000, 7_000, 16_000])
def test_htsat_is_the_librarys_own(whole: bool, num_samples: int, folder: Any) -> None:
    tower = Htsat(checkpoint=folder(tiny.clap, whole=whole)).build().eval()
    path = folder(tiny.clap, whole=True)
    waveform = noise(num_samples, seed=1)
    inputs = ClapFeatureExtractor.from_pretrained(path)(waveform, sampling_rate=8_000, return_tensors="pt")
    frames = log_mel(fit(waveform, tower.front_end), tower.front_end)
    np.testing.assert_allclose(frames, inputs["input_features"][0, 0], atol=1e-3)
    with torch.inference_mode():
        expected = ClapModel.from_pretrained(path).eval().audio_model(**inputs).pooler_output
        actual = tower(torch.from_numpy(frames)[None], torch.tensor([len(frames)])).pooled
    assert actual.shape == (1, tower.width)
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("num_samples", [500, 7_000, 20_000])
def test_ast_is_the_librarys_own(num_samples: int, folder: Any) -> None:
    from transformers import ASTFeatureExtractor

    path = folder(tiny.ast)
    tower = Ast(checkpoint=path).build().eval()
    waveform = noise(num_samples, seed=2)
    inputs = ASTFeatureExtractor.from_pretrained(path)(waveform, sampling_rate=16_000, return_tensors="pt")
    frames = log_mel(fit(waveform, tower.front_end), tower.front_end)
    np.testing.assert_allclose(frames, inputs["input_values"][0], atol=1e-4)
    with torch.inference_mode():
        expected = ASTModel.from_pretrained(path).eval()(**inputs).pooler_output
        actual = tower(torch.from_numpy(frames)[None], torch.tensor([len(frames)])).pooled
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)


def test_a_waveform_model_is_the_librarys_own_in_a_ragged_batch(folder: Any) -> None:
    path = folder(tiny.wav2vec2)
    tower = TransformersAudio(checkpoint=path).build().eval()
    extractor, model = Wav2Vec2FeatureExtractor.from_pretrained(path), Wav2Vec2Model.from_pretrained(path).eval()
    waveforms = [noise(length, seed) * (seed + 1) for seed, length in enumerate([4_000, 9_000, 4_000, 6_000])]
    batch = torch.full((4, 9_000, 1), 7.0)
    for row, waveform in zip(batch, waveforms, strict=True):
        row[: len(waveform)] = torch.from_numpy(log_mel(waveform, tower.front_end))
    with torch.inference_mode():
        actual = tower(batch, torch.tensor([4_000, 9_000, 4_000, 6_000]))
        for row, mask, waveform in zip(actual.pooled, actual.token_mask, waveforms, strict=True):
            inputs = extractor(waveform, sampling_rate=16_000, return_tensors="pt")["input_values"]
            expected = model(inputs).last_hidden_state[0]
            assert int(mask.sum()) == len(expected)
            torch.testing.assert_close(row, expected.mean(dim=0), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("model", tiny.WAVEFORM_MODELS)
def test_a_waveform_model_drops_no_layer_and_masks_nothing_by_itself(model: str, folder: Any) -> None:
    tower = TransformersAudio(checkpoint=folder(tiny.wav2vec2, model=model), dropout=0.0).build()
    clips, frames = torch.from_numpy(noise(16_000, 0))[None, :, None], torch.tensor([16_000])
    with torch.inference_mode():
        expected = tower.eval()(clips, frames).pooled
        for _ in range(3):
            torch.testing.assert_close(tower.train()(clips, frames).pooled, expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("kind", ["clap", "ast", "wav2vec2"])
def test_every_trained_weight_of_every_audio_tower_gets_a_gradient(kind: str, folder: Any) -> None:
    settings = {"clap": Htsat, "ast": Ast, "wav2vec2": TransformersAudio}[kind]
    tower = settings(checkpoint=folder(getattr(tiny, kind))).build().train()
    frames = torch.from_numpy(log_mel(fit(noise(8_000, 0), tower.front_end), tower.front_end))
    tower(frames[None].repeat(2, 1, 1), torch.tensor([len(frames)] * 2)).pooled.square().sum().backward()
    without = [label for label, weight in tower.named_parameters() if weight.requires_grad and weight.grad is None]
    assert not without
