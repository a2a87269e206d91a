"""LAION-CLAP's own `.pt` is read as a retriever: a file in the published layout embeds as transformers' ClapModel does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import ClapConfig, ClapFeatureExtractor, ClapModel, PreTrainedTokenizerFast

from ray_atr.cli.commands import _run as run_command
from ray_atr.common.override import override
from ray_atr.models import weights
from ray_atr.models.outline import outline_of
from ray_atr.models.retriever import Retriever
from ray_atr.models.transformers import Htsat, TransformersText
from ray_atr.training.experiment import Experiment
from ray_atr.training.run_folder import saved_retriever
from tests.support import tiny_checkpoints
from tests.support.spies import spied
from tests.support.tiny import make_data, prepared_for

TEXTS = ["a dog barks twice", "rain falls", "a tone"]


class Folders(NamedTuple):
    """One model twice."""

    clap: Path
    """as transformers writes it"""
    laion: Path
    """as LAION does"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    root = tmp_path_factory.mktemp("published")
    clap = tiny_checkpoints.clap(root / "clap")
    config = ClapConfig.from_pretrained(clap)
    # A shifted block, whose mask is stored; heads of RoBERTa's width, and the constant that LAION computes with.
    config.audio_config.depths = [2, 1]
    config.text_config.hidden_size, config.text_config.num_attention_heads = 128, 2
    config.text_config.layer_norm_eps = 1e-5
    torch.manual_seed(1)
    model = ClapModel(config).eval()
    for value in model.state_dict().values():
        if value.is_floating_point():
            # No bias is zero, so that none can take another's place.
            value.add_(0.1 * torch.rand_like(value))
    model.save_pretrained(clap)
    tiny_checkpoints.roberta_words(clap)
    laion = root / "laion"
    laion.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "preprocessor_config.json"):
        shutil.copy(clap / name, laion)
    content = {
        "epoch": 1,
        "name": "tiny",
        "state_dict": {f"module.{name}": value for name, value in as_laion(model.state_dict()).items()},
        "optimizer": {"state": {0: {"step": 3}}, "param_groups": [{"lr": 1e-4, "params": [0]}]},
    }
    torch.save(content, laion / "630k-tiny.pt")
    return Folders(clap, laion)


