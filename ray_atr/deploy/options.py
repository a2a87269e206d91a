"""What index, serve and export take. Nothing heavy is imported here: the commands' help reads it."""

from __future__ import annotations

from dataclasses import dataclass

from ray_atr.common.settings import Settings, setting
from ray_atr.evaluation.options import SplitOptions

TARGET_NAMES = ("clap", "sentence-transformers", "onnx", "mlflow")


@dataclass(frozen=True, kw_only=True)
class IndexEncoding(Settings):
    """Where and how an archive is encoded; the rows are the same."""

    batch_size: int = setting(16, "windows that are encoded together", at_least=1)
    ray: str = setting(
        "auto",
        "encode in Ray Data actors. auto: on a cluster (RAY_ADDRESS, a submitted job), or with several GPUs",
        choices=("auto", "always", "never"),
    )
    encoders: int = setting(
        0, "with Ray: actors, each with the retriever and a GPU if there are any; 0: as many as fit", at_least=0
    )


@dataclass(frozen=True, kw_only=True)
class ServerLimits(Settings):
    """What one request may cost."""

    most_megabytes: float = setting(25.0, "largest body of a request (MB)", above=0, at_most=1024)
    most_seconds: float = setting(300.0, "longest sound in a request (s)", above=0)
    decode_seconds: float = setting(10.0, "longest time that reading a request's sound may take (s)", above=0)
    most_waiting: int = setting(256, "requests that may wait; more are answered 503", at_least=1)
    heard_seconds: float = setting(30.0, "longest stretch of a found sound that is sent (s)", above=0, at_most=600)


@dataclass(frozen=True, kw_only=True)
class ExportOptions(SplitOptions):
    """What an export is compared on, and how close it must be."""

    most_clips: int = setting(500, "clips that are compared, from the split's first on", at_least=1)
    most_texts: int = setting(2000, "captions of these clips that are compared", at_least=1)
    tolerance: float = setting(1e-5, "largest difference of any number of a vector that is allowed", above=0)
    int8_text: bool = setting(False, "also write the text graph with weights of 8 bits (onnx)")
