"""The script of the shipped towers: the same bytes twice, and no caption of the default data set's evaluation splits."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file

from ray_atr.common.digests import check_folder, digests_of
from ray_atr.models.audio import SmallCnn
from ray_atr.models.text import SmallTransformer
from ray_atr.models.weights import SHIPPED
from ray_atr.workshop.soundscapes import SoundscapesSettings
from tests.support.scripts import load_script
from tests.support.spies import spied
from tests.support.whole_product import IS_WHOLE, ONLY_IN_WHOLE

FEW = ["--clips", "64", "--audio-epochs", "1", "--scenes", "8", "--text-epochs", "1", "--held-out", "2"]
TOWERS = ("small_cnn", "small_transformer")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("benchmarks/soundscape_towers.py")


@pytest.mark.slow
def test_two_runs_write_the_same_bytes_which_the_towers_take(script: ModuleType, tmp_path: Path) -> None:
    runs = ("first", "second") if IS_WHOLE else ("first",)
    for out in runs:
        script.main([*FEW, "--out", str(tmp_path / out)])
    for name in TOWERS:
        folder = tmp_path / "first" / name
        check_folder(folder)
        assert digests_of(folder) == digests_of(tmp_path / runs[-1] / name)
        # The same files that are shipped.
        assert set(digests_of(folder)) == set(digests_of(SHIPPED / name))
        assert json.loads((folder / "card.json").read_text())["seed"] == script.SEED
        # At full precision they would be twice as large as may be shipped.
        assert {value.dtype for value in load_file(folder / "model.safetensors").values()} == {torch.float16}
    SmallCnn(checkpoint=str(tmp_path / "first" / "small_cnn")).build()
    SmallTransformer(checkpoint=str(tmp_path / "first" / "small_transformer"), num_layers=1).build()


@ONLY_IN_WHOLE
def test_the_text_tower_reads_no_caption_of_the_default_evaluation(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: set[str] = set()
    spied(monkeypatch, script, "train_tokenizer", lambda _, texts, vocabulary: read.update(texts))
    default = SoundscapesSettings(num_val=4)
    own = SoundscapesSettings(seed=script.SEED)
    _, card = script.text_tower(own, default, 60, 1, 400)
    asked = {
        text for split in ("val", "test") for text, _ in script.captions_of(default, split, default.num_clips(split))
    }
    everything = script.captions_of(SoundscapesSettings(seed=script.SEED, num_train_captions=2), "train", 60)
    assert any(text in asked for text, _ in everything), "else this would not test anything"
    assert card["left out, as the default set has them"] > 0
    assert not read & asked


def test_the_shipped_towers_are_those_of_the_script_s_seed(script: ModuleType) -> None:
    assert SoundscapesSettings().seed != script.SEED
    for name in TOWERS:
        assert json.loads((SHIPPED / name / "card.json").read_text())["seed"] == script.SEED
