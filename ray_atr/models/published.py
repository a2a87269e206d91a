"""A published retriever, both towers: a folder of transformers' `ClapModel`, or with LAION-CLAP's or ML-CLAP's `.pt`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from ray_atr.common.override import override
from ray_atr.common.settings import refuse
from ray_atr.models.ml_clap import ml_clap_file, ml_clap_projections, ml_clap_settings
from ray_atr.models.model_settings import ModelSettings
from ray_atr.models.pretrained import load_model, load_tokenizer, read_feature_extractor, read_model_config
from ray_atr.models.tower import AudioTower, TextTower
from ray_atr.models.transformers import Htsat, TransformersAudioTower, TransformersText, TransformersTextTower
from ray_atr.models.weights import is_clap, lone_file

MAX_TOKENS = 77
"""Most tokens of a caption in LAION-CLAP."""


@dataclass(frozen=True, eq=False)
class Published:
    """The parts of a retriever: settings of the model, towers, and the projections' weights."""

    settings: ModelSettings
    audio_tower: AudioTower
    text_tower: TextTower
    projections: dict[str, Tensor]


def is_published(folder: Path) -> bool:
    """Whether a local folder may hold a published retriever: a `ClapModel`, or one `.pt` as its only file of weights."""
    return is_clap(folder) or lone_file(folder) is not None


def read_published(folder: Path) -> Published:
    """The parts of the retriever in a folder: config.json, safetensors, preprocessor_config.json, and a tokeniser; or LAION's
    `.pt` and a tokeniser (`laion_clap`); or ML-CLAP's and a tokeniser (`ml_clap`). ValueError for a missing or broken file.
    """
    if (file := ml_clap_file(folder)) is None:
        return _read_clap(folder)
    settings = published_settings(folder)
    return Published(settings, settings.audio.build(), settings.text.build(), ml_clap_projections(file, "model folder"))


def published_settings(folder: Path) -> ModelSettings:
    """The settings of the retriever in a folder, without the weights. ValueError as in `read_published`."""
    path = "model folder"
    if (file := ml_clap_file(folder)) is not None:
        return override(ModelSettings(), ml_clap_settings(file, path))
    config: Any = read_model_config(folder, path)
    return ModelSettings(
        audio=Htsat(checkpoint=str(folder)),
        text=TransformersText(checkpoint=str(folder), pooling="pooler", max_tokens=MAX_TOKENS),
        embedding_width=int(config.projection_dim),
        projection="mlp",
    )


def _read_clap(folder: Path) -> Published:
    """Both towers of a CLAP.

    Raises ValueError if a file is missing or broken, or if its projections are not two linear layers with a ReLU between.
    Clips longer than its window are cut, or encoded in windows, as `model.windows` says.
    """
    from transformers import ClapModel

    path = "model folder"
    config: Any = read_model_config(folder, path)
    if config.projection_hidden_act != "relu":
        raise refuse(path, config.projection_hidden_act, "a CLAP whose projections have a relu")
    model = load_model(ClapModel, str(folder), config, path=path, skip=(), allowed=None)
    extractor, tokenizer = read_feature_extractor(folder, path), load_tokenizer(folder, config.text_config, path)
    projections = {
        f"{kind}_projection.{place}.{what}": getattr(getattr(getattr(model, f"{kind}_projection"), layer), what)
        for kind in ("audio", "text")
        for layer, place in (("linear1", 0), ("linear2", 2))
        for what in ("weight", "bias")
    }
    temperature = float((-model.logit_scale_t).exp().item())
    settings = replace(published_settings(folder), initial_temperature=temperature)
    audio, text = settings.audio, settings.text
    assert isinstance(audio, Htsat)
    assert isinstance(text, TransformersText)
    towers = (
        TransformersAudioTower(audio, model.audio_model, extractor),
        TransformersTextTower(text, model.text_model, tokenizer),
    )
    return Published(settings, *towers, {name: value.detach() for name, value in projections.items()})
