"""The settings of an export. Imports no heavy library, since the command's help reads it."""

from __future__ import annotations

from dataclasses import dataclass

from ray_atr.common.settings import setting
from ray_atr.evaluation.options import SplitOptions

TARGET_NAMES = ("clap", "sentence-transformers", "onnx", "mlflow")


@dataclass(frozen=True, kw_only=True)
class ExportOptions(SplitOptions):
    """Clips and texts on which an export is compared, and the tolerance."""

    most_clips: int = setting(500, "number of clips that are compared: the first ones of the split", at_least=1)
    most_texts: int = setting(2000, "number of captions of these clips that are compared", at_least=1)
    tolerance: float = setting(1e-5, "largest allowed difference of a vector's components", above=0)
    int8_text: bool = setting(False, "also write the text graph with 8-bit weights (onnx)")
