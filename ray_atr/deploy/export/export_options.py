"""What an export is compared on. Nothing heavy is imported here: the command's help reads it."""

from __future__ import annotations

from dataclasses import dataclass

from ray_atr.common.settings import Settings, setting

TARGET_NAMES = ("clap", "sentence-transformers", "onnx", "mlflow")


@dataclass(frozen=True, kw_only=True)
class ExportOptions(Settings):
    """What an export is compared on, and how close it must be."""

    data: str = setting(
        "",
        "folder or URL of a prepared data set, or `soundscapes`; unset: what the checkpoint was trained on",
        path="always",
        words=("soundscapes",),
    )
    split: str = setting("", "split whose clips and captions are embedded by both; unset: the test split")
    most_clips: int = setting(500, "clips that are compared, from the split's first on", at_least=1)
    most_texts: int = setting(2000, "captions of these clips that are compared", at_least=1)
    tolerance: float = setting(1e-5, "largest difference of any number of a vector that is allowed", above=0)
    int8_text: bool = setting(False, "also write the text graph with weights of 8 bits (onnx)")
