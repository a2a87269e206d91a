"""ML-CLAP's own `.pt` is read as a retriever: a file in the published layout embeds as its two towers and layers do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoTokenizer
from transformers.models.m2m_100.modeling_m2m_100 import M2M100Encoder

import tests.support.tiny_checkpoints as tiny_checkpoints
from ray_atr.cli.commands import _run as run_command
from ray_atr.common.override import override
from ray_atr.models.ced import Ced
from ray_atr.models.ml_clap import NOT_NEEDED, sonar_config, sonar_tensors
from ray_atr.models.outline import outline_of
from ray_atr.models.retriever import Retriever
from ray_atr.models.tower import masked_mean
from ray_atr.models.transformers import Sonar, read_plain_words
from ray_atr.models.weights import load_weights
from ray_atr.training.experiment import Experiment
from ray_atr.training.run_folder import saved_retriever
from tests.support.tiny import make_data, prepared_for

WIDTH = 24
PIECES = {"self_attn.out_proj": "self_attn.output_proj", "fc1": "ffn.inner_proj", "fc2": "ffn.output_proj",
          "final_layer_norm": "ffn_layer_norm"}  # fmt: skip
"""Of a layer: the names of transformers, and those of fairseq2."""


class Made(NamedTuple):
    """The modules, and the folder with their weights as ML-CLAP's code saves them."""

    folder: Path
    ced: nn.Module
    sonar: M2M100Encoder
    audio_proj: nn.Module
    text_proj: nn.Module


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    root = tmp_path_factory.mktemp("published")
    sonar_folder = tiny_checkpoints.sonar(root / "sonar")
    # Two heads of SONAR's width: their number is not in a file of weights.
    config = M2M100Encoder.config_class.from_pretrained(sonar_folder)
    config.d_model, config.encoder_attention_heads = 128, 2
    config.max_position_embeddings = 1024
    torch.manual_seed(3)
    sonar = M2M100Encoder(config).eval()
    ced = Ced(size="tiny", num_blocks=2, chunk_frames=64).build().eval()
    for module in (sonar, ced):
        for value in module.state_dict().values():
            if value.is_floating_point():
                # No bias is zero and no scale is one, so that none can take another's place.
                value.add_(0.1 * torch.rand_like(value))
    audio_proj, text_proj = (
        nn.Sequential(nn.Linear(width, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)) for width in (192, 128)
    )
    folder = root / "ml_clap"
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(sonar_folder / name, folder)
    stored = {f"audio_encoder.model.{name}": value for name, value in ced.state_dict().items()}
    stored["audio_encoder.model.front_end.0.spectrogram.window"] = torch.rand(512)
    stored["audio_encoder.model.outputlayer.1.weight"] = torch.rand(527, 192)
    stored |= {f"text_encoder.model.{name}": value for name, value in as_fairseq2(sonar.state_dict()).items()}
    for name, module in (("audio_proj", audio_proj), ("text_proj", text_proj)):
        stored |= {f"{name}.{place}": value for place, value in module.state_dict().items()}
    stored["temperature"] = torch.tensor(0.05)
    torch.save(stored, folder / "pretrain.pt")
    return Made(folder, ced, sonar, audio_proj, text_proj)


