"""Export of a retriever as a SentenceTransformer of that library's own modules: by default, version 6 opens no others."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ray_atr.common.settings import refuse, require_extra
from ray_atr.deploy.export.clap import (
    clap_model,
    extractor_of,
    has_relu,
    is_htsat,
    linear_layers,
    require_htsat,
    stock_tokeniser,
)
from ray_atr.models.onnx_graph import errors_alone
from ray_atr.models.retriever import Retriever
from ray_atr.models.transformers import TransformersAudioTower, TransformersTextTower

EXTRA = "sentence-transformers"
AUDIO_NEEDED = "model.audio ast, htsat or transformers (AST or CLAP); as_sentence_transformer takes any, onnx most"
TEXT_NEEDED = "model.text bert, labse, xlm_roberta or transformers; as_sentence_transformer takes any, onnx most"


def require(retriever: Retriever) -> None:
    """ValueError for a retriever with towers for which that library has no module, naming what can."""
    require_extra("sentence_transformers", EXTRA, "--to sentence-transformers")
    audio, text = retriever.audio_tower, retriever.text_tower
    if not isinstance(audio, TransformersAudioTower):
        raise refuse("--to sentence-transformers", f"model.audio {retriever.settings.audio.name}", AUDIO_NEEDED)
    if audio.front_end.kind == "waveform" or (audio.model_type == "clap_audio_model" and not is_htsat(audio)):
        # The library pads the waveforms of a batch, so a vector would depend on the other clips.
        raise refuse("--to sentence-transformers", f"{audio.model_type} with pooling {audio.pooling}", AUDIO_NEEDED)
    if is_htsat(audio):
        require_htsat(retriever, "sentence-transformers")
    if not isinstance(text, TransformersTextTower):
        raise refuse("--to sentence-transformers", f"model.text {retriever.settings.text.name}", TEXT_NEEDED)
    if text.language_tags:
        raise refuse("--to sentence-transformers", "language tags, which that library cannot choose", TEXT_NEEDED)
    if text.model.config.model_type == "clap_text_model":
        given = "CLAP's text encoder, which that library opens only in a ClapModel"
        raise refuse("--to sentence-transformers", given, f"--to clap; or {TEXT_NEEDED}")


def write(retriever: Retriever, folder: Path) -> dict[str, Any]:
    """Write the model into a folder; returns further entries of export.json."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Router

    # Without its lines about a pooler that the model has no use for.
    with errors_alone("transformers"), tempfile.TemporaryDirectory() as parts:
        text = _text_modules(retriever, Path(parts) / "text")
        audio = _audio_modules(retriever, Path(parts) / "audio")
        routes: Any = {"text": [*text, *_ranked(retriever)], "audio": [*audio, *_ranked(retriever)]}
        # Both libraries use the names cosine and euclidean.
        similarity: Any = retriever.distance
        model = SentenceTransformer(
            modules=[Router(routes, default_route="text")], similarity_fn_name=similarity, device="cpu"
        )
        model.save_pretrained(str(folder), create_model_card=False)
    return {}


def _text_modules(retriever: Retriever, folder: Path) -> list[nn.Module]:
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    tower = retriever.text_tower
    assert isinstance(tower, TransformersTextTower)
    tower.model.save_pretrained(folder)
    stock_tokeniser(retriever).save_pretrained(folder)
    if tower.pooling == "pooler":
        modules = [_transformer(folder, "text", "forward", "pooler_output", "sentence_embedding")]
    else:
        modules = [Transformer(str(folder)), Pooling(tower.width, pooling_mode=tower.pooling)]
    return [*modules, *_projected(retriever.text_projection)]


def _audio_modules(retriever: Retriever, folder: Path) -> list[nn.Module]:
    from sentence_transformers.sentence_transformer.modules import Pooling

    tower = retriever.audio_tower
    assert isinstance(tower, TransformersAudioTower)
    (extractor_of(tower) if is_htsat(tower) else tower.extractor).save_pretrained(folder)
    if is_htsat(tower):
        # The library opens CLAP's audio tower only as part of a complete model, so its text side is made small.
        from transformers import ClapTextConfig

        small = ClapTextConfig(
            vocab_size=4, hidden_size=4, num_hidden_layers=1, num_attention_heads=1, intermediate_size=4
        )
        clap_model(retriever, small).save_pretrained(folder)
        return [_transformer(folder, "audio", "get_audio_features", "pooler_output", "sentence_embedding")]
    tower.model.save_pretrained(folder)
    if tower.pooling == "model":
        modules = [_transformer(folder, "audio", "forward", "pooler_output", "sentence_embedding")]
    else:
        modules = [_transformer(folder, "audio", "forward", "last_hidden_state", "token_embeddings")]
        modules.append(Pooling(tower.width, pooling_mode="mean"))
    return [*modules, *_projected(retriever.audio_projection)]


def _transformer(folder: Path, modality: str, method: str, output: str, name: str) -> nn.Module:
    from sentence_transformers.base.modules import Transformer

    config = {modality: {"method": method, "method_output_name": output}}
    return Transformer(str(folder), modality_config=config, module_output_name=name)


def _projected(projection: nn.Module) -> list[nn.Module]:
    """The layers from a tower to unit vectors of the shared space."""
    from sentence_transformers.base.modules import Dense, Normalize

    layers, is_linear_throughout = linear_layers(projection), not has_relu(projection)
    modules: list[nn.Module] = []
    for layer in layers:
        is_linear = layer is layers[-1] or is_linear_throughout
        modules.append(
            Dense(
                layer.in_features,
                layer.out_features,
                activation_function=nn.Identity() if is_linear else nn.ReLU(),
                init_weight=layer.weight.detach().clone(),
                init_bias=layer.bias.detach().clone(),
            )
        )
    return [*modules, Normalize()]


def _ranked(retriever: Retriever) -> list[nn.Module]:
    """The layer that makes Euclidean distances those of the learned metric; none for cosine."""
    from sentence_transformers.base.modules import Dense

    root = metric_root(retriever)
    if root is None:
        return []
    width, rank = root.shape
    return [Dense(width, rank, bias=False, activation_function=nn.Identity(), init_weight=root.T.contiguous())]


def metric_root(retriever: Retriever) -> Tensor | None:
    """R [D, r] with M = R R^T, which maps unit rows to vectors that rank by Euclidean distance; None for a ranking by cosine."""
    if retriever.distance == "cosine":
        return None
    return retriever.vectors(torch.eye(retriever.settings.embedding_width)).detach().clone()
