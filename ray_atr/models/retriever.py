"""The model that is trained: two towers, their projections, and every learned parameter of the objective.

Shapes: N clips or texts, T frames, F mel bands, L tokens, D embedding width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ray_atr.models.audio import AUDIO_TOWERS, SmallCnn
from ray_atr.models.text import TEXT_TOWERS, SmallTransformer
from ray_atr.models.tower import AudioSettings, AudioTower, TextSettings, TextTower
from ray_atr.settings import Settings, refuse, setting

METRICS = ("euclidean", "diagonal", "mahalanobis", "factored")


@dataclass(frozen=True, kw_only=True)
class ModelSettings(Settings):
    """The two towers and what joins them."""

    audio: AudioSettings = setting(default_factory=SmallCnn, help="audio tower", variants=AUDIO_TOWERS)
    text: TextSettings = setting(default_factory=SmallTransformer, help="text tower", variants=TEXT_TOWERS)
    embedding_width: int = setting(128, "width D of the space that audio and text share", at_least=2)
    projection: str = setting(
        "linear",
        "from a tower to the shared space: one linear layer, or two with a ReLU between (mlp)",
        choices=("linear", "mlp"),
    )
    temperature: float = setting(0.07, "temperature of the similarities (its first value, where it is learnt)", above=0)
    learn_temperature: bool = setting(False, "learn the temperature (as its logarithm) instead of keeping it")


class Retriever(nn.Module):
    """Embeds clips and texts into one space, unit norm; owns the temperature and the transport metric."""

    def __init__(
        self,
        audio_tower: AudioTower,
        text_tower: TextTower,
        settings: ModelSettings,
        *,
        metric_kind: str = "euclidean",
        metric_rank: int | None = None,
    ) -> None:
        super().__init__()
        self.settings = settings
        self.audio_tower, self.text_tower = audio_tower, text_tower
        D = settings.embedding_width
        self.audio_projection = _projection(audio_tower.width, D, settings.projection)
        self.text_projection = _projection(text_tower.width, D, settings.projection)
        log_temperature = torch.tensor(math.log(settings.temperature))
        self.log_temperature = nn.Parameter(log_temperature, requires_grad=settings.learn_temperature)
        self.metric_kind, self.metric_rank = metric_kind, metric_rank
        initial = initial_metric(metric_kind, D, metric_rank)
        self.metric = nn.Parameter(initial) if initial is not None else None

    @property
    def temperature(self) -> Tensor:
        """The temperature, a scalar > 0, with gradient where it is learnt."""
        return self.log_temperature.exp()

    def embed_audio(self, features: Tensor, frames: Tensor) -> Tensor:
        """Unit-norm float32 embeddings [N, D] of log-mel frames [N, T, F], of which `frames[n]` count."""
        return self.project_audio(self.audio_tower(features, frames).pooled)

    def embed_text(self, token_ids: Tensor, token_mask: Tensor) -> Tensor:
        """Unit-norm float32 embeddings [N, D] of token ids [N, L] where the mask [N, L] is True."""
        return self.project_text(self.text_tower(token_ids, token_mask).pooled)

    def project_audio(self, pooled: Tensor) -> Tensor:
        """Unit-norm embeddings [N, D] of the audio tower's pooled vectors [N, W]."""
        return nn.functional.normalize(self.audio_projection(pooled).float(), dim=-1)

    def project_text(self, pooled: Tensor) -> Tensor:
        """Unit-norm embeddings [N, D] of the text tower's pooled vectors [N, W]."""
        return nn.functional.normalize(self.text_projection(pooled).float(), dim=-1)


def build_retriever(
    settings: ModelSettings,
    *,
    tokenizer: object | None = None,
    metric_kind: str = "euclidean",
    metric_rank: int | None = None,
    seed: int | None = None,
) -> Retriever:
    """The retriever of the settings. With a seed its weights depend on nothing else, and no generator outside moves.

    `tokenizer` is needed by text towers that train their own vocabulary; `metric_kind` and `metric_rank` come from the
    pair loss.
    """
    with torch.random.fork_rng(enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        return Retriever(
            settings.audio.build(),
            settings.text.build(tokenizer),
            settings,
            metric_kind=metric_kind,
            metric_rank=metric_rank,
        )


def initial_metric(kind: str, D: int, rank: int | None = None) -> Tensor | None:
    """The transport metric's first value: None, a diagonal [D], M [D, D], or its factor L [D, rank] with M = L L^T.

    M = (A + A^T)/2 + I with A small and random (Luong et al. 2024, section 4), made positive semi-definite at once.
    """
    if kind == "euclidean":
        return None
    if kind == "diagonal":
        return torch.ones(D)
    if kind == "factored":
        rank = rank or D
        # The identity where the rank allows it; no direction favoured where it does not.
        return torch.eye(D) if rank >= D else nn.init.orthogonal_(torch.empty(D, rank)) * math.sqrt(D / rank)
    if kind == "mahalanobis":
        A = torch.randn(D, D) * 0.01
        values, vectors = torch.linalg.eigh((A + A.T) / 2 + torch.eye(D))
        return (vectors * values.clamp(min=0)) @ vectors.T
    raise refuse("metric", kind, "one of " + ", ".join(METRICS))


def metric_arguments(pair: Any) -> dict[str, Any]:
    """The metric that a pair loss wants, as `build_retriever`'s arguments; Euclidean for losses without one."""
    return {"metric_kind": getattr(pair, "metric", "euclidean"), "metric_rank": getattr(pair, "metric_rank", None)}


def _projection(width: int, D: int, kind: str) -> nn.Module:
    if kind == "linear":
        return nn.Linear(width, D)
    return nn.Sequential(nn.Linear(width, D), nn.ReLU(), nn.Linear(D, D))
