"""A tower's layers are known before its weights are read, and what it cannot do is refused by them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from ray_atr.common.override import override
from ray_atr.models.adaptation import Adaptation
from ray_atr.models.audio import AUDIO_TOWERS, SmallCnn, SmallCnnTower
from ray_atr.models.model_settings import ModelSettings
from ray_atr.models.outline import check_towers, check_weights, outline_of
from ray_atr.models.text import TEXT_TOWERS, train_tokenizer
from tests.support import tiny_checkpoints as tiny


def clap_with_words(folder: Path) -> Path:
    tiny.clap(folder)
    tiny.roberta_words(folder)
    return folder


SMALL: dict[str, dict[str, Any]] = {
    "small_cnn": {},
    "ced": {"size": "tiny", "num_blocks": 2},
    "resnet38": {"width_divisor": 16},
    "vectors": {"width": 6},
}
OF_TEXT = {**tiny.OF_TEXT, "transformers": clap_with_words}


@pytest.mark.parametrize("name", [*SMALL, *tiny.OF_AUDIO])
def test_an_outline_has_the_layers_of_the_audio_tower(name: str, tmp_path: Path) -> None:
    how: dict[str, Any] = SMALL[name] if name in SMALL else {"checkpoint": str(tiny.OF_AUDIO[name](tmp_path / "model"))}
    same_layers(AUDIO_TOWERS[name](**how))


@pytest.mark.parametrize("name", ["small_transformer", *OF_TEXT])
def test_an_outline_has_the_layers_of_the_text_tower(name: str, tmp_path: Path) -> None:
    how: dict[str, Any] = {"checkpoint": str(OF_TEXT[name](tmp_path / "model"))} if name in OF_TEXT else {}
    same_layers(TEXT_TOWERS[name](**how), *([] if how else [train_tokenizer(tiny.TEXTS, 300)]))


def same_layers(settings: Any, *tokenizer: object) -> None:
    state = torch.get_rng_state()
    tower = outline_of(settings)
    assert torch.equal(state, torch.get_rng_state())
    assert tower is not None
    complete = settings.build(*tokenizer)
    assert tower.width == complete.width
    # wav2vec 2.0 makes its mask's vector without asking for a device.
    assert {name for name, p in tower.named_parameters() if not p.is_meta} <= {"model.masked_spec_embed"}
    shapes = {name: parameter.shape for name, parameter in complete.named_parameters()}
    # The vocabulary of a tower that trains one is not known yet.
    shapes.pop("embedding.weight", None)
    assert {name: p.shape for name, p in tower.named_parameters() if name != "embedding.weight"} == shapes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"audio": "ced", "audio.adapt.lora_rank": 2, "audio.adapt.lora_targets": "qkw"},
            "audio.adapt.lora_targets: .*'qkw'; .*blocks.0.attn.qkv",
        ),
        (
            {"audio.adapt.lora_rank": 2},
            "audio.adapt.lora_rank: got 2; allowed 0, or lora_targets .* SmallCnnTower.*: out",
        ),
        (
            {"text.adapt.frozen_layers": 4},
            "text.adapt.frozen_layers: got 4; allowed at most 3 of SmallTransformerTower's 4",
        ),
        ({"text.adapt.lora_targets": "out"}, "text.adapt.lora_targets: got 'out'; allowed empty with lora_rank=0"),
        ({"audio.adapt.activation_checkpointing": True}, "audio.adapt.activation_checkpointing: .*SmallCnnTower"),
        ({"audio.adapt.compile": True}, "audio.adapt.compile: got True; allowed false for SmallCnnTower"),
        ({"audio_projection": "none"}, "model.embedding_width: got 128; allowed 192, the audio tower's width"),
        *(
            ({kind: "vectors", f"{kind}.adapt.is_frozen": True}, rf"model\.{kind}\.adapt\.is_frozen: .* has no weights")
            for kind in ("audio", "text")
        ),
    ],
)
def test_what_a_tower_cannot_do_is_refused_by_its_outline(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_towers(override(ModelSettings(), changes))


def test_a_pooler_that_an_encoder_lacks_is_refused_by_its_outline(tmp_path: Path) -> None:
    changes = {"text": "sonar", "text.checkpoint": str(tiny.sonar(tmp_path)), "text.pooling": "pooler"}
    with pytest.raises(ValueError, match=r"model\.text\.pooling: got 'pooler'; allowed mean or cls; m2m_100 has no"):
        check_towers(override(ModelSettings(), changes))


@pytest.mark.parametrize("name", ["ast", "htsat"])
def test_a_window_that_a_model_would_cut_is_refused(name: str, tmp_path: Path) -> None:
    changes = {"audio": name, "audio.checkpoint": str(tiny.OF_AUDIO[name](tmp_path))}
    longest = override(ModelSettings(), changes).audio.front_end.clip_seconds
    check_towers(override(ModelSettings(), {**changes, "audio.clip_seconds": longest}))
    with pytest.raises(ValueError, match=rf"model\.audio\.clip_seconds: got .*; allowed at most {longest:g}, or none"):
        check_towers(override(ModelSettings(), {**changes, "audio.clip_seconds": longest + 0.5}))


@pytest.mark.parametrize("name", ["small_cnn", "ced", "resnet38"])
@pytest.mark.parametrize("file", ["weights.safetensors", "weights.pt"])
def test_a_file_of_weights_is_compared_with_its_tower_without_its_values(name: str, file: str, tmp_path: Path) -> None:
    state = AUDIO_TOWERS[name](**SMALL[name]).build().state_dict()
    how = {**SMALL[name], "checkpoint": str(tmp_path / file)}
    settings = AUDIO_TOWERS[name](**how)

    def write(tensors: dict[str, Any]) -> None:
        save_file(tensors, tmp_path / file) if file.endswith("safetensors") else torch.save(tensors, tmp_path / file)

    write(state)
    check_weights(settings)
    first, *others = state
    write({key: state[key] for key in others})
    with pytest.raises(ValueError, match=rf"model\.audio\.checkpoint: .*a checkpoint of this tower.*missing {first}"):
        check_weights(settings)
    (tmp_path / file).write_text("no weights")
    with pytest.raises(ValueError, match=r"model\.audio\.checkpoint: got .*weights\..*; allowed a complete "):
        check_weights(settings)


def test_a_tower_is_outlined_only_for_settings_that_need_it_and_once_for_all_of_them() -> None:
    built: list[SmallCnn] = []

    class Noted(SmallCnn):
        def build(self) -> SmallCnnTower:
            built.append(self)
            return super().build()

    check_towers(ModelSettings(audio=Noted()))
    assert not built
    for scale in (1.0, 0.5):
        for levels in (1, 2):
            adapt = Adaptation(frozen_layers=levels, learning_rate_scale=scale)
            check_towers(ModelSettings(audio=Noted(adapt=adapt)))
    assert len(built) == 1


def test_a_tower_that_cannot_be_built_without_its_weights_is_left_to_the_training() -> None:
    class ReadsItsWeights(SmallCnn):
        def build(self) -> Any:
            return torch.zeros(3).tolist()

    assert outline_of(ReadsItsWeights(width=16)) is None
    check_towers(ModelSettings(audio=ReadsItsWeights(width=16, adapt=Adaptation(lora_rank=2))))
