"""Export of a retriever of HTS-AT and a RoBERTa-like text encoder as a ClapModel of transformers, with renamed weights."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ray_atr.common.settings import refuse
from ray_atr.models.retriever import Retriever
from ray_atr.models.transformers import TransformersAudioTower, TransformersTextTower

if TYPE_CHECKING:
    from transformers import ClapModel, PreTrainedTokenizerBase

TEXT_KINDS = ("roberta", "xlm-roberta", "camembert", "clap_text_model")
"""Types of model whose weights ClapTextModel has under the same names."""
TEXT_OPTIONS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "max_position_embeddings",
    "type_vocab_size",
    "layer_norm_eps",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
)
NEEDED = (
    "model.audio htsat and model.text xlm_roberta (or another of RoBERTa's shape) with model.text.pooling pooler, "
    "compared by cosine; sentence-transformers and onnx take more"
)


def require(retriever: Retriever) -> None:
    """ValueError for a retriever that cannot be a ClapModel, naming what can."""
    audio, text = retriever.audio_tower, retriever.text_tower
    if not is_htsat(audio):
        raise refuse("--to clap", f"model.audio {retriever.settings.audio.name}", NEEDED)
    if not isinstance(text, TransformersTextTower) or text.model.config.model_type not in TEXT_KINDS:
        raise refuse("--to clap", f"model.text {retriever.settings.text.name}", NEEDED)
    if text.pooling != "pooler":
        raise refuse("--to clap", f"model.text.pooling {text.pooling}", NEEDED)
    if retriever.settings.audio_projection == "none":
        raise refuse("--to clap", "model.audio_projection none, where a ClapModel has layers", NEEDED)
    if retriever.distance != "cosine":
        raise refuse("--to clap", "a learned metric, which a ClapModel cannot hold", NEEDED)
    require_htsat(retriever, "clap")


def require_htsat(retriever: Retriever, target: str) -> None:
    """ValueError, naming the format, for an HTS-AT or a projection that a ClapModel and its feature extractor cannot hold."""
    tower, layers = retriever.audio_tower, linear_layers(retriever.audio_projection)
    assert isinstance(tower, TransformersAudioTower)
    if layers and layers[0].out_features != retriever.settings.embedding_width:
        given = f"model.projection {retriever.settings.projection}"
        allowed = (
            "linear, two_linear or mlp: in a ClapModel both layers have model.embedding_width outputs; onnx takes any"
        )
        raise refuse(f"--to {target}", given, allowed)
    seconds = tower.front_end.clip_seconds
    if seconds != int(seconds):
        allowed = "whole seconds, as the feature extractor has; onnx takes any"
        raise refuse(f"--to {target}", f"model.audio.clip_seconds {seconds:g}", allowed)
    if tower.extractor.truncation == "fusion":
        given = "a CLAP with fusion, whose feature extractor takes a random clip of each batch as a longer one"
        raise refuse(f"--to {target}", given, "a CLAP without fusion; onnx and mlflow take both")


def is_htsat(tower: nn.Module) -> bool:
    """Whether a tower is HTS-AT, the audio tower of CLAP."""
    return (
        isinstance(tower, TransformersAudioTower)
        and tower.model_type == "clap_audio_model"
        and tower.pooling == "model"
    )


def write(retriever: Retriever, folder: Path) -> dict[str, Any]:
    """Write the model, its tokeniser and its feature extractor into a folder; returns further entries of export.json."""
    from transformers import ClapTextConfig

    text, audio = retriever.text_tower, retriever.audio_tower
    assert isinstance(text, TransformersTextTower)
    assert isinstance(audio, TransformersAudioTower)
    given = text.model.config
    config = ClapTextConfig(**{name: getattr(given, name) for name in TEXT_OPTIONS})
    model = clap_model(retriever, config)
    # Older checkpoints hold position numbers, which such models make themselves.
    weights = {name: value for name, value in text.model.state_dict().items() if not name.endswith("position_ids")}
    loaded = model.text_model.load_state_dict(weights, strict=False)
    made = {"embeddings.position_ids", "embeddings.token_type_ids"}
    assert not loaded.unexpected_keys, loaded.unexpected_keys
    assert {*loaded.missing_keys} <= made, loaded.missing_keys
    width = retriever.settings.embedding_width
    model.text_projection.load_state_dict(projection_state(retriever.text_projection, width))
    model.save_pretrained(folder)
    stock_tokeniser(retriever).save_pretrained(folder)
    extractor_of(audio).save_pretrained(folder)
    return {}


def extractor_of(audio: TransformersAudioTower) -> Any:
    """The feature extractor of HTS-AT with the tower's own window, up to which it repeats a clip."""
    extractor = copy.deepcopy(audio.extractor)
    extractor.max_length_s, extractor.nb_max_samples = int(audio.front_end.clip_seconds), audio.front_end.clip_samples
    return extractor


