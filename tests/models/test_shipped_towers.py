"""The towers that come with the package: whole, small, and able to tell kinds of sound apart; damage is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ray_atr.common.digests import DamagedFileError, check_folder, digests_of
from ray_atr.common.language_codes import DEFAULT_LANGUAGES
from ray_atr.common.override import override
from ray_atr.data.audio import clip_windows
from ray_atr.models.audio import SmallCnn
from ray_atr.models.model_settings import ModelSettings
from ray_atr.models.retriever import Retriever, build_retriever
from ray_atr.models.text import SmallTransformer
from ray_atr.models.tower import tower_fingerprint
from ray_atr.models.vectors import encode_captions
from ray_atr.models.weights import SHIPPED
from ray_atr.training.checks import check_experiment
from ray_atr.training.loop import train_trial
from ray_atr.training.recipes import RECIPES
from ray_atr.training.run_folder import BEST
from ray_atr.workshop.languages.templates import class_sentences
from ray_atr.workshop.soundscapes import KINDS, SoundscapesSettings, clip
from tests.support.tiny import prepared_for

AUDIO = SmallCnn(checkpoint="shipped:small_cnn")
TEXT = SmallTransformer(checkpoint="shipped:small_transformer", num_layers=1)


def test_they_are_whole_and_together_at_most_two_megabytes() -> None:
    folders = sorted(path for path in SHIPPED.iterdir() if path.is_dir())
    assert [folder.name for folder in folders] == ["small_cnn", "small_transformer"]
    for folder in folders:
        check_folder(folder)
        assert {"model.safetensors", "card.json"} <= set(digests_of(folder))
    assert sum(path.stat().st_size for path in SHIPPED.rglob("*") if path.is_file()) <= 2 * 2**20


def test_a_changed_byte_is_refused(tmp_path: Path) -> None:
    shutil.copytree(SHIPPED / "small_cnn", tmp_path / "small_cnn")
    settings = SmallCnn(checkpoint=str(tmp_path / "small_cnn"))
    settings.build()
    file = tmp_path / "small_cnn" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(DamagedFileError, match=r"model\.safetensors: damaged"):
        settings.build()


def test_a_tower_that_is_not_shipped_is_refused_before_anything_starts() -> None:
    experiment = override(RECIPES["quickstart"](), {"model.audio.checkpoint": "shipped:large_cnn"})
    with pytest.raises(ValueError, match=r"model\.audio\.checkpoint: got 'shipped:large_cnn'.*shipped:small_cnn"):
        check_experiment(experiment)


@pytest.mark.parametrize(("kind", "size"), [("text", "width"), ("audio", "channels")])
def test_other_sizes_than_the_shipped_ones_are_refused_before_anything_starts(kind: str, size: str) -> None:
    experiment = override(RECIPES["quickstart"](), {f"model.{kind}.{size}": 32})
    with pytest.raises(ValueError, match=rf"model\.{kind}\.checkpoint: got 'shipped:.*shape of "):
        check_experiment(experiment)
    check_experiment(override(RECIPES["quickstart"](), {"model.text.max_tokens": 32, "model.audio.clip_seconds": 5}))


def test_the_seed_changes_the_projections_and_not_the_shipped_weights() -> None:
    first, second = (build_retriever(ModelSettings(audio=AUDIO, text=TEXT), seed=seed) for seed in (0, 1))
    assert tower_fingerprint(first.audio_tower) == tower_fingerprint(second.audio_tower)
    assert tower_fingerprint(first.text_tower) == tower_fingerprint(second.text_tower)
    assert not torch.equal(first.audio_projection.weight, second.audio_projection.weight)
    drawn = SmallCnn().build()
    assert tower_fingerprint(first.audio_tower) != tower_fingerprint(drawn)


def test_a_retriever_of_shipped_towers_is_saved_with_them(tmp_path: Path) -> None:
    retriever = build_retriever(ModelSettings(audio=AUDIO, text=TEXT), seed=0)
    retriever.save_pretrained(tmp_path / "saved")
    again = Retriever.from_pretrained(tmp_path / "saved")
    assert tower_fingerprint(again.audio_tower) == tower_fingerprint(retriever.audio_tower)
    assert torch.equal(again.encode_text(["A dog barks."]), retriever.eval().encode_text(["A dog barks."]))


def test_the_text_tower_gives_a_kind_one_place_in_all_languages() -> None:
    tower = TEXT.build().eval()
    sentences = class_sentences(list(KINDS), DEFAULT_LANGUAGES)
    embedded = {
        language: torch.nn.functional.normalize(encode_captions(tower, [(text, language) for text in texts]), dim=1)
        for language, texts in sentences.items()
    }
    for language, vectors in embedded.items():
        nearest = (vectors @ embedded["eng"].T).argmax(dim=1)
        share = float((nearest == torch.arange(len(KINDS))).float().mean())
        assert share > 0.8, f"{language}: {share:.2f} of the kinds are nearest to their English sentence"


@pytest.mark.slow
def test_the_audio_tower_tells_kinds_apart_that_it_heard_in_other_clips() -> None:
    tower = AUDIO.build().eval()
    settings = SoundscapesSettings(seed=1, seconds=2.0)
    alone = [one for one in (clip(index, "train", settings) for index in range(110)) if len(one.labels) == 1]
    with torch.inference_mode():
        frames = [torch.from_numpy(next(iter(clip_windows(one.audio, AUDIO.front_end)))) for one in alone]
        lengths = torch.tensor([len(one) for one in frames])
        pooled = tower(torch.nn.utils.rnn.pad_sequence(frames, batch_first=True), lengths).pooled
    similar = torch.nn.functional.normalize(pooled - pooled.mean(dim=0), dim=1)
    similar = (similar @ similar.T).fill_diagonal_(-1)
    kinds = np.array([one.labels[0] for one in alone])
    has_another = np.array([(kinds == kind).sum() > 1 for kind in kinds])
    is_right = kinds[similar.argmax(dim=1).numpy()] == kinds
    assert has_another.sum() >= 10
    assert is_right[has_another].mean() > 0.5, "by chance about one in forty"


@pytest.mark.slow
def test_triplet_learns_in_the_quickstart(tmp_path: Path) -> None:
    small: dict[str, Any] = {
        "objective": "triplet",
        "data.languages": "eng",
        "data.soundscapes.num_train": 64,
        "data.soundscapes.num_val": 8,
        "data.soundscapes.num_test": 24,
        "data.soundscapes.seconds": 2.0,
        "train.batch_size": 16,
        "train.epochs": 9,
        "evaluation.every_epochs": 9,
    }
    experiment = override(RECIPES["quickstart"](), small)
    reports: list[dict[str, Any]] = []
    train_trial(experiment, prepared_for(experiment, tmp_path), tmp_path, reports.append, use_ray_data=False)
    # A triplet whose embeddings have collapsed has the loss of its margin, 0.2, and finds nothing.
    assert reports[-2]["train/loss"] < 0.6 * reports[0]["train/loss"]
    final = reports[-1]
    assert final["test/text_to_audio/eng/recall_at_1"] > 4 * final["test/text_to_audio/eng/chance_at_1"]
    assert (tmp_path / BEST).is_dir()
