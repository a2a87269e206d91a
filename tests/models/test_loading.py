"""Checkpoints: the published layouts are read; a wrong, broken or hostile file is refused, and never run."""

from __future__ import annotations

import logging
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load, save_file

from ray_atr.models.audio import Ast, Ced, Htsat, ResNet38, TransformersAudio
from ray_atr.models.text import Bert, Labse, Sonar, TransformersText, XlmRoberta
from ray_atr.models.tower import tower_fingerprint
from ray_atr.models.weights import (
    find_weights,
    identity_of_checkpoint,
    load_weights,
    read_checkpoint,
    require_checkpoint,
)
from tests.support import tiny_checkpoints as tiny

TINY_CED = {"size": "tiny", "num_blocks": 1, "chunk_frames": 64}
TINY_RESNET = {"width_divisor": 16}


def state(tower: torch.nn.Module) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {
        name: torch.randn(value.shape, generator=generator) if value.is_floating_point() else value
        for name, value in tower.state_dict().items()
    }


def published_ced() -> dict[str, torch.Tensor]:
    """A tiny CED's weights with everything else that the published file carries."""
    return {
        **state(Ced(**TINY_CED).build()),
        "front_end.0.spectrogram.window": torch.ones(512),
        "front_end.0.mel_scale.fb": torch.ones(257, 64),
        "outputlayer.0.weight": torch.ones(192),
        "outputlayer.1.weight": torch.ones(527, 192),
    }


def published_resnet38() -> dict[str, Any]:
    """A tiny ResNet38 in the layout of the published file: with its iteration and its sampler's NumPy arrays."""
    tower = ResNet38(**TINY_RESNET, output="fc1").build()
    front_end = {
        "spectrogram_extractor.stft.conv_real.weight": torch.ones(513, 1, 1024),
        "spectrogram_extractor.stft.conv_imag.weight": torch.ones(513, 1, 1024),
        "logmel_extractor.melW": torch.ones(513, 64),
    }
    sampler = {"indexes_per_class": [np.arange(3), np.arange(5)], "queue": [1, 2], "pointers_of_classes": [np.int64(0)]}
    weights = {**front_end, **state(tower), "fc_audioset.weight": torch.ones(527, 128)}
    return {"iteration": 600_000, "model": weights, "sampler": sampler}


def test_ced_reads_the_published_file_and_its_safetensors(tmp_path: Path) -> None:
    weights = published_ced()
    torch.save(weights, tmp_path / "ced.pt")
    torch.save({"model": weights}, tmp_path / "wrapped.pt")
    save_file(weights, tmp_path / "ced.safetensors")
    renamed = {
        (name if name.startswith("outputlayer") else "encoder." + name.replace("init_bn.1.", "init_bn.")): value
        for name, value in weights.items()
        if not name.startswith("front_end")
    }
    (tmp_path / "hub").mkdir()
    save_file(renamed, tmp_path / "hub/model.safetensors")
    prints = set()
    for file in ("ced.pt", "wrapped.pt", "ced.safetensors", "hub"):
        tower = Ced(**TINY_CED, checkpoint=str(tmp_path / file)).build()
        assert torch.equal(tower.blocks[0].attn.qkv.weight, weights["blocks.0.attn.qkv.weight"])
        assert torch.equal(tower.init_bn[1].running_mean, weights["init_bn.1.running_mean"])
        prints.add(tower_fingerprint(tower))
    assert len(prints) == 1


@pytest.mark.parametrize("is_old_format", [False, True])
def test_resnet38_reads_the_published_layout(is_old_format: bool, tmp_path: Path) -> None:
    content = published_resnet38()
    torch.save(content, tmp_path / "ResNet38.pth", _use_new_zipfile_serialization=not is_old_format)
    tower = ResNet38(**TINY_RESNET, checkpoint=str(tmp_path / "ResNet38.pth")).build()
    assert torch.equal(tower.conv_block1.conv1.weight, content["model"]["conv_block1.conv1.weight"])
    assert tower.fc1 is None
    tower = ResNet38(**TINY_RESNET, output="fc1", checkpoint=str(tmp_path / "ResNet38.pth")).build()
    assert torch.equal(tower.fc1.weight, content["model"]["fc1.weight"])


