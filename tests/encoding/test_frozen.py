"""Frozen towers encode once, and training on their vectors is training on what they would compute."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ray_atr.common.override import override
from ray_atr.data import caption_vectors
from ray_atr.data.caption_vectors import open_caption_vectors
from ray_atr.data.feature_cache import ensure_features
from ray_atr.data.features import MANIFEST_FILE, open_features
from ray_atr.data.shards import write_clips
from ray_atr.models.audio import Ced
from ray_atr.models.retriever import Retriever, build_retriever
from ray_atr.models.tower import pad_tokens
from ray_atr.models.vectors import EncodedText, encode_captions
from ray_atr.training.checkpoint import load_checkpoint
from ray_atr.training.encoding import frozen
from ray_atr.training.experiment import Experiment
from ray_atr.training.inputs import Prepared, prepare
from ray_atr.training.loop import train_trial
from ray_atr.training.run_folder import BEST, LAST
from tests.support import tiny_checkpoints
from tests.support.tiny import make_data, tiny, tone, tone_clip

FROZEN = {"model__audio__adapt__is_frozen": True, "model__text__adapt__is_frozen": True}


def prepared_for(experiment: Experiment, home: Path, said: list[str] | None = None) -> Prepared:
    return prepare(experiment, home, use_ray=False, echo=(said if said is not None else []).append)


def not_encoded(prepared: Prepared, experiment: Experiment) -> Prepared:
    """The same inputs as log-mel frames and tokens, which the frozen towers encode at every step."""
    root = prepared.home / "data" / "cache" / "features"
    features = ensure_features(prepared.data, experiment.model.audio.front_end, root, use_ray=False)
    return dataclasses.replace(prepared, features=features, is_audio_encoded=False, captions=None)


def run(experiment: Experiment, prepared: Prepared, folder: Path) -> list[dict[str, Any]]:
    reports: list[dict[str, Any]] = []
    train_trial(experiment, prepared, folder, reports.append, use_ray_data=False)
    return reports


def refuse_to_work(*arguments: Any, **options: Any) -> None:
    raise AssertionError("encoded or decoded again")


ASK = {"objective__knowledge__prototypes": 4, "objective__knowledge__neighbours": 2}


@pytest.mark.slow
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
    changes = {**FROZEN, **settings, "data__noise__ratio": 0.2, "model__projection": "mlp", "data__test_split": "test"}
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
        # Adam makes steps of the last digits of small gradients.
        torch.testing.assert_close(value, weights["expected"][name], atol=3e-5, rtol=1e-5, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("updates", [{}, {"model__text__adapt__lora_rank": 2}])
def test_a_frozen_tower_is_that_of_the_retriever_which_training_starts_from(
    home: Path, tmp_path: Path, updates: dict[str, Any]
) -> None:
    """What both were before, by their checkpoint or seed, is encoded already."""
    prepared_for(tiny(home / "tones", **FROZEN), home)
    if updates:
        updates |= {"model__text__adapt__lora_targets": "attention_in"}
    first = tiny(home / "tones", train__epochs=1, train__learning_rate=0.1, **updates)
    run(first, prepared_for(first, home), tmp_path / "first")
    start = tmp_path / "first" / BEST
    experiment = tiny(home / "tones", train__start_from=str(start), train__epochs=1, **FROZEN)
    prepared = prepared_for(experiment, home)
    expected = run(experiment, not_encoded(prepared, experiment), tmp_path / "expected")
    found = run(experiment, prepared, tmp_path / "found")
    assert found[0]["train/loss"] == pytest.approx(expected[0]["train/loss"], rel=1e-5)
    saved, kept = Retriever.from_pretrained(start), Retriever.from_pretrained(tmp_path / "found" / BEST)
    captions = [("a low tone", "eng"), ("un bruit", "fra")]
    torch.testing.assert_close(
        encode_captions(kept.text_tower, captions), encode_captions(saved.text_tower, captions), atol=1e-5, rtol=0
    )
    for name, value in saved.audio_tower.state_dict().items():
        assert torch.equal(kept.audio_tower.state_dict()[name], value), name


def test_a_knowledge_base_of_other_clips_is_encoded_once_too(home: Path, tmp_path: Path) -> None:
    other = make_data(tmp_path / "other", num_train=12, num_val=4, num_test=4)
    changes = {**FROZEN, **ASK, "objective__knowledge__source": str(other), "train__epochs": 1}
    experiment = tiny(home / "tones", objective="ask", **changes)
    prepared = prepared_for(experiment, home)
    expected = run(experiment, not_encoded(prepared, experiment), tmp_path / "expected")
    found = run(experiment, prepared, tmp_path / "found")
    assert found[0]["train/loss"] == pytest.approx(expected[0]["train/loss"], rel=1e-5)
    wholes = [
        folder
        for folder in (home / "data" / "cache" / "vectors").glob("*-audio-*")
        if (folder / MANIFEST_FILE).is_file()
    ]
    assert len(open_features(prepared.features, "train")) == 24
    assert 12 in [len(open_features(folder, "train")) for folder in wholes]


def test_a_data_set_that_was_made_again_at_its_place_is_encoded_again(tmp_path: Path) -> None:
    """In one process, as a notebook is."""
    encoded = []
    for pitch, home in ((0, "home"), (1, "home"), (1, "other home")):
        shutil.rmtree(tmp_path / "data", ignore_errors=True)
        clips = [
            dataclasses.replace(
                tone_clip(split, index, {"eng": ["a tone"], "fra": ["un son"]}), audio=tone(pitch, index)
            )
            for split in ("train", "val")
            for index in range(4)
        ]
        write_clips(tmp_path / "data", clips, name="tones", licence="none")
        prepared = prepared_for(tiny(tmp_path / "data", **FROZEN, train__batch_size=4), tmp_path / home)
        encoded.append(open_features(prepared.features, "train").features(np.arange(4))[0])
    np.testing.assert_array_equal(encoded[1], encoded[2])
    assert not np.array_equal(encoded[0], encoded[1])


def test_the_best_retriever_is_whole_and_encodes_audio_and_text(home: Path, tmp_path: Path) -> None:
    experiment = tiny(home / "tones", objective="contrastive", **FROZEN, train__epochs=1)
    prepared = prepared_for(experiment, home)
    run(experiment, not_encoded(prepared, experiment), tmp_path / "expected")
    run(experiment, prepared, tmp_path / "found")
    expected, found = (Retriever.from_pretrained(tmp_path / name / BEST) for name in ("expected", "found"))
    clips, texts = [tone(1, 5), tone(3, 6, seconds=1.1)], ["a low tone", "something never read"]
    torch.testing.assert_close(found.encode_audio(clips), expected.encode_audio(clips), atol=1e-5, rtol=0)
    torch.testing.assert_close(found.encode_text(texts), expected.encode_text(texts), atol=1e-5, rtol=0)
    # Of one epoch, it holds what that epoch trained.
    trained, held = load_checkpoint(tmp_path / "found" / LAST)["model"], found.state_dict()
    assert all(torch.equal(held[name], value) for name, value in trained.items())
    # Its frozen towers are the cache's own files, not copies of them.
    for kind, file in prepared.frozen_weights.items():
        assert (tmp_path / "found" / BEST / kind / "frozen.safetensors").samefile(file)
    shutil.rmtree(prepared.home / "data" / "cache" / "vectors")
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
        train_trial(experiment, prepared, tmp_path / "killed", die, use_ray_data=False)
    run(experiment, prepared, tmp_path / "killed")
    expected, found = (load_checkpoint(tmp_path / name / LAST)["model"] for name in ("whole", "killed"))
    assert all(torch.equal(found[name], value) for name, value in expected.items())


class RefusedError(Exception):
    """Ends work that should not be done, or not to its end."""


class Refusing(list[str]):
    """Lines of work that end it."""

    def append(self, line: str) -> None:
        raise RefusedError(line)


def test_the_second_use_decodes_and_encodes_nothing(home: Path) -> None:
    experiment = tiny(home / "tones", **FROZEN)
    first = prepared_for(experiment, home)
    assert prepared_for(experiment, home, Refusing()) == first
    other = override(experiment, {"train.learning_rate": 0.1, "objective": "m_ltm"})
    assert prepared_for(other, home, Refusing()) == first
    # The weights of a tower without a checkpoint are drawn from the seed.
    with pytest.raises(RefusedError, match=r"^frozen audio tower: "):
        prepared_for(override(experiment, {"seed": 1}), home, Refusing())


@pytest.fixture
def published(home: Path, tmp_path: Path) -> Experiment:
    """Frozen CED and SONAR from files of their own."""
    torch.manual_seed(0)
    torch.save(Ced(size="tiny", num_blocks=1).build().state_dict(), tmp_path / "ced.pt")
    tiny_checkpoints.sonar(tmp_path / "sonar")
    return override(
        Experiment(),
        {
            "data.source": str(home / "tones"),
            "data.languages": "eng,fra",
            "model.audio": "ced",
            "model.audio.size": "tiny",
            "model.audio.num_blocks": 1,
            "model.audio.checkpoint": str(tmp_path / "ced.pt"),
            "model.text": "sonar",
            "model.text.checkpoint": str(tmp_path / "sonar"),
            **{path.replace("__", "."): value for path, value in FROZEN.items()},
            "train.batch_size": 8,
            "train.epochs": 1,
        },
    )


def test_vectors_belong_to_the_weights_not_to_the_name_of_their_file(published: Experiment, home: Path) -> None:
    first = prepared_for(published, home)
    checkpoint = Path(str(vars(published.model.audio)["checkpoint"]))
    # The same weights elsewhere, and another seed: the same vectors.
    moved = checkpoint.rename(checkpoint.with_name("moved.pt"))
    assert prepared_for(override(published, {"model.audio.checkpoint": str(moved), "seed": 3}), home) == first
    # Other weights under the first name: others.
    torch.manual_seed(1)
    torch.save(Ced(size="tiny", num_blocks=1).build().state_dict(), checkpoint)
    second = prepared_for(published, home)
    assert second.features != first.features
    assert second.captions == first.captions
    # What the tower does beside its weights counts too.
    pooled = prepared_for(override(published, {"model.text.pooling": "cls"}), home)
    assert pooled.captions != first.captions


def test_vectors_follow_a_tokeniser_that_changed_in_one_language_alone(tmp_path: Path) -> None:
    """English has no accents, and is the first language."""
    checkpoint = tiny_checkpoints.bert(tmp_path / "bert")
    chosen = {"model__text": "bert", "model__text__checkpoint": str(checkpoint), "model__text__adapt__is_frozen": True}
    data = make_data(tmp_path / "tones", num_train=12, num_val=4, num_test=4)
    experiment = tiny(data, objective="kcl", **chosen)
    first = prepared_for(experiment, tmp_path)
    file = checkpoint / "tokenizer_config.json"
    file.write_text(
        json.dumps(json.loads(file.read_text(encoding="utf-8")) | {"strip_accents": False}), encoding="utf-8"
    )
    assert prepared_for(experiment, tmp_path).captions != first.captions


def test_vectors_are_what_the_towers_compute(published: Experiment, home: Path) -> None:
    prepared = prepared_for(published, home)
    retriever = build_retriever(published.model, seed=0).eval()
    frames = open_features(not_encoded(prepared, published).features, "val")
    vectors = open_features(prepared.features, "val")
    assert vectors.clip_ids == frames.clip_ids
    assert vectors.captions_in("fra") == frames.captions_in("fra")
    array, lengths = vectors.features(np.array([5, 0, 3]))
    assert array.shape == (3, 1, 192)
    assert lengths.tolist() == [1, 1, 1]
    inputs, lengths = frames.features(np.array([5, 0, 3]))
    with torch.no_grad():
        expected = retriever.audio_tower(torch.from_numpy(inputs.astype(np.float32)), torch.from_numpy(lengths)).pooled
    torch.testing.assert_close(torch.from_numpy(array[:, 0]), expected, atol=1e-5, rtol=1e-5)


def test_a_caption_that_is_not_among_the_vectors_is_encoded_once(published: Experiment, home: Path) -> None:
    prepared = prepared_for(published, home)
    tower = build_retriever(published.model, seed=0).eval().text_tower
    assert prepared.captions is not None
    encoded = EncodedText(tower, open_caption_vectors(prepared.captions))
    texts, languages = ["a low tone, number 0", "unheard of", "a low tone, number 0"], ["eng", "eng", "fra"]
    known = len(encoded.vectors)
    assert [ids[0] >= known for ids in encoded.tokenise(texts, languages)] == [False, True, True]
    assert encoded.tokenise(texts[1:2], ["eng"]) == [[known]]
    tokens = pad_tokens(encoded.tokenise(texts, languages), encoded.pad_token_id)
    with torch.no_grad():
        expected = tower(*pad_tokens(tower.tokenise(texts, languages), tower.pad_token_id)).pooled
    torch.testing.assert_close(encoded(*tokens).pooled, expected, atol=1e-5, rtol=1e-5)


def test_interrupted_work_is_taken_up_part_by_part(
    published: Experiment, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (frozen, caption_vectors):
        monkeypatch.setattr(module, "PART", 16)
    published = override(published, {"data.languages": "eng"})
    prepared = prepared_for(published, home)
    assert prepared.captions is not None
    files = {folder: {f.name: f.read_bytes() for f in folder.glob("*.[an][rp]*")} for folder in folders(prepared)}
    for folder in folders(prepared):
        (folder / MANIFEST_FILE).unlink()
    (prepared.features / "val-00001.arrow").unlink()
    (prepared.captions / "part-00000.npy").unlink()
    said: list[str] = []
    assert prepared_for(published, home, said) == prepared
    assert [message for message in said if message.startswith("frozen")] == [
        "frozen audio tower: 40 of 40 clips encoded",
        "frozen text tower: 24 of 24 captions encoded",
    ]
    for folder, contents in files.items():
        assert {f.name: f.read_bytes() for f in folder.glob("*.[an][rp]*")} == contents
        # A damaged file that nobody has opened does not get a new digest when another one is made again.
        file = next(folder.glob("*-00001.*"))
        content = file.read_bytes()
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        (folder / MANIFEST_FILE).unlink()
    prepared_for(published, home)
    for folder, contents in files.items():
        assert {f.name: f.read_bytes() for f in folder.glob("*.[an][rp]*")} == contents


def folders(prepared: Prepared) -> list[Path]:
    assert prepared.captions is not None
    return [prepared.features, prepared.captions]


def test_a_frozen_tower_whose_vectors_cannot_serve_encodes_every_batch_and_says_so(home: Path) -> None:
    said: list[str] = []
    prepared = prepared_for(tiny(home / "tones", **FROZEN, model__augment__time_bands=1), home, said)
    assert list(prepared.frozen_weights) == ["text"]
    assert said[0] == (
        "the frozen audio tower encodes every batch again: model.augment changes its input in every epoch"
    )
    said.clear()
    prepared = prepared_for(tiny(home / "tones", **FROZEN, model__interaction="late"), home, said)
    assert prepared.frozen_weights == {}
    assert [message.partition(":")[0] for message in said] == [
        "the frozen audio tower encodes every batch again",
        "the frozen text tower encodes every batch again",
    ]


def test_dropout_of_a_frozen_tower_is_off_so_its_vectors_serve(home: Path, tmp_path: Path) -> None:
    experiment = tiny(home / "tones", **FROZEN, model__text__dropout=0.5, train__epochs=1)
    prepared = prepared_for(experiment, home)
    expected = run(experiment, not_encoded(prepared, experiment), tmp_path / "expected")
    assert run(experiment, prepared, tmp_path / "found")[0]["train/loss"] == pytest.approx(
        expected[0]["train/loss"], rel=1e-5
    )


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
def test_encoders_on_ray_write_the_same_vectors(published: Experiment, home: Path, tmp_path: Path) -> None:
    here = prepared_for(published, home)
    (tmp_path / "tones").symlink_to(home / "tones")
    shutil.copytree(home / "data" / "cache" / "features", tmp_path / "data" / "cache" / "features")
    # Of a size that has room once: one process a tower.
    there = prepare(override(published, {"scaling.cpus_per_worker": 2}), tmp_path, echo=lambda message: None)
    for mine, theirs in zip(folders(here), folders(there), strict=True):
        assert mine.name == theirs.name
        for file in mine.glob("*.[an][rp]*"):
            assert file.read_bytes() == (theirs / file.name).read_bytes(), file.name
