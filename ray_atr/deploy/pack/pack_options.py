"""The settings of a language pack and of its methods. Imports no heavy library, since the command's help reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ray_atr.common.settings import Settings, setting

COMMON: Mapping[str, Any] = {
    "model.audio": "vectors",
    "model.text": "vectors",
    "model.audio_projection": "none",
    "train.precision": "float32",
    "evaluation.validation_captions": 1,
    "evaluation.every_epochs": 5,
    "scaling.workers": 0,
    "scaling.ray_data": False,
    "tracking.mlflow": False,
}
ROBUST: Mapping[str, Any] = {
    **COMMON,
    "model.projection": "mlp",
    "objective.scheme": "kcl",
    "objective.pair": "contrastive",
    "objective.correspondence": "leave_one_out",
    "train.epochs": 20,
    "train.batch_size": 64,
    "train.learning_rate": 2e-3,
    "evaluation.select_by": "text_to_audio/mean/recall_at_1",
}
METHODS: Mapping[str, Mapping[str, Any]] = {
    "m2m": {
        **COMMON,
        "model.projection": "two_linear",
        "objective.scheme": "english",
        "objective.pair": "m2m",
        "train.epochs": 50,
        "train.batch_size": 64,
        "train.learning_rate": 3e-4,
        "train.clip_norm": 0.0,
        "evaluation.select_by": "text_to_audio/eng/recall_at_1",
    },
    "audio": ROBUST,
    "both": {**COMMON, "model.projection": "linear"},
}
"""Method -> its settings by their paths. `both` is solved, not trained. `m2m` has the released settings, except that the rate
decays by a cosine instead of linearly."""


@dataclass(frozen=True, kw_only=True)
class PackOptions(Settings):
    """How a language pack is made."""

    method: str = setting(
        "both",
        "what texts are fitted to: m2m, the space's English text vectors alone; audio, the audio vectors; both",
        choices=tuple(METHODS),
    )
    language: str = setting("eng", "ISO 639 code of captions without a column language")
    onnx: bool = setting(True, "write projection.onnx (extra onnx)")
    seed: int = setting(0, "seed of weights, order, and of the splits where the table has none", at_least=0)
