"""How a tower is adapted in training: what is frozen, which learning rate each depth has, low-rank updates."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import nn

from ray_atr.common.settings import Settings, refuse, setting

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Adaptation(Settings):
    """Training options of one tower."""

    is_frozen: bool = setting(False, "do not train this tower: it then encodes a data set once")
    frozen_layers: int = setting(
        0,
        "levels of depth, from the input, that are not trained: 1 is the part before the first layer (embeddings)",
        at_least=0,
    )
    learning_rate_scale: float = setting(1.0, "multiplies the learning rate for this tower", above=0)
    layer_decay: float = setting(
        1.0, "multiplies the learning rate once more for every level below the last", above=0, at_most=1
    )
    lora_rank: int = setting(
        0, "train low-rank updates of this rank instead of the weights; 0 trains the weights", at_least=0
    )
    lora_alpha: int = setting(16, "the low-rank update is scaled by lora_alpha / lora_rank", at_least=1)
    lora_targets: tuple[str, ...] = setting(
        (), "endings of the names of the linear layers that get an update; empty: all whose names contain 'att'"
    )
    activation_checkpointing: bool = setting(False, "recompute layers in the backward pass: less memory, more time")
    compile: bool = setting(False, "compile the tower with torch.compile")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("lora_rank", "frozen_layers"):
            if self.is_frozen and getattr(self, name):
                raise refuse(name, getattr(self, name), "0 if is_frozen is true: a frozen tower is not trained")

    @property
    def updates(self) -> tuple[Any, ...]:
        """What distinguishes low-rank updates from others; those of towers that have none are the same."""
        return (self.lora_rank, self.lora_alpha, self.lora_targets) if self.lora_rank else ()


def adapt(tower: nn.Module, settings: Adaptation, path: str = "adapt", *, compiles: bool = True) -> None:
    """Applies the settings to the tower, in place: low-rank updates, freezing, checkpointing, compilation (if `compiles`).
    ValueError, with the `path` of the settings, for what the tower does not have.
    """
    if settings.lora_rank:
        targets = layers_of_lora(tower, settings, path)
        # Importing peft takes ten seconds, and nothing else needs it.
        from peft import LoraConfig, inject_adapter_in_model

        # Everything else is frozen.
        config = LoraConfig(r=settings.lora_rank, lora_alpha=settings.lora_alpha, target_modules=targets)
        inject_adapter_in_model(config, tower)
    if settings.is_frozen:
        tower.requires_grad_(False)
    elif settings.frozen_layers:
        for parameter in itertools.chain(*first_levels(tower, settings, path)):
            parameter.requires_grad_(False)
    if settings.activation_checkpointing:
        checkpoint_activations(tower, path)
    if settings.compile and compiles:
        compile_layers(tower, path)


def check_adaptation(tower: nn.Module, settings: Adaptation, path: str) -> None:
    """The ValueErrors of `adapt`, without its work. The tower may be on torch's meta device; it is not used for anything else."""
    if settings.lora_rank:
        layers_of_lora(tower, settings, path)
    if settings.frozen_layers:
        first_levels(tower, settings, path)
    if settings.activation_checkpointing:
        checkpoint_activations(tower, path)
    if settings.compile:
        layers_to_compile(tower, path)


def layers_of_lora(tower: nn.Module, settings: Adaptation, path: str) -> list[str]:
    """The names of the linear layers that get a low-rank update. ValueError if there are none, or for an unknown ending."""
    linear = [name for name, module in tower.named_modules() if isinstance(module, nn.Linear)]
    endings, kind = settings.lora_targets, type(tower).__name__
    targets = [name for name in linear if (name.endswith(endings) if endings else "att" in name)]
    unknown = tuple(ending for ending in endings if not any(name.endswith(ending) for name in linear))
    has = ", ".join(linear[:6]) or "it has none"
    if unknown:
        raise refuse(f"{path}.lora_targets", ",".join(unknown), f"endings of {kind}'s linear layers: {has}")
    if not targets:
        allowed = (
            f"0, or lora_targets with endings of {kind}'s linear layers, of which none has 'att' in its name: {has}"
        )
        raise refuse(f"{path}.lora_rank", settings.lora_rank, allowed)
    return targets