def test_arrays_pickled_by_an_older_numpy_are_read(tmp_path: Path) -> None:
    content = published_resnet38()
    torch.save(content, tmp_path / "new.pth")
    with zipfile.ZipFile(tmp_path / "new.pth") as source, zipfile.ZipFile(tmp_path / "old.pth", "w") as target:
        for entry in source.namelist():
            data = source.read(entry)
            target.writestr(entry, data.replace(b"numpy._core", b"numpy.core") if entry.endswith("data.pkl") else data)
    assert set(read_checkpoint(tmp_path / "old.pth")) == set(content["model"])


def test_the_prefix_of_a_parallel_wrapper_is_taken_off(tmp_path: Path) -> None:
    torch.save({"state_dict": {"module.a": torch.ones(1), "module.b": torch.ones(1)}}, tmp_path / "x.pt")
    assert set(read_checkpoint(tmp_path / "x.pt")) == {"a", "b"}


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("ran"),))


@pytest.mark.parametrize("where", ["whole", "inside", "plain pickle"])
def test_a_pickle_that_would_run_code_is_refused_and_not_run(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    content = {"model": {"a": torch.ones(1), "b": Hostile()}} if where == "inside" else Hostile()
    if where == "plain pickle":
        (tmp_path / "evil.pt").write_bytes(pickle.dumps(content, protocol=2))
    else:
        torch.save(content, tmp_path / "evil.pt")
    with pytest.raises(ValueError, match=r"evil\.pt.*run code.*not run"):
        Ced(**TINY_CED, checkpoint=str(tmp_path / "evil.pt")).build()
    assert not (tmp_path / "ran").exists()
    # The file is what the test takes it for: read without care, it does run its code.
    if where == "plain pickle":
        pickle.loads((tmp_path / "evil.pt").read_bytes())
    else:
        torch.load(tmp_path / "evil.pt", weights_only=False)
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["ced.pt", "ced.safetensors"])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_half_a_file_is_refused(name: str, share: float, tmp_path: Path) -> None:
    weights = published_ced()
    if name.endswith(".pt"):
        torch.save(weights, tmp_path / name)
    else:
        save_file(weights, tmp_path / name)
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ValueError, match=r"ced.*complete"):
        Ced(**TINY_CED, checkpoint=str(tmp_path / name)).build()


def test_the_wrong_architecture_is_refused_with_names(tmp_path: Path) -> None:
    torch.save(published_resnet38(), tmp_path / "resnet.pth")
    with pytest.raises(ValueError, match=r"another architecture \(0 names fit\): missing time_pos_embed"):
        Ced(**TINY_CED, checkpoint=str(tmp_path / "resnet.pth")).build()
    torch.save(published_ced(), tmp_path / "ced.pt")
    with pytest.raises(ValueError, match=r"shape of .* is \[192"):
        Ced(size="mini", num_blocks=1, chunk_frames=64, checkpoint=str(tmp_path / "ced.pt")).build()
    with pytest.raises(ValueError, match=r"missing blocks\.1\.attn"):
        Ced(size="tiny", num_blocks=2, chunk_frames=64, checkpoint=str(tmp_path / "ced.pt")).build()


