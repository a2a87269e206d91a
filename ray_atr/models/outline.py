"""Checks of settings that depend on a tower's layers or width, before its weights are read."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch

from ray_atr.models.adaptation import Adaptation, check_adaptation
from ray_atr.models.model_settings import ModelSettings
from ray_atr.models.tower import AudioSettings, AudioTower, TextSettings, TextTower, checkpoint_of
from ray_atr.models.weights import identity_of_checkpoint

logger = logging.getLogger(__name__)


def check_towers(model: ModelSettings) -> None:
    """ValueError, naming the setting, for training options that a tower cannot do, and for vectors that do not fit without a
    projection. A tower is built only if it has such a setting, and on torch's meta device: in milliseconds, without weights.
    """
    towers: tuple[tuple[str, AudioSettings | TextSettings], ...] = (("audio", model.audio), ("text", model.text))
    for kind, settings in towers:
        adapt = settings.adapt
        asks_layers = adapt.lora_rank or adapt.frozen_layers or adapt.activation_checkpointing or adapt.compile
        asks_width = kind == "audio" and model.audio_projection == "none"
        if not (asks_layers or asks_width) or (tower := outline_of(settings)) is None:
            continue
        check_adaptation(tower, adapt, f"model.{kind}.adapt")
        if asks_width:
            model.require_width(tower.width)


def outline_of(settings: AudioSettings | TextSettings) -> AudioTower | TextTower | None:
    """A tower's layers on torch's meta device; None if it cannot be built there, so that training alone can tell."""
    checkpoint = checkpoint_of(settings)
    identity = () if not checkpoint else tuple(identity_of_checkpoint(checkpoint) or ())
    # A sweep of training options has one tower.
    return _outlined(replace(settings, adapt=Adaptation(is_frozen=settings.adapt.is_frozen)), identity)


@lru_cache(maxsize=8)
def _outlined(settings: AudioSettings | TextSettings, identity: tuple[Any, ...]) -> AudioTower | TextTower | None:
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            return settings.outline()
    except ValueError:
        raise
    except Exception as error:  # noqa: BLE001 (a tower of one's own may do anything with its weights)
        logger.debug("%s was not built without its weights: %s", settings.name, error)
        return None
