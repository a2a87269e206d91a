"""A tower is as its settings say: its sizes, its front end, its dropout, its vocabulary, its checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import ASTModel

from ray_atr.models.adaptation import Adaptation, adapt
from ray_atr.models.audio import SmallCnn
from ray_atr.models.ced import Ced
from ray_atr.models.model_settings import ModelSettings
from ray_atr.models.resnet38 import ResNet38
from ray_atr.models.retriever import build_retriever
from ray_atr.models.text import SmallTransformer, train_tokenizer
from ray_atr.models.tower import AudioSettings
from ray_atr.models.transformers import Ast
from tests.support import tiny_checkpoints as tiny


def dropouts(module: nn.Module) -> set[float]:
    return {part.p for part in module.modules() if isinstance(part, nn.Dropout)}


def test_a_small_tower_of_sounds_has_the_channels_width_and_window_that_are_set() -> None:
    tower = SmallCnn(channels=8, width=24, clip_seconds=3.0).build()
    assert [one.weight.shape[0] for one in tower.convolutions] == [8, 16, 32]
    found = tower(torch.zeros(1, 40, 64), torch.tensor([40])).pooled
    assert found.shape == (1, tower.width) == (1, 24)
    assert tower.front_end.clip_seconds == 3.0


def test_a_small_tower_of_texts_has_the_sizes_that_are_set() -> None:
    settings = SmallTransformer(vocab_size=300, width=24, num_layers=3, num_heads=2, max_tokens=5, dropout=0.3)
    assert settings.trained_vocabulary == 300
    tower = settings.build(train_tokenizer(["a dog barks at a cat"] * 3, vocab_size=300))
    assert tower.embedding.weight.shape[1] == tower.width == 24
    assert [block.num_heads for block in tower.blocks] == [2, 2, 2]
    assert dropouts(tower) == {0.3}
    assert [len(ids) for ids in tower.tokenise(["a dog", "a dog barks at a cat " * 9], ["eng", "eng"])][1] == 5


def test_published_towers_have_the_sizes_dropouts_and_windows_that_are_set() -> None:
    ced = Ced(size="tiny", num_blocks=2, clip_seconds=5.0, chunk_frames=160, dropout=0.2).build()
    assert (len(ced.blocks), ced.time_pos_embed.shape[-1]) == (2, 10)
    assert ced.front_end.clip_seconds == 5.0
    assert dropouts(ced) == {0.2}
    resnet = ResNet38(width_divisor=16, clip_seconds=3.0, dropout=0.1, outer_dropout=0.4).build()
    assert resnet.width == 2048 // 16
    assert resnet.front_end.clip_seconds == 3.0
    assert (resnet.dropout.p, dropouts(resnet.resnet)) == (0.4, {0.1})


def test_an_encoder_of_the_library_has_the_pooling_dropout_and_window_that_are_set(tmp_path: Path) -> None:
    folder = str(tiny.ast(tmp_path / "ast"))
    tower = Ast(checkpoint=folder, pooling="mean", dropout=0.3, clip_seconds=0.4).build().eval()
    assert tower.front_end.clip_seconds == 0.4
    assert dropouts(tower) == {0.3}
    features, frames = torch.randn(2, 64, 32), torch.tensor([64, 64])
    tokens = ASTModel.from_pretrained(folder).eval()(features).last_hidden_state
    torch.testing.assert_close(tower(features, frames).pooled, tokens.mean(dim=1))
    plain = Ast(checkpoint=folder).build()
    assert dropouts(plain) == {0.0}
    assert plain.front_end.clip_seconds == pytest.approx(0.64 + 0.015)


def widened(file: Path) -> None:
    """Gives one parameter of a checkpoint another shape."""
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith("bias"))
    save_file({**tensors, name: torch.zeros(3)}, file, metadata={"format": "pt"})


@pytest.mark.parametrize("kind", ["ced", "resnet38", "ast"])
def test_what_the_checkpoint_need_not_match_is_what_is_set(kind: str, tmp_path: Path) -> None:
    place = tmp_path / "weights.safetensors"
    settings: Callable[..., AudioSettings]
    if kind == "ast":
        tiny.ast(tmp_path)
        place, settings = tmp_path / "model.safetensors", Ast
    else:

        def settings(**more: Any) -> AudioSettings:
            sizes: dict[str, Any] = {"size": "tiny", "num_blocks": 1} if kind == "ced" else {"width_divisor": 16}
            return (Ced if kind == "ced" else ResNet38)(**sizes, **more)

        tensors = settings().build().state_dict()
        save_file({name: value.contiguous() for name, value in tensors.items()}, place)
    widened(place)
    checkpoint = str(tmp_path if kind == "ast" else place)
    with pytest.raises(ValueError, match=r"shape of .* is \[3\]"):
        settings(checkpoint=checkpoint).build()
    settings(checkpoint=checkpoint, allow_mismatch=("*bias",)).build()


def test_a_temperature_that_is_learned_starts_where_it_is_set() -> None:
    tokenizer = train_tokenizer(["a dog barks"], vocab_size=300)
    model = build_retriever(ModelSettings(learn_temperature=True, initial_temperature=0.3), tokenizer=tokenizer)
    assert model.learned.values().temperature.item() == pytest.approx(0.3)


def test_a_low_rank_update_is_scaled_by_alpha_over_the_rank() -> None:
    tower = Ced(size="tiny", num_blocks=1).build()
    adapt(tower, Adaptation(lora_rank=2, lora_alpha=7))
    assert {one.scaling["default"] for one in tower.modules() if hasattr(one, "scaling")} == {3.5}
