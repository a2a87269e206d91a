"""Frozen towers encode once, and training on their vectors is training on what they would compute."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from models import tiny_checkpoints
from tiny import make_data, tiny, tone

from ray_atr.data.cache import ensure_features
from ray_atr.data.caption_vectors import open_caption_vectors
from ray_atr.data.features import MANIFEST_FILE, open_features
from ray_atr.experiment import Experiment
from ray_atr.models.audio import Ced
from ray_atr.models.encoded import EncodedText
from ray_atr.models.retriever import Retriever, build_retriever
from ray_atr.training import encode_once
from ray_atr.training.checkpoint import load_checkpoint
from ray_atr.training.loop import BEST, LAST, train
from ray_atr.training.prepare import Prepared, prepare

FROZEN = {"model__audio__adapt__is_frozen": True, "model__text__adapt__is_frozen": True}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    make_data(folder / "tones", num_train=24)
    return folder


def prepared_for(experiment: Experiment, home: Path, said: list[str] | None = None) -> Prepared:
    return prepare(experiment, home, use_ray=False, say=(said if said is not None else []).append)


def not_encoded(prepared: Prepared, experiment: Experiment) -> Prepared:
    """The same inputs as log-mel frames and tokens, which the frozen towers encode at every step."""
    root = prepared.home / "data" / "features"
    features = ensure_features(prepared.data, experiment.model.audio.front_end, root, use_ray=False)
    return dataclasses.replace(prepared, features=features, is_audio_encoded=False, captions=None)


def run(experiment: Experiment, prepared: Prepared, folder: Path) -> list[dict[str, Any]]:
    reports: list[dict[str, Any]] = []
    train(experiment, prepared, folder, reports.append, use_ray_data=False)
    return reports


def refuse_to_work(*arguments: Any, **options: Any) -> None:
    raise AssertionError("encoded or decoded again")


ASK = {"objective__knowledge__prototypes": 4, "objective__knowledge__neighbours": 2}


@pytest.mark.parametrize(
    ("objective", "settings"),
    [
        ("kcl", {}),
        ("m_ltm", {}),
        ("ask", ASK),
        ("cacl", {"model__text__adapt__is_frozen": False}),
        ("cacl", {"model__audio__adapt__is_frozen": False}),
    ],
)
def test_training_on_vectors_is_training_on_audio_and_text(
    home: Path, tmp_path: Path, objective: str, settings: dict[str, Any]
) -> None:
    changes = {**FROZEN, **settings, "data__noise__ratio": 0.2, "train__epochs": 2, "model__projection": "mlp"}
    experiment = tiny(home / "tones", objective=objective, **changes)
    prepared = prepared_for(experiment, home)
    assert prepared.is_audio_encoded == experiment.model.audio.adapt.is_frozen
    assert (prepared.captions is not None) == experiment.model.text.adapt.is_frozen
    expected = run(experiment, not_encoded(prepared, experiment), tmp_path / "expected")
    found = run(experiment, prepared, tmp_path / "found")
    for before, after in zip(expected[:-1], found[:-1], strict=True):
        assert after["train/loss"] == pytest.approx(before["train/loss"], rel=1e-5)
    recall = "test/text_to_audio/mean/recall_at_1"
    assert found[-1][recall] == pytest.approx(expected[-1][recall])
    weights = {name: load_checkpoint(tmp_path / name / LAST)["model"] for name in ("expected", "found")}
    towers = {name for name in weights["expected"] if name not in weights["found"]}
    assert {name.split(".")[0] for name in towers} == {f"{kind}_tower" for kind in prepared.frozen_weights}
    for name, value in weights["found"].items():
        torch.testing.assert_close(value, weights["expected"][name], atol=1e-5, rtol=1e-5, msg=name)


def test_the_best_retriever_is_whole_and_encodes_audio_and_text(home: Path, tmp_path: Path) -> None:
    experiment = tiny(home / "tones", objective="contrastive", **FROZEN, train__epochs=1)
    prepared = prepared_for(experiment, home)
    run(experiment, not_encoded(prepared, experiment), tmp_path / "expected")
    run(experiment, prepared, tmp_path / "found")
    expected, found = (Retriever.from_pretrained(tmp_path / name / BEST) for name in ("expected", "found"))
    clips, texts = [tone(1, 5), tone(3, 6, seconds=1.1)], ["a low tone", "something never read"]
    torch.testing.assert_close(found.encode_audio(clips), expected.encode_audio(clips), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.encode_text(texts), expected.encode_text(texts), atol=1e-5, rtol=0)
    # Its frozen towers are the cache's own files, not copies of them.
    for kind, file in prepared.frozen_weights.items():
        assert (tmp_path / "found" / BEST / kind / "frozen.safetensors").samefile(file)
    shutil.rmtree(prepared.home / "data" / "vectors")
    assert torch.equal(
        Retriever.from_pretrained(tmp_path / "found" / BEST).encode_text(texts), found.encode_text(texts)
    )


def test_a_killed_run_on_vectors_goes_on_to_the_same_weights(home: Path, tmp_path: Path) -> None:
    experiment = tiny(home / "tones", objective="kcl", **FROZEN, train__checkpoint_every_steps=1)
    prepared = prepared_for(experiment, home)
    run(experiment, prepared, tmp_path / "whole")

    def die(metrics: dict[str, Any]) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        train(experiment, prepared, tmp_path / "killed", die, use_ray_data=False)
    run(experiment, prepared, tmp_path / "killed")
    expected, found = (load_checkpoint(tmp_path / name / LAST)["model"] for name in ("whole", "killed"))
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def with_checkpoints(home: Path, folder: Path) -> Experiment:
    """Frozen CED and SONAR from files."""
    torch.manual_seed(0)
    torch.save(Ced(size="tiny", num_blocks=1).build().state_dict(), folder / "ced.pt")
    tiny_checkpoints.sonar(folder / "sonar")
    return tiny(
        home / "tones",
        model__audio="ced",
        model__audio__size="tiny",
        model__audio__num_blocks=1,
        model__audio__checkpoint=str(folder / "ced.pt"),
        model__text="sonar",
        model__text__checkpoint=str(folder / "sonar"),
        **FROZEN,
    )


def test_the_second_use_decodes_and_encodes_nothing(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = tiny(home / "tones", **FROZEN)
    first = prepared_for(experiment, home)
    for module, name in ((encode_once, "build_retriever"), (encode_once, "ensure_features")):
        monkeypatch.setattr(module, name, refuse_to_work)
    monkeypatch.setattr("ray_atr.data.cache.clip_features", refuse_to_work)
    said: list[str] = []
    assert prepared_for(experiment, home, said) == first
    assert said == []
    # Objective, rates and the seed of the order change nothing that a checkpoint's tower computes; a random tower's seed does.
    other = dataclasses.replace(experiment, train=dataclasses.replace(experiment.train, learning_rate=0.1))
    assert prepared_for(other, home) == first
    with pytest.raises(AssertionError, match="again"):
        prepared_for(dataclasses.replace(experiment, seed=1), home)