def as_laion(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights of the model above under the names of LAION's modules, with what else its files hold."""
    stored: dict[str, Tensor] = {}
    for place in ("layers.0.blocks.0", "layers.0.blocks.1", "layers.1.blocks.0"):
        theirs, ours = f"audio_branch.{place}", f"audio_model.audio_encoder.{place}"
        own = f"{ours}.attention.self"
        for what in ("weight", "bias"):
            parts = [state[f"{own}.query.{what}"], state[f"{own}.key.{what}"], state[f"{own}.value.{what}"]]
            stored[f"{theirs}.attn.qkv.{what}"] = torch.cat(parts)
            stored[f"{theirs}.attn.proj.{what}"] = state[f"{ours}.attention.output.dense.{what}"]
            stored[f"{theirs}.norm1.{what}"] = state[f"{ours}.layernorm_before.{what}"]
            stored[f"{theirs}.norm2.{what}"] = state[f"{ours}.layernorm_after.{what}"]
            stored[f"{theirs}.mlp.fc1.{what}"] = state[f"{ours}.intermediate.dense.{what}"]
            stored[f"{theirs}.mlp.fc2.{what}"] = state[f"{ours}.output.dense.{what}"]
        stored[f"{theirs}.attn.relative_position_bias_table"] = state[f"{own}.relative_position_bias_table"]
        stored[f"{theirs}.attn.relative_position_index"] = state[f"{own}.relative_position_index"]
    encoder = "audio_model.audio_encoder"
    for name in ("patch_embed.proj", "patch_embed.norm", "norm", "layers.0.downsample.norm"):
        stored[f"audio_branch.{name}.weight"] = state[f"{encoder}.{name}.weight"]
        stored[f"audio_branch.{name}.bias"] = state[f"{encoder}.{name}.bias"]
    stored["audio_branch.layers.0.downsample.reduction.weight"] = state[
        f"{encoder}.layers.0.downsample.reduction.weight"
    ]
    for what in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
        stored[f"audio_branch.bn0.{what}"] = state[f"{encoder}.batch_norm.{what}"]
    for kind in ("audio", "text"):
        for what in ("weight", "bias"):
            stored[f"{kind}_projection.0.{what}"] = state[f"{kind}_projection.linear1.{what}"]
            stored[f"{kind}_projection.2.{what}"] = state[f"{kind}_projection.linear2.{what}"]
            stored[f"{kind}_transform.sequential.0.{what}"] = torch.rand(16, 16)
            stored[f"{kind}_transform.sequential.3.{what}"] = torch.rand(16, 16)
    for name, value in state.items():
        if name.startswith("text_model.") and "token_type_ids" not in name:
            stored[name.replace("text_model", "text_branch")] = value
    stored["logit_scale_a"], stored["logit_scale_t"] = state["logit_scale_a"], state["logit_scale_t"]
    # 16 by 16 patches in windows of 4 by 4.
    stored["audio_branch.layers.0.blocks.1.attn_mask"] = torch.zeros(16, 16, 16)
    stored["audio_branch.spectrogram_extractor.stft.conv_real.weight"] = torch.rand(3, 1, 4)
    stored["audio_branch.logmel_extractor.melW"] = torch.rand(3, 16)
    stored["audio_branch.tscam_conv.weight"] = torch.rand(5, 32, 2, 3)
    stored["audio_branch.head.weight"] = torch.rand(5, 5)
    return stored


@torch.inference_mode()
def test_it_embeds_as_transformers_clap_model(folders: Folders) -> None:
    retriever = Retriever.from_pretrained(saved_retriever(folders.laion / "630k-tiny.pt", "--checkpoint"))
    waveforms = [np.random.RandomState(seed).uniform(-0.5, 0.5, 16_000).astype(np.float32) for seed in range(3)]
    extractor = ClapFeatureExtractor.from_pretrained(folders.clap)
    features = extractor(waveforms, sampling_rate=8_000, return_tensors="pt")
    words = PreTrainedTokenizerFast.from_pretrained(folders.clap)(TEXTS, padding=True, return_tensors="pt")
    words.pop("token_type_ids", None)
    expected = ClapModel.from_pretrained(folders.clap).eval()(**words, **features)
    exact = {"atol": 1e-6, "rtol": 0}
    torch.testing.assert_close(retriever.encode_text(TEXTS, ["eng"] * 3), expected.text_embeds, **exact)
    frames = features["input_features"][:, 0]
    pooled = retriever.audio_tower(frames, torch.full((3,), frames.shape[1])).pooled
    embedded = torch.nn.functional.normalize(retriever.audio_projection(pooled), dim=-1)
    torch.testing.assert_close(embedded, expected.audio_embeds, **exact)
    # The random texts and clips are not all in one place, where every model would agree.
    assert float((expected.text_embeds @ expected.text_embeds.T).min()) < 1 - 1e-4
    assert float((expected.audio_embeds @ expected.audio_embeds.T).min()) < 1 - 1e-4
    other = Retriever.from_pretrained(folders.clap).encode_audio(waveforms, 8_000)
    torch.testing.assert_close(retriever.encode_audio(waveforms, 8_000), other, **exact)


def test_the_layers_of_its_towers_are_known_without_its_weights(folders: Folders) -> None:
    for settings in (Htsat(checkpoint=str(folders.laion)), TransformersText(checkpoint=str(folders.laion))):
        tower = outline_of(settings)
        assert tower is not None
        shapes = {name: parameter.shape for name, parameter in settings.build().named_parameters()}
        assert {name: parameter.shape for name, parameter in tower.named_parameters()} == shapes
        assert all(parameter.is_meta for parameter in tower.parameters())


def test_its_values_are_read_once(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bool] = []

    def note(_: object, file: Path, path: str, *, is_mapped: bool = False) -> None:
        read.append(is_mapped)

    spied(monkeypatch, weights, "read_checkpoint", note)
    weights._mapped.cache_clear()
    Retriever.from_pretrained(folders.laion)
    assert sorted(read) == [False, True]


def test_without_a_preprocessor_config_it_hears_through_laions_front_end(folders: Folders, tmp_path: Path) -> None:
    shutil.copy(folders.laion / "630k-tiny.pt", tmp_path)
    end = Htsat(checkpoint=str(tmp_path)).front_end
    assert (end.sample_rate, end.window_size, end.hop_size, end.clip_seconds) == (48_000, 1024, 480, 10.0)
    assert (end.low_hz, end.high_hz, end.mel_scale, end.mel_norm, end.pad) == (50, 14_000, "slaney", "slaney", "repeat")


def test_one_command_evaluates_either(folders: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = str(make_data(tmp_path / "tones", num_train=4, num_val=4, languages=1))
    found = {}
    for name, folder in folders._asdict().items():
        words = ["evaluate", "--checkpoint", str(folder), "--data", data, "--out", str(tmp_path / name)]
        run_command([*words, "--ray", "never", "--no-mlflow", "--no-figures", "--draws", "5"])
        found[name] = json.loads((tmp_path / name / "evaluation.json").read_text())
        assert found[name]["facts"]["trained on"] == "not known: the folder is in no run"
    assert "classification/eng/accuracy" in found["laion"]["metrics"]
    assert found["laion"]["metrics"] == found["clap"]["metrics"]
    assert "Text to audio" in capsys.readouterr().out


def test_training_starts_from_it(folders: Folders, tmp_path: Path) -> None:
    folder = str(folders.laion)
    settings = {
        "data.source": str(make_data(tmp_path / "tones", num_train=8, languages=1)),
        "data.languages": "eng",
        "model.audio": "htsat",
        "model.audio.checkpoint": folder,
        "model.text": "transformers",
        "model.text.checkpoint": folder,
        "model.text.pooling": "pooler",
        "model.projection": "mlp",
        "model.embedding_width": 16,
        "train.batch_size": 8,
        "train.start_from": folder,
    }
    experiment = override(Experiment(), settings)
    first = prepared_for(experiment, tmp_path).first_retriever(experiment).state_dict()
    published = Retriever.from_pretrained(folders.clap).state_dict()
    assert all(torch.equal(first[name], value) for name, value in published.items() if not name.startswith("learned."))


def test_what_is_missing_or_another_model_is_named(folders: Folders, tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    file = Path(shutil.copy(folders.laion / "630k-tiny.pt", tmp_path / "alone"))
    with pytest.raises(ValueError, match=r"RoBERTa's tokeniser beside the \.pt \(tokenizer\.json, or vocab\.json and"):
        Retriever.from_pretrained(saved_retriever(file, "--checkpoint"))
    shutil.copy(file, tmp_path / "alone" / "another.pt")
    with pytest.raises(ValueError, match=r"--checkpoint: got .*630k-tiny\.pt'; allowed LAION-CLAP's \.pt alone in a"):
        saved_retriever(file, "--checkpoint")
    with pytest.raises(ValueError, match=r"--checkpoint: got .*or LAION-CLAP's \.pt, with RoBERTa's tokeniser"):
        saved_retriever(file.parent, "--checkpoint")
    weights = torch.load(file, weights_only=True)["state_dict"]
    for name, change, says in (
        ("module.audio_branch.patch_embed.proj.weight", None, r"it lacks audio_branch\.patch_embed\.proj\.weight"),
        ("module.text_branch.embeddings.token_type_embeddings.weight", torch.zeros(2, 128), "text tower is BERT"),
        ("module.audio_branch.norm.weight", None, r"missing audio_model\.audio_encoder\.norm\.weight"),
    ):
        (tmp_path / says[:8]).mkdir()
        kept = {key: value for key, value in weights.items() if key != name}
        changed = kept if change is None else {**kept, name: change}
        torch.save({"state_dict": changed}, tmp_path / says[:8] / "x.pt")
        with pytest.raises(ValueError, match=says):
            Retriever.from_pretrained(tmp_path / says[:8])
