"""LAION-CLAP's own checkpoints (one `.pt` with HTS-AT and RoBERTa; Wu et al. 2023) as the ClapModel of transformers.

The file holds only weights: the sizes of the towers are taken from the shapes of its tensors. A tokeniser must be in the same
folder, and optionally a preprocessor_config.json; without one, LAION's published front end is used.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ray_atr.common.settings import refuse
from ray_atr.models import weights

if TYPE_CHECKING:
    from transformers import ClapConfig, ClapFeatureExtractor

BESIDE = (
    "RoBERTa's tokeniser beside the .pt (tokenizer.json, or vocab.json and merges.txt), and a preprocessor_config.json if its "
    "front end is not LAION's"
)
ALLOWED = "LAION-CLAP with HTS-AT and RoBERTa"
HEAD_WIDTH = 64
"""Width of an attention head of every published RoBERTa; the weights do not give the number of heads."""
LAYER_NORM_EPS = 1e-5
"""Epsilon of RoBERTa's layer norms in LAION's code; ClapTextConfig has another default."""
SPEC_SIZE = 256
"""`spec_size` of every published HTS-AT."""
AUDIO = "audio_model.audio_encoder."
NOT_NEEDED = (
    *(f"{AUDIO}{name}." for name in ("spectrogram_extractor", "logmel_extractor", "tscam_conv", "head")),
    "audio_transform.",
    "text_transform.",
)
"""Prefixes of tensors that are not needed: front end, classifier of HTS-AT, and layers that LAION uses only in training."""
RENAMED = {
    r"^text_branch\.": "text_model.",
    r"^audio_branch\.bn0\.": f"{AUDIO}batch_norm.",
    r"^audio_branch\.": AUDIO,
    r"^(audio|text)_projection\.0\.": r"\1_projection.linear1.",
    r"^(audio|text)_projection\.2\.": r"\1_projection.linear2.",
    r"(\.blocks\.\d+\.)attn\.(qkv|relative)": r"\1attention.self.\2",
    r"(\.blocks\.\d+\.)attn\.proj": r"\1attention.output.dense",
    r"(\.blocks\.\d+\.)mlp\.fc1": r"\1intermediate.dense",
    r"(\.blocks\.\d+\.)mlp\.fc2": r"\1output.dense",
    r"(\.blocks\.\d+\.)norm1": r"\1layernorm_before",
    r"(\.blocks\.\d+\.)norm2": r"\1layernorm_after",
}
"""LAION's names -> those of transformers."""


def laion_file(folder: str | os.PathLike[str]) -> Path | None:
    """LAION's `.pt`, if it is the only one of a local folder (`lone_file`): one that is not ML-CLAP's."""
    file = weights.lone_file(folder)
    return None if file is None or weights.is_of_ml_clap(file) else file


def laion_config(file: Path, path: str) -> ClapConfig:
    """The configuration of the model in a file. ValueError if it is no LAION-CLAP with HTS-AT and RoBERTa."""
    from transformers import ClapConfig

    shapes = {name: tuple(value.shape) for name, value in weights.mapped_checkpoint(file, path).items()}
    if shapes.get("text_branch.embeddings.token_type_embeddings.weight", (1,))[0] != 1:
        raise refuse(path, str(file), f"{ALLOWED}; this one's text tower is BERT")
    try:
        return ClapConfig(
            audio_config=_audio_sizes(shapes),
            text_config=_text_sizes(shapes),
            projection_dim=shapes["audio_projection.2.weight"][0],
        )
    except KeyError as error:
        raise refuse(path, str(file), f"{ALLOWED}; it lacks {error.args[0]}") from None


def laion_extractor(config: Any) -> ClapFeatureExtractor:
    """LAION's published front end: 48 kHz, windows of 1,024 samples each 10 ms, mel bands from 50 Hz to 14 kHz, 10 s."""
    from transformers import ClapFeatureExtractor

    return ClapFeatureExtractor(
        feature_size=config.audio_config.num_mel_bins,
        sampling_rate=48_000,
        hop_length=480,
        max_length_s=10,
        fft_window_size=1024,
        frequency_min=50,
        frequency_max=14_000,
        truncation="fusion" if config.audio_config.enable_fusion else "rand_trunc",
        padding="repeatpad",
    )


def laion_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """LAION's tensors by the names of ClapModel; LAION's joint query, key and value are split."""
    state: dict[str, Tensor] = {}
    for name, value in tensors.items():
        new = weights.renamed(name, RENAMED)
        if ".self.qkv." in new:
            parts = zip(("query", "key", "value"), value.chunk(3), strict=True)
            state |= {new.replace(".qkv.", f".{part}."): tensor for part, tensor in parts}
        elif not name.endswith(".attn_mask"):
            # A mask is computed from the sizes.
            state[new] = value
    return state


def _audio_sizes(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """The sizes of HTS-AT, as arguments of ClapAudioConfig."""
    first = "audio_branch.layers.0.blocks.0."
    width, _, patch, _ = shapes["audio_branch.patch_embed.proj.weight"]
    stages = [f"audio_branch.layers.{n}.blocks." for n in range(weights.count_parts(shapes, "audio_branch.layers."))]
    tables = [shapes[f"{stage}0.attn.relative_position_bias_table"] for stage in stages]
    # A table has a row for each difference of two places in a window.
    window = (math.isqrt(shapes[f"{first}attn.relative_position_bias_table"][0]) + 1) // 2
    hidden, features = shapes[f"{first}mlp.fc1.weight"]
    # The mask of a shifted block has an entry for each window of the picture.
    windows = shapes.get("audio_branch.layers.0.blocks.1.attn_mask")
    return {
        "patch_size": patch,
        "patch_stride": [patch, patch],
        "patch_embeds_hidden_size": width,
        "depths": [weights.count_parts(shapes, stage) for stage in stages],
        "num_hidden_layers": len(stages),
        "num_attention_heads": [heads for _, heads in tables],
        "window_size": window,
        "spec_size": SPEC_SIZE if windows is None else math.isqrt(windows[0]) * window * patch,
        "num_mel_bins": shapes["audio_branch.bn0.weight"][0],
        "mlp_ratio": hidden / features,
        "hidden_size": shapes["audio_projection.0.weight"][1],
        "enable_fusion": "audio_branch.patch_embed.mel_conv2d.weight" in shapes,
    }


def _text_sizes(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """The sizes of RoBERTa, as arguments of ClapTextConfig."""
    vocabulary, width = shapes["text_branch.embeddings.word_embeddings.weight"]
    return {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "num_hidden_layers": weights.count_parts(shapes, "text_branch.encoder.layer."),
        "num_attention_heads": max(1, width // HEAD_WIDTH),
        "intermediate_size": shapes["text_branch.encoder.layer.0.intermediate.dense.weight"][0],
        "max_position_embeddings": shapes["text_branch.embeddings.position_embeddings.weight"][0],
        "layer_norm_eps": LAYER_NORM_EPS,
    }
