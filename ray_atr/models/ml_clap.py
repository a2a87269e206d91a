"""ML-CLAP's checkpoints (Yan et al. 2024: CED and SONAR, one `.pt`), on whose code and weights ATRI's trainings start.

The file holds the weights of both towers, of two projections and of the temperature. CED's tensors have their published
names; SONAR's are those of fairseq2 and get the names of M2M100's encoder of transformers here. NLLB's tokeniser must lie
beside it. The released code reads captions in lower case and without punctuation (`model.text.plain_words`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ray_atr.common.settings import refuse
from ray_atr.models import weights
from ray_atr.models.ced import PATCH, SIZES, Ced

if TYPE_CHECKING:
    from transformers import M2M100Config

NLLB_BESIDE = "NLLB's tokeniser beside the .pt (tokenizer.json, or sentencepiece.bpe.model)"
ALLOWED = "a checkpoint of ML-CLAP with CED and SONAR"
TEXT = "text_encoder.model."
MAX_TOKENS = 512
"""Most tokens of a text in SONAR."""
MAX_POSITIONS = 1024
HEAD_WIDTH = 64
"""Width of each of SONAR's 16 attention heads; the weights do not give their number."""
CONTROL = (2, 0, 3, 1)
"""Rows of fairseq2's table (pad, unknown, begin, end) in the order of NLLB's tokeniser (begin, pad, end, unknown)."""
RENAMED = {
    r"^encoder_frontend\.embed\.": "embed_tokens.",
    r"^encoder\.(layers\.\d+\.)": r"\1",
    r"\.self_attn\.output_proj\.": ".self_attn.out_proj.",
    r"\.ffn\.inner_proj\.": ".fc1.",
    r"\.ffn\.output_proj\.": ".fc2.",
    r"\.ffn_layer_norm\.": ".final_layer_norm.",
}
"""fairseq2's names -> those of transformers."""
NOT_NEEDED = ("encoder_frontend.pos_encoder.",)
"""The table of positions is computed."""


def ml_clap_file(folder: str | os.PathLike[str]) -> Path | None:
    """ML-CLAP's `.pt`, if it is the only one of a local folder."""
    file = weights.lone_file(folder)
    return file if file is not None and weights.is_of_ml_clap(file) else None


def ml_clap_settings(file: Path, path: str) -> dict[str, Any]:
    """Settings of a model, by path, for the parts in a file. ValueError if a part is missing."""
    tensors = weights.mapped_checkpoint(file, path)
    try:
        # [1, width, 1, columns of patches]
        _, width, _, columns = tensors["audio_encoder.model.time_pos_embed"].shape
        sizes = [size for size, (first, _) in SIZES.items() if first == width]
        if not sizes:
            raise refuse(path, str(file), f"{ALLOWED} of a published size, not of width {width}")
        # The published tower takes a few frames more than its last complete patch.
        usual = Ced().chunk_frames
        return {
            "audio": "ced",
            "audio.size": sizes[0],
            "audio.checkpoint": str(file),
            "audio.num_blocks": weights.count_parts(tensors, "audio_encoder.model.blocks."),
            "audio.chunk_frames": usual if columns == usual // PATCH else columns * PATCH,
            "text": "sonar",
            "text.checkpoint": str(file.parent),
            "text.max_tokens": MAX_TOKENS,
            "text.plain_words": True,
            "projection": "mlp",
            "embedding_width": tensors["audio_proj.2.weight"].shape[0],
            "initial_temperature": float(tensors["temperature"]),
        }
    except KeyError as error:
        raise refuse(path, str(file), f"{ALLOWED}; it lacks {error.args[0]}") from None


def ml_clap_projections(file: Path, path: str) -> dict[str, Tensor]:
    """The weights of both projections by a retriever's names."""
    tensors = weights.mapped_checkpoint(file, path)
    pattern = re.compile(r"^(audio|text)_proj\.(0|2)\.(weight|bias)$")
    named = ((pattern.match(name), value) for name, value in tensors.items())
    return {f"{match[1]}_projection.{match[2]}.{match[3]}": value.clone() for match, value in named if match}


def sonar_config(file: Path, path: str) -> M2M100Config:
    """The configuration of SONAR's encoder in a file. ValueError if a part is missing."""
    from transformers import M2M100Config

    tensors = weights.mapped_checkpoint(file, path)
    try:
        vocabulary, width = tensors[f"{TEXT}encoder_frontend.embed.weight"].shape
        hidden = tensors[f"{TEXT}encoder.layers.0.ffn.inner_proj.weight"].shape[0]
    except KeyError as error:
        raise refuse(path, str(file), f"{ALLOWED}; it lacks {error.args[0]}") from None
    return M2M100Config(
        vocab_size=vocabulary,
        d_model=width,
        encoder_layers=weights.count_parts(tensors, f"{TEXT}encoder.layers."),
        encoder_attention_heads=max(1, width // HEAD_WIDTH),
        encoder_ffn_dim=hidden,
        decoder_layers=0,
        max_position_embeddings=MAX_POSITIONS,
        dropout=0.1,
        attention_dropout=0.1,
        activation_dropout=0.1,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
    )


def sonar_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """SONAR's tensors of a checkpoint by the names of M2M100's encoder, with embedding rows in the order of NLLB's tokeniser."""
    renamed = {
        weights.renamed(name.removeprefix(TEXT), RENAMED): value
        for name, value in tensors.items()
        if name.startswith(TEXT)
    }
    table = renamed.get("embed_tokens.weight")
    if table is not None:
        renamed["embed_tokens.weight"] = torch.cat([table[list(CONTROL)], table[len(CONTROL) :]])
    return renamed