def test_mismatches_stop_unless_they_are_named(caplog: pytest.LogCaptureFixture) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    before = module[0].weight.clone()
    tensors = {
        "0.weight": torch.ones(3, 2),
        "0.bias": torch.ones(4),
        "1.weight": torch.ones(1, 3),
        "head.bias": torch.ones(2),
    }
    with pytest.raises(
        ValueError, match=r"missing 1\.bias; unexpected head\.bias; shape of 0\.bias is \[4\], not \[3\]"
    ):
        load_weights(module, tensors, source="x")
    assert torch.equal(module[0].weight, before)
    with caplog.at_level(logging.INFO):
        report = load_weights(module, tensors, source="x", allowed=("1.bias", "head.*", "0.b*"))
    assert torch.equal(module[0].weight, torch.ones(3, 2))
    assert report.missing == ("1.bias",)
    assert report.unexpected == ("head.bias",)
    assert report.mis_shaped == {"0.bias": ((4,), (3,))}
    assert "missing 1.bias, as allow_mismatch permits" in caplog.text
    assert "x: 2 tensors loaded, 1 missing, 1 unexpected, 1 of another shape, 0 not needed" in caplog.text


@pytest.mark.parametrize("allowed", [None, ()])
def test_a_mismatch_is_not_to_be_named_in_a_setting_that_the_tower_lacks(allowed: tuple[str, ...] | None) -> None:
    with pytest.raises(ValueError, match="missing bias") as refused:
        load_weights(torch.nn.Linear(2, 3), {"weight": torch.ones(3, 2)}, source="x", allowed=allowed)
    assert ("allow_mismatch" in str(refused.value)) == (allowed is not None)


def test_a_checkpoint_that_is_nowhere_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"absent\.pt.*exists"):
        find_weights(str(tmp_path / "absent.pt"))
    with pytest.raises(ValueError, match=r"model\.safetensors or pytorch_model\.bin"):
        find_weights(str(tmp_path))
    torch.save({"a": 1}, tmp_path / "no_tensors.pt")
    with pytest.raises(ValueError, match="holds named tensors"):
        read_checkpoint(tmp_path / "no_tensors.pt")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="in the cache or within reach"):
        Ced(checkpoint="owner/absent").build()


def in_hub_cache(cache: Path, name: str, make: Callable[[Path], Any]) -> None:
    """What `make` writes into a folder, laid out as the hub's cache keeps a repository of that name."""
    repository = cache / f"models--{name.replace('/', '--')}"
    (repository / "blobs").mkdir(parents=True)
    snapshot = repository / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    make(repository / "blobs")
    for number, blob in enumerate(sorted((repository / "blobs").iterdir())):
        (snapshot / blob.name).symlink_to(blob.rename(blob.with_name(f"blob{number}")))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123abcd")


def test_hub_ids_are_read_from_the_cache_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_hub_cache(tmp_path, "owner/ced", lambda folder: save_file(published_ced(), folder / "model.safetensors"))
    in_hub_cache(tmp_path, "owner/bert", tiny.bert)
    hub, transformers = "huggingface_hub.constants", "transformers.utils.hub.constants"
    cache = {f"{hub}.HF_HUB_CACHE": str(tmp_path), f"{transformers}.HF_HUB_CACHE": str(tmp_path)}
    for name, value in {**cache, f"{hub}.HF_HUB_OFFLINE": True}.items():
        monkeypatch.setattr(name, value)
    tower = Ced(checkpoint="owner/ced", **TINY_CED).build()
    assert torch.equal(tower.norm.weight, published_ced()["norm.weight"])
    assert Bert(checkpoint="owner/bert").build().width == 32
    # Its identity is that of the blob, whatever the link to it is called.
    identity = identity_of_checkpoint("owner/ced")
    assert identity is not None
    assert [Path(file).name for file, _, _ in identity] == ["blob0"]
    assert identity_of_checkpoint("owner/absent") is None


TEXT = {"sonar": (Sonar, tiny.sonar), "bert": (Bert, tiny.bert), "xlm_roberta": (XlmRoberta, tiny.xlm_roberta)}