def first_levels(tower: nn.Module, settings: Adaptation, path: str) -> list[list[nn.Parameter]]:
    """The parameters of the levels that are not trained. ValueError if none is left to train."""
    levels = parameter_levels(tower)
    if settings.frozen_layers >= len(levels):
        most = f"at most {len(levels) - 1} of {type(tower).__name__}'s {len(levels)} levels; is_frozen freezes all"
        raise refuse(f"{path}.frozen_layers", settings.frozen_layers, most)
    return levels[: settings.frozen_layers]


def merge_updates(tower: nn.Module, settings: Adaptation) -> None:
    """Make the tower's low-rank updates, if it has any, part of its weights, in place."""
    if not settings.lora_rank:
        return
    from peft.tuners.lora import LoraLayer

    for name, module in list(tower.named_modules()):
        if isinstance(module, LoraLayer):
            module.merge(safe_merge=True)
            tower.set_submodule(name, module.get_base_layer())


def without_updates(weights: Mapping[str, T]) -> dict[str, T]:
    """Weights, or their shapes, by the names that they have in a tower without low-rank updates; the updates are left out."""
    return {name.replace(".base_layer.", "."): value for name, value in weights.items() if ".lora_" not in name}


def compile_layers(tower: nn.Module, path: str = "adapt", *, backend: str = "inductor") -> None:
    """Compile each repeated layer, in place: one short compilation is used for all of them, at any length of a batch."""
    for layer in layers_to_compile(tower, path):
        layer.compile(dynamic=True, backend=backend)


def layers_to_compile(tower: nn.Module, path: str) -> list[nn.Module]:
    """The tower's repeated layers. ValueError if it has none."""
    layers = repeated_layers(tower)
    if not layers:
        raise refuse(f"{path}.compile", True, f"false for {type(tower).__name__}, which has no repeated layers")
    return layers


def repeated_layers(tower: nn.Module) -> list[nn.Module]:
    """The layers in a tower's module lists that have submodules, outer ones first."""
    stacks = [module for module in tower.modules() if isinstance(module, nn.ModuleList)]
    return [layer for stack in stacks for layer in stack if list(layer.children())]


def checkpoint_activations(tower: nn.Module, path: str = "adapt") -> None:
    """Make the tower recompute its layers in the backward pass. ValueError for a tower that cannot."""
    for module in tower.modules():
        enable = getattr(module, "gradient_checkpointing_enable", None)
        # A model of transformers says whether its layers can be recomputed; without that, the method raises an error.
        if callable(enable) and getattr(module, "supports_gradient_checkpointing", True):
            enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            return
    if not isinstance(getattr(tower, "is_checkpointing", None), bool):
        allowed = f"false for {type(tower).__name__}, which has no such layers"
        raise refuse(f"{path}.activation_checkpointing", True, allowed)
    setattr(tower, "is_checkpointing", True)  # noqa: B010 (nn.Module's declared attribute type has no bool)


_LAYER = re.compile(r"(?:^|\.)(?:layers?|blocks|convolutions|norms)\.?(\d+)\.")


def parameter_levels(tower: nn.Module) -> list[list[nn.Parameter]]:
    """The tower's parameters by depth, from the input: those before the numbered layers, each layer, those after them."""
    named = list(tower.named_parameters())
    numbers = [int(match.group(1)) if (match := _LAYER.search(name)) else None for name, _ in named]
    known_levels = [number for number in numbers if number is not None]
    if not known_levels:
        return [[parameter for _, parameter in named]]
    levels: list[list[nn.Parameter]] = [[] for _ in range(max(known_levels) + 3)]
    position = 0
    for (_, parameter), number in zip(named, numbers, strict=True):
        if number is not None:
            position = number + 1
        levels[position if number is not None or position == 0 else -1].append(parameter)
    return [level for level in levels if level]