def as_fairseq2(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """M2M100's encoder as fairseq2 names its parts; padding and the unknown token come first in its table."""
    stored = {}
    for name, value in state.items():
        new = name
        for ours, theirs in PIECES.items():
            new = new.replace(f".{ours}.", f".{theirs}.")
        stored[f"encoder.{new}" if new.startswith("layers.") else new] = value
    table = stored.pop("embed_tokens.weight")
    begin, pad, end, unknown = table[:4]
    stored["encoder_frontend.embed.weight"] = torch.cat([torch.stack([pad, unknown, begin, end]), table[4:]])
    return stored


def expected_text(made: Made, text: str, tag: str) -> Tensor:
    tokenizer = AutoTokenizer.from_pretrained(made.folder, tokenizer_type="nllb")
    tokenizer.src_lang = tag
    words = tokenizer(text, return_tensors="pt")
    hidden = made.sonar(words["input_ids"], attention_mask=words["attention_mask"]).last_hidden_state
    return nn.functional.normalize(made.text_proj(hidden[0].mean(dim=0)), dim=-1)


@torch.inference_mode()
def test_it_embeds_as_its_towers_and_layers(made: Made) -> None:
    retriever = Retriever.from_pretrained(saved_retriever(made.folder / "pretrain.pt", "--checkpoint"))
    said = {"A dog, barks: twice!": "a dog barks twice", "Rain falls.": "rain falls"}
    found = retriever.encode_text(list(said), ["eng", "deu"])
    expected = [
        expected_text(made, text, tag) for text, tag in zip(said.values(), ("eng_Latn", "deu_Latn"), strict=True)
    ]
    torch.testing.assert_close(found, torch.stack(expected), atol=1e-6, rtol=0)
    frames = torch.randn(2, 150, 64, generator=torch.Generator().manual_seed(0))
    pooled = made.ced(frames, torch.full((2,), 150)).pooled
    embedded = retriever.embed_audio(frames, torch.full((2,), 150))
    torch.testing.assert_close(embedded, nn.functional.normalize(made.audio_proj(pooled), dim=-1), atol=1e-6, rtol=0)
    assert retriever.settings.initial_temperature == pytest.approx(0.05)
    # The random clips are not all in one place, where every model would agree.
    assert float(embedded[0] @ embedded[1]) < 1 - 1e-4
    assert float(found[0] @ found[1]) < 1 - 1e-4


@torch.inference_mode()
def test_fairseq2s_own_encoder_embeds_the_same(tmp_path: Path) -> None:
    """A random SONAR of sonar-space 0.2.1 on fairseq2 0.2.1, two texts of its token ids, and what it made of them."""
    stored = load_file(Path(__file__).parent / "sonar_of_fairseq2.safetensors")
    theirs, expected = stored.pop("token_ids"), stored.pop("sentence_embeddings")
    torch.save(stored, tmp_path / "x.pt")
    model = M2M100Encoder(sonar_config(tmp_path / "x.pt", "here")).eval()
    load_weights(model, sonar_tensors(stored), source="x.pt", skip=NOT_NEEDED)
    # There padding is 0, unknown 1, begin 2, end 3; here begin 0, padding 1, end 2, unknown 3.
    ids = torch.where(theirs < 4, torch.tensor([1, 3, 0, 2])[theirs.clamp(max=3)], theirs)
    mask = theirs != 0
    hidden = model(ids, attention_mask=mask.long()).last_hidden_state
    torch.testing.assert_close(masked_mean(hidden, mask), expected, atol=2e-6, rtol=0)


def test_it_reads_words_the_same_once_saved(made: Made, tmp_path: Path) -> None:
    retriever = Retriever.from_pretrained(made.folder)
    retriever.save_pretrained(tmp_path / "saved")
    again = Retriever.from_pretrained(tmp_path / "saved")
    for one in (retriever, again):
        shouted, said = one.encode_text(["A DOG: barks...", "a dog barks"], "eng")
        assert torch.equal(shouted, said)
    assert torch.equal(again.encode_text(["rain"], "deu"), retriever.encode_text(["rain"], "deu"))


def test_one_command_evaluates_it(made: Made, tmp_path: Path) -> None:
    data = str(make_data(tmp_path / "tones", num_train=4, num_val=4, languages=1))
    words = ["evaluate", "--checkpoint", str(made.folder), "--data", data, "--out", str(tmp_path / "out")]
    run_command([*words, "--ray", "never", "--no-mlflow", "--no-figures", "--draws", "5"])
    found = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert "text_to_audio/eng/recall_at_1" in found["metrics"]
    assert "classification/eng/accuracy" in found["metrics"]


def test_training_starts_from_it(made: Made, tmp_path: Path) -> None:
    settings = {
        "data.source": str(make_data(tmp_path / "tones", num_train=8, languages=1)),
        "data.languages": "eng",
        "model.audio": "ced",
        "model.audio.size": "tiny",
        "model.audio.num_blocks": 2,
        "model.audio.chunk_frames": 64,
        "model.audio.checkpoint": str(made.folder / "pretrain.pt"),
        "model.text": "sonar",
        "model.text.checkpoint": str(made.folder),
        "model.text.plain_words": True,
        "model.projection": "mlp",
        "model.embedding_width": WIDTH,
        "train.batch_size": 8,
        "train.start_from": str(made.folder),
    }
    experiment = override(Experiment(), settings)
    first = prepared_for(experiment, tmp_path).first_retriever(experiment).state_dict()
    published = Retriever.from_pretrained(made.folder).state_dict()
    assert all(torch.equal(first[name], value) for name, value in published.items() if not name.startswith("learned."))


def test_what_is_missing_is_named(made: Made, tmp_path: Path) -> None:
    file = Path(shutil.copy(made.folder / "pretrain.pt", tmp_path))
    with pytest.raises(ValueError, match=r"allowed a folder with NLLB's tokeniser beside the \.pt"):
        Retriever.from_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(made.folder / name, tmp_path)
    weights = torch.load(file, weights_only=True)
    for name, says in (
        ("text_encoder.model.encoder.layers.1.ffn.inner_proj.weight", r"missing layers\.1\.fc1\.weight"),
        ("audio_encoder.model.blocks.1.attn.qkv.weight", r"missing blocks\.1\.attn\.qkv\.weight"),
        ("audio_proj.2.weight", r"it lacks audio_proj\.2\.weight"),
        ("temperature", r"it lacks temperature"),
    ):
        torch.save({key: value for key, value in weights.items() if key != name}, file)
        with pytest.raises(ValueError, match=says):
            Retriever.from_pretrained(tmp_path)


def test_the_layers_of_its_text_tower_are_known_without_its_weights(made: Made) -> None:
    settings = Sonar(checkpoint=str(made.folder))
    tower = outline_of(settings)
    assert tower is not None
    shapes = {name: parameter.shape for name, parameter in settings.build().named_parameters()}
    assert {name: parameter.shape for name, parameter in tower.named_parameters()} == shapes
    assert all(parameter.is_meta for parameter in tower.parameters())


def test_plain_words_need_a_tokeniser_of_the_library(made: Made) -> None:
    tower = Sonar(checkpoint=str(made.folder)).build()
    assert tower.tokenise(["A dog."], ["eng"]) != tower.tokenise(["a dog"], ["eng"])
    plain = Sonar(checkpoint=str(made.folder), plain_words=True).build()
    assert plain.tokenise(["A  dog，(barks)."], ["eng"]) == tower.tokenise(["a dog barks"], ["eng"])
    # A saved tokeniser that has the steps does not get them once more.
    normaliser = str(plain.tokenizer.backend_tokenizer.normalizer)
    read_plain_words(plain.tokenizer)
    assert str(plain.tokenizer.backend_tokenizer.normalizer) == normaliser