def clap_model(retriever: Retriever, text_config: Any) -> ClapModel:
    """A ClapModel with this audio side; its text side is of the configuration and has random weights."""
    from transformers import ClapConfig, ClapModel

    audio = retriever.audio_tower
    assert isinstance(audio, TransformersAudioTower)
    width = retriever.settings.embedding_width
    learned = retriever.learned.log_temperature
    temperature = retriever.learned.settings.temperature if learned is None else float(learned.detach().exp())
    config = ClapConfig(
        text_config=text_config.to_dict(),
        # With the input width of its projection, which published configurations state correctly.
        audio_config={**audio.model.config.to_dict(), "hidden_size": audio.width},
        projection_dim=width,
        projection_hidden_act="relu" if has_relu(retriever.audio_projection) else "linear",
        logit_scale_init_value=1 / temperature,
    )
    with torch.random.fork_rng():
        model = ClapModel(config).eval()
    model.audio_model.load_state_dict(audio.model.state_dict())
    model.audio_projection.load_state_dict(projection_state(retriever.audio_projection, width))
    return model


def projection_state(projection: nn.Module, width: int) -> dict[str, torch.Tensor]:
    """A projection's weights as those of two layers of so many outputs; those that it lacks are the identity."""
    layers: list[tuple[torch.Tensor, torch.Tensor]] = [
        (layer.weight.detach().clone(), layer.bias.detach().clone()) for layer in linear_layers(projection)
    ]
    layers += [(torch.eye(width), torch.zeros(width))] * (2 - len(layers))
    (weight1, bias1), (weight2, bias2) = layers
    return {"linear1.weight": weight1, "linear1.bias": bias1, "linear2.weight": weight2, "linear2.bias": bias2}


def linear_layers(projection: nn.Module) -> list[nn.Linear]:
    """A projection's layers in their order; none for the identity."""
    return [layer for layer in projection.modules() if isinstance(layer, nn.Linear)]


def has_relu(projection: nn.Module) -> bool:
    """Whether a ReLU is between a projection's layers."""
    return any(isinstance(layer, nn.ReLU) for layer in projection.modules())


def stock_tokeniser(retriever: Retriever) -> PreTrainedTokenizerBase:
    """The tokeniser whose `save_pretrained` preserves the tower's longest text and its normalised words.

    Classes of one model, like BertTokenizer, make a new normaliser when they are loaded and would not normalise the words.
    PreTrainedTokenizerFast uses tokenizer.json unchanged.
    """
    from transformers import PreTrainedTokenizerFast

    tower = retriever.text_tower
    assert isinstance(tower, TransformersTextTower)
    tokenizer = tower.tokenizer
    tokenizer.model_max_length = tower.max_tokens
    if not getattr(retriever.settings.text, "plain_words", False):
        return tokenizer
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer,
        model_max_length=tower.max_tokens,
        model_input_names=tokenizer.model_input_names,
        padding_side=tokenizer.padding_side,
        truncation_side=tokenizer.truncation_side,
        **tokenizer.special_tokens_map,
    )