def test_a_missing_folder_that_no_hub_id_may_be_is_refused_as_a_path() -> None:
    for missing in ("my folder/weights", "owner/..name"):
        with pytest.raises(
            ValueError, match=r"^model.audio.checkpoint: got '.*'; allowed a file or folder that exists, or"
        ):
            require_checkpoint(missing, "model.audio.checkpoint")
        assert identity_of_checkpoint(missing) is None


@pytest.mark.parametrize("name", list(TEXT))
def test_a_missing_tokeniser_is_refused(name: str, tmp_path: Path) -> None:
    settings, make = TEXT[name]
    make(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match="a folder with its tokeniser"):
        settings(checkpoint=str(tmp_path)).build()


def test_a_broken_tokeniser_is_refused(tmp_path: Path) -> None:
    tiny.bert(tmp_path)
    text = (tmp_path / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(text[: len(text) // 2])
    with pytest.raises(ValueError, match="complete tokeniser"):
        Bert(checkpoint=str(tmp_path)).build()


def test_the_tokeniser_of_another_model_is_refused(tmp_path: Path) -> None:
    tiny.bert(tmp_path / "bert")
    tiny.sonar(tmp_path / "sonar")
    (tmp_path / "sonar/tokenizer.json").replace(tmp_path / "bert/tokenizer.json")
    (tmp_path / "sonar/tokenizer_config.json").replace(tmp_path / "bert/tokenizer_config.json")
    with pytest.raises(ValueError, match=r"the tokeniser of this model; it has \d+ tokens, the model's table \d+"):
        Bert(checkpoint=str(tmp_path / "bert")).build()


@pytest.mark.parametrize("name", list(TEXT))
def test_half_a_transformers_checkpoint_is_refused(name: str, tmp_path: Path) -> None:
    settings, make = TEXT[name]
    make(tmp_path)
    data = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(data[: len(data) // 2])
    with pytest.raises(ValueError, match="a complete checkpoint"):
        settings(checkpoint=str(tmp_path)).build()


def test_a_transformers_checkpoint_with_missing_or_other_weights_is_refused(tmp_path: Path) -> None:
    tiny.bert(tmp_path)
    # Bytes in memory: safetensors maps a file, and this one is written over below.
    weights = load((tmp_path / "model.safetensors").read_bytes())
    name = "encoder.layer.1.output.dense.weight"
    save_file(
        {key: value for key, value in weights.items() if key != name}, tmp_path / "model.safetensors", {"format": "pt"}
    )
    with pytest.raises(ValueError, match=f"missing {name}"):
        Labse(checkpoint=str(tmp_path)).build()
    Labse(checkpoint=str(tmp_path), allow_mismatch=("encoder.layer.1.*",)).build()
    save_file({**weights, name: torch.ones(3, 3)}, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=rf"shape of {name} is \[3, 3\], not \[32, 48\]"):
        Labse(checkpoint=str(tmp_path)).build()


def test_a_transformers_pickle_that_would_run_code_is_refused_and_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny.bert(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save({"a": Hostile()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="runs no code"):
        Bert(checkpoint=str(tmp_path)).build()
    assert not (tmp_path / "ran").exists()


def test_a_model_of_the_wrong_kind_is_refused(tmp_path: Path) -> None:
    tiny.ast(tmp_path / "ast")
    tiny.bert(tmp_path / "bert")
    with pytest.raises(ValueError, match=r"model\.text\.checkpoint"):
        TransformersText(checkpoint=str(tmp_path / "ast")).build()
    with pytest.raises(ValueError, match="preprocessor_config"):
        _ = TransformersAudio(checkpoint=str(tmp_path / "bert")).front_end
    with pytest.raises(ValueError, match=r"model\.audio\.checkpoint"):
        Htsat(checkpoint=str(tmp_path / "bert")).build()
    with pytest.raises(ValueError, match=r"config\.json"):
        Ast(checkpoint=str(tmp_path)).build()
    with pytest.raises(ValueError, match="a folder that exists"):
        Bert(checkpoint=str(tmp_path / "absent")).build()
