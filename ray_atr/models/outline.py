"""Checks of settings that depend on a tower's layers or width, before its weights are read."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from ray_atr.common.settings import refuse
from ray_atr.common.storage import Location, file_exists
from ray_atr.models.adaptation import Adaptation, check_adaptation, without_updates
from ray_atr.models.model_settings import ModelSettings
from ray_atr.models.published import published_settings
from ray_atr.models.retriever import Retriever, require_same_names
from ray_atr.models.tower import AudioSettings, AudioTower, TextSettings, TextTower, checkpoint_of
from ray_atr.models.transformers import TransformersAudio
from ray_atr.models.vectors import AudioVectors, TextVectors
from ray_atr.models.weights import SETTINGS_FILE, WEIGHT_FILES, identity_of_checkpoint, local_of, shapes_of_weights

logger = logging.getLogger(__name__)


def check_towers(model: ModelSettings) -> None:
    """ValueError, naming the setting, for training options that a tower cannot do or that have no effect, for vectors that do
    not fit without a projection, for a pooler that an encoder lacks, and for windows that are longer than its model takes.

    A tower is built only for a setting that needs its layers, and on torch's meta device: in milliseconds, without weights.
    """
    towers: tuple[tuple[str, AudioSettings | TextSettings], ...] = (("audio", model.audio), ("text", model.text))
    for kind, settings in towers:
        adapt = settings.adapt
        if adapt.lora_targets and not adapt.lora_rank:
            allowed = "empty with lora_rank=0, which trains the weights of all layers"
            raise refuse(f"model.{kind}.adapt.lora_targets", ",".join(adapt.lora_targets), allowed)
        if adapt.is_frozen and isinstance(settings, AudioVectors | TextVectors):
            raise refuse(f"model.{kind}.adapt.is_frozen", True, f"false for {settings.name}, which has no weights")
        if isinstance(settings, TransformersAudio) and (seconds := settings.clip_seconds) is not None:
            usual = replace(settings, clip_seconds=None).front_end
            # AST cuts the rest of a window without an error; wav2vec 2.0 takes any length.
            if usual.kind != "waveform" and seconds > usual.clip_seconds:
                raise refuse("model.audio.clip_seconds", seconds, f"at most {usual.clip_seconds:g}, or none")
        asks_layers = adapt.lora_rank or adapt.frozen_layers or adapt.activation_checkpointing or adapt.compile
        asks_width = kind == "audio" and model.audio_projection == "none"
        asks_pooler = getattr(settings, "pooling", None) == "pooler"
        if not (asks_layers or asks_width or asks_pooler) or (tower := outline_of(settings)) is None:
            continue
        check_adaptation(tower, adapt, f"model.{kind}.adapt")
        if asks_width:
            model.require_width(tower.width)


def check_weights(settings: AudioSettings | TextSettings) -> None:
    """ValueError if a file of weights on this machine is none of this tower: names and shapes are compared, and no values are
    read. A checkpoint on the hub, and one in the layout of transformers, are left to the training.
    """
    checkpoint = checkpoint_of(settings) or ""
    usual: dict[str, Any] = {"checkpoint": checkpoint, "adapt": settings.adapt}
    # Most trainings leave a shipped tower's sizes as they are.
    is_known = checkpoint.startswith("shipped:") and settings == type(settings)(**usual)
    if settings.checkpoint_files == WEIGHT_FILES and local_of(checkpoint).exists() and not is_known:
        outline_of(settings, has_weights=True)


def outline_of(settings: AudioSettings | TextSettings, *, has_weights: bool = False) -> AudioTower | TextTower | None:
    """A tower's layers on torch's meta device; None if it cannot be built there, so that training alone can tell. With
    `has_weights` it is built as for a training, whose weights are compared by name and shape.
    """
    checkpoint = checkpoint_of(settings)
    identity = () if not checkpoint else tuple(identity_of_checkpoint(checkpoint) or ())
    # A sweep of training options has one tower.
    return _built(replace(settings, adapt=Adaptation(is_frozen=settings.adapt.is_frozen)), identity, has_weights)


@lru_cache(maxsize=8)
def _built(
    settings: AudioSettings | TextSettings, identity: tuple[Any, ...], has_weights: bool
) -> AudioTower | TextTower | None:
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            return settings.build() if has_weights else settings.outline()
    except ValueError:
        raise
    except Exception as error:  # noqa: BLE001 (a tower of one's own may do anything with its weights)
        logger.debug("%s was not built on the meta device: %s", settings.name, error)
        return None


def check_start(model: ModelSettings, folder: Location, path: str, given: str) -> None:
    """ValueError, naming the setting at `path`, if the weights of a saved or published retriever do not fit towers and
    projections of these settings. Names and shapes are compared: no weights are read. Low-rank updates fit any.
    """
    needed = _shapes(model)
    if needed is None:
        return
    if file_exists(folder / SETTINGS_FILE):
        stored = without_updates(shapes_of_weights(folder))
    else:
        assert isinstance(folder, Path), "a published retriever is on this machine"
        try:
            stored = _shapes(published_settings(folder)) or {}
        except ValueError as error:
            # It names settings of its towers, which nobody gave.
            raise ValueError(f"{path}: {error}") from None
    if model.text.trained_vocabulary:
        # The vocabulary is the saved one's.
        needed |= {name: stored.get(name, needed[name]) for name in needed if name == "text_tower.embedding.weight"}
    require_same_names(path, given, needed, stored)


def _shapes(model: ModelSettings) -> dict[str, tuple[int, ...]] | None:
    """The shapes of a retriever's weights by name, low-rank updates left out; None if a tower cannot be built without its
    weights.
    """
    audio, text = outline_of(model.audio), outline_of(model.text)
    if not isinstance(audio, AudioTower) or not isinstance(text, TextTower):
        return None
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        return {name: tuple(value.shape) for name, value in Retriever(audio, text, model).state_dict().items()}
