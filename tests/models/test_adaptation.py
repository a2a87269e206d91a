"""Freezing, learning rates by depth, low-rank updates, checkpointing: what is trained, how fast, and that values stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ray_atr.models.adaptation import Adaptation, adapt, compile_layers, parameter_levels
from ray_atr.models.audio import AUDIO_TOWERS, Ced, ResNet38, SmallCnn
from ray_atr.models.model_settings import ModelSettings
from ray_atr.models.retriever import Retriever, build_retriever
from ray_atr.models.text import Bert, SmallTransformer, Sonar, train_tokenizer
from ray_atr.models.tower import pad_tokens
from ray_atr.objectives import LearnedSettings
from tests.support import tiny_checkpoints as tiny

FEATURES = torch.randn(3, 70, 64, generator=torch.Generator().manual_seed(0))
FRAMES = torch.tensor([70, 64, 33])


def ced(**adaptation: Any) -> nn.Module:
    torch.manual_seed(0)
    tower = Ced(size="tiny", num_blocks=3, chunk_frames=64).build()
    adapt(tower, Adaptation(**adaptation))
    return tower


def retriever(audio: Adaptation | None = None, text: Adaptation | None = None, **arguments: Any) -> Retriever:
    settings = ModelSettings(
        audio=SmallCnn(channels=4, width=16, adapt=audio or Adaptation()),
        text=SmallTransformer(width=32, num_layers=3, adapt=text or Adaptation()),
        embedding_width=8,
        learn_temperature=True,
    )
    return build_retriever(settings, tokenizer=train_tokenizer(tiny.TEXTS, 300), seed=0, **arguments)


def names_at(tower: nn.Module, level: int) -> set[str]:
    label = {id(parameter): name for name, parameter in tower.named_parameters()}
    return {label[id(parameter)].split(".")[0] for parameter in parameter_levels(tower)[level]}


def test_levels_go_from_the_input_to_the_output_and_hold_every_weight_once() -> None:
    tower = ced()
    assert len(parameter_levels(tower)) == 5
    assert names_at(tower, 0) == {"time_pos_embed", "freq_pos_embed", "init_bn", "patch_embed"}
    assert [names_at(tower, level) for level in (1, 2, 3)] == [{"blocks"}] * 3
    assert names_at(tower, 4) == {"norm"}
    for other in (tower, ResNet38(width_divisor=16).build(), SmallCnn().build()):
        flat = [id(parameter) for level in parameter_levels(other) for parameter in level]
        assert sorted(flat) == sorted(id(parameter) for parameter in other.parameters())
    resnet = ResNet38(width_divisor=16).build()
    assert len(parameter_levels(resnet)) == 6
    assert names_at(resnet, 0) == {"bn0", "conv_block1"}
    assert names_at(resnet, 5) == {"conv_block_after1"}


def test_levels_of_transformers_towers(tmp_path: Path) -> None:
    for settings, checkpoint in ((Sonar, tiny.sonar), (Bert, tiny.bert)):
        tower = settings(checkpoint=str(checkpoint(tmp_path / settings.name))).build()
        levels = parameter_levels(tower)
        assert len(levels) in (3, 4)
        first = {id(parameter) for parameter in levels[0]}
        embeddings = {id(weight) for name, weight in tower.named_parameters() if "embed" in name}
        assert first == embeddings


def test_freezing_levels_trains_the_rest() -> None:
    tower = ced(frozen_layers=2)
    trained = {name for name, parameter in tower.named_parameters() if parameter.requires_grad}
    assert all(name.startswith(("blocks.1", "blocks.2", "norm")) for name in trained)
    assert len(trained) == 26
    for too_many in (5, 9):
        with pytest.raises(
            ValueError, match=f"frozen_layers: got {too_many}; allowed at most 4 of CedTower's 5 levels"
        ):
            ced(frozen_layers=too_many)


def test_a_frozen_tower_stays_in_evaluation_mode_and_has_no_rate() -> None:
    model = retriever(audio=Adaptation(is_frozen=True)).train()
    assert not any(parameter.requires_grad for parameter in model.audio_tower.parameters())
    assert all(parameter.requires_grad for parameter in model.text_tower.parameters())
    assert not model.audio_tower.training
    assert model.text_tower.training
    grouped = {id(parameter) for group in model.parameter_groups(1e-3) for parameter in group["params"]}
    assert grouped == {id(parameter) for parameter in model.parameters() if parameter.requires_grad}


def test_rates_fall_by_depth_and_decay_is_for_matrices() -> None:
    text = Adaptation(learning_rate_scale=0.5, layer_decay=0.1)
    model = retriever(text=text, learned=LearnedSettings(metric="mahalanobis", learn_temperature=True, bias=0.0))
    groups = model.parameter_groups(1.0, weight_decay=0.2)
    found = {id(parameter): group for group in groups for parameter in group["params"]}
    assert sum(len(group["params"]) for group in groups) == len(found) == len(list(model.parameters()))
    tower = model.text_tower
    rates = {name: found[id(parameter)]["lr"] for name, parameter in tower.named_parameters()}
    assert rates["norm.weight"] == pytest.approx(0.5)
    assert rates["blocks.2.attention_in.weight"] == pytest.approx(0.05)
    assert rates["blocks.0.attention_in.weight"] == pytest.approx(0.0005)
    assert rates["embedding.weight"] == pytest.approx(0.00005)
    assert found[id(model.audio_projection.weight)]["lr"] == 1.0
    for name, parameter in model.named_parameters():
        is_matrix = parameter.ndim > 1 and name != "learned.metric"
        assert found[id(parameter)]["weight_decay"] == (0.2 if is_matrix else 0.0), name


def test_low_rank_updates_start_at_the_weights_and_are_all_that_is_trained(tmp_path: Path) -> None:
    plain, updated = ced().eval(), ced(lora_rank=2).eval()
    torch.testing.assert_close(plain(FEATURES, FRAMES).pooled, updated(FEATURES, FRAMES).pooled)
    trained = {name for name, parameter in updated.named_parameters() if parameter.requires_grad}
    assert len(trained) == 3 * 2 * 2
    assert all("lora_" in name and ".attn." in name for name in trained)
    updated(FEATURES, FRAMES).pooled.square().sum().backward()
    # The second factor starts at zero, so the first has no gradient yet; it must be there all the same.
    assert all(parameter.grad is not None for name, parameter in updated.named_parameters() if name in trained)
    sonar = Sonar(checkpoint=str(tiny.sonar(tmp_path / "sonar"))).build()
    adapt(sonar, Adaptation(lora_rank=2, lora_targets=("q_proj",)))
    assert sum("lora_A" in name for name, _ in sonar.named_parameters()) == 2


def test_of_low_rank_updates_nothing_else_of_the_tower_is_handed_on() -> None:
    one, other = (retriever(text=Adaptation(lora_rank=2, lora_targets=("attention_in",))) for _ in range(2))
    with torch.no_grad():
        for parameter in one.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1)
    state = one.trained_state()
    assert all("lora_" in name for name in state if name.startswith("text_tower."))
    other.load_trained_state(state)
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in one.state_dict().items())
    missing = next(iter(state))
    with pytest.raises(ValueError, match=f"trained state: got '{missing}'; allowed exactly what"):
        other.load_trained_state({name: value for name, value in state.items() if name != missing})


def test_low_rank_updates_need_a_linear_layer_to_update() -> None:
    with pytest.raises(
        ValueError, match=r"lora_rank: got 2; allowed 0, or lora_targets .* of SmallCnnTower's linear layers.*: out"
    ):
        adapt(SmallCnn().build(), Adaptation(lora_rank=2))
    with pytest.raises(ValueError, match=r"lora_targets: got 'uot'; allowed endings of .* linear layers: out"):
        adapt(SmallCnn().build(), Adaptation(lora_rank=2, lora_targets=("out", "uot")))
    with pytest.raises(ValueError, match="lora_rank"):
        Adaptation(lora_rank=2, is_frozen=True)


def test_checkpointing_changes_no_gradient(tmp_path: Path) -> None:
    gradients = []
    for is_checkpointing in (False, True):
        tower = ced(activation_checkpointing=is_checkpointing).train()
        tower(FEATURES, FRAMES).pooled.square().sum().backward()
        gradients.append([parameter.grad for parameter in tower.parameters()])
    torch.testing.assert_close(gradients[0], gradients[1])
    gradients = []
    for is_checkpointing in (False, True):
        torch.manual_seed(0)
        resnet = ResNet38(width_divisor=16, dropout=0.2).build()
        adapt(resnet, Adaptation(activation_checkpointing=is_checkpointing))
        # The blocks that are computed again draw the same dropout.
        resnet.train()(FEATURES, FRAMES).pooled.square().sum().backward()
        gradients.append([parameter.grad for parameter in resnet.parameters()])
    torch.testing.assert_close(gradients[0], gradients[1])
    folder = str(tiny.sonar(tmp_path / "sonar"))
    gradients = []
    for is_checkpointing in (False, True):
        sonar = Sonar(checkpoint=folder, dropout=0.0).build()
        adapt(sonar, Adaptation(activation_checkpointing=is_checkpointing))
        sonar.train()
        tokens = pad_tokens(sonar.tokenise(tiny.TEXTS, tiny.LANGUAGES), sonar.pad_token_id)
        sonar(*tokens).pooled.square().sum().backward()
        gradients.append([parameter.grad for parameter in sonar.parameters()])
    torch.testing.assert_close(gradients[0], gradients[1])
    with pytest.raises(ValueError, match=r"adapt\.activation_checkpointing"):
        adapt(SmallCnn().build(), Adaptation(activation_checkpointing=True))


@pytest.mark.parametrize("settings", [Ced(size="tiny", num_blocks=3, chunk_frames=64), ResNet38(width_divisor=16)])
def test_checkpointing_keeps_less_for_the_backward_pass(settings: Any) -> None:
    def saved_bytes(is_checkpointing: bool) -> int:
        tower, saved = settings.build(), [0]

        def save(x: torch.Tensor) -> torch.Tensor:
            saved.append(x.nbytes)
            return x

        adapt(tower, Adaptation(activation_checkpointing=is_checkpointing))
        with torch.autograd.graph.saved_tensors_hooks(save, lambda x: x):
            tower.train()(FEATURES, FRAMES)
        return sum(saved)

    assert saved_bytes(True) < 0.5 * saved_bytes(False)


@pytest.mark.slow
def test_compiling_layers_changes_neither_names_nor_values() -> None:
    plain, compiled = ced().eval(), ced().eval()
    # The tracing is what can go wrong here; generating machine code takes minutes on a CPU.
    compile_layers(compiled, backend="eager")
    assert list(compiled.state_dict()) == list(plain.state_dict())
    for features, frames in ((FEATURES, FRAMES), (FEATURES[:2, :50], torch.tensor([50, 33]))):
        torch.testing.assert_close(compiled(features, frames).pooled, plain(features, frames).pooled)
    with pytest.raises(ValueError, match=r"adapt\.compile: got True"):
        compile_layers(SmallCnn().build())


def test_the_metric_is_brought_back_after_a_step() -> None:
    model = retriever(learned=LearnedSettings(metric="mahalanobis", project_every=2))
    with torch.no_grad():
        model.learned.metric.copy_(torch.diag(torch.tensor([1.0, 2, 3, 4, 5, 6, 7, -8])))
    model.learned.after_step()
    assert torch.linalg.eigvalsh(model.learned.metric).min() < -7
    model.learned.after_step()
    assert torch.linalg.eigvalsh(model.learned.metric).min() > -1e-5


def test_every_tower_is_named_as_it_is_registered() -> None:
    for name, settings in AUDIO_TOWERS.items():
        assert settings.name == name
