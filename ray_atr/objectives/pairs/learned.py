"""What is learned besides the towers: a temperature, a transport metric, a bias.

A pair loss declares what it learns (`PairLoss.learns`), a retriever holds the parameters (`LearnedParameters`), and
their values reach every loss as one argument (`Learned`). A Mahalanobis metric M is projected to the positive
semi-definite ones after each optimiser step (Luong et al. 2024, section 3.2); a factored one, M = L L^T, needs no
projection.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ray_atr.common.settings import Settings, refuse, setting

METRICS = ("euclidean", "diagonal", "mahalanobis", "factored")


@dataclass(frozen=True, eq=False)
class Learned:
    """Values that take the place of a pair loss's own settings; None: the setting holds.

    temperature  scalar > 0: divides the similarities. bias: scalar, added to every logit.
    metric       of learning to match: [D] diagonal, [D, D] mahalanobis, [D, rank] factored.

    When: temperature, bias or metric are parameters of a loop of your own. Else the settings hold.
    Related: `LearnedParameters` has them as a module.

    >>> import torch
    >>> Learned(temperature=torch.tensor(0.07)).tau(0.05)
    tensor(0.0700)
    """

    temperature: Tensor | None = None
    metric: Tensor | None = None
    bias: Tensor | None = None

    def tau(self, setting: float) -> float | Tensor:
        """The temperature that counts: the learned one, or a pair loss's setting."""
        return setting if self.temperature is None else self.temperature

    def to(self, dtype: torch.dtype) -> Learned:
        """The values in this number type, with gradient."""
        return Learned(
            *(None if value is None else value.to(dtype) for value in (self.temperature, self.metric, self.bias))
        )


NOTHING_LEARNED = Learned()


@dataclass(frozen=True, kw_only=True)
class LearnedSettings(Settings):
    """What a pair loss learns, and from which first values."""

    temperature: float = setting(0.07, "first value of the temperature, if it is learned", above=0)
    learn_temperature: bool = setting(False, "learn the temperature")
    metric: str = setting("euclidean", "kind of transport metric; euclidean learns nothing", choices=METRICS)
    metric_rank: int | None = setting(None, "columns of a factored metric; none: the embedding width", at_least=1)
    project_every: int = setting(
        1, "optimiser steps between projections to the positive semi-definite metrics", at_least=1
    )
    bias: float | None = setting(None, "first value of the bias; none: it is not learned")


class LearnedParameters(nn.Module):
    """The parameters of the values that are learned, for embeddings of width D."""

    def __init__(self, settings: LearnedSettings, D: int) -> None:
        super().__init__()
        self.settings = settings
        # The logarithm is learned, so that the temperature stays above 0.
        self.log_temperature = _parameter(math.log(settings.temperature) if settings.learn_temperature else None)
        self.metric = _parameter(initial_metric(settings.metric, D, settings.metric_rank))
        self.bias = _parameter(settings.bias)
        # A buffer, so that a resumed run projects at the same steps.
        self.register_buffer("num_steps", torch.zeros((), dtype=torch.int64))
        self.num_steps: Tensor

    def values(self) -> Learned:
        """The values as they are now, with gradient."""
        temperature = None if self.log_temperature is None else self.log_temperature.exp()
        return Learned(temperature=temperature, metric=self.metric, bias=self.bias)

    def after_step(self) -> None:
        """Project the metric to the positive semi-definite ones. Call it after every optimiser step."""
        if self.metric is None:
            return
        self.num_steps += 1
        if int(self.num_steps) % self.settings.project_every == 0:
            project_metric(self.metric.data, self.settings.metric)


def _parameter(first: float | Tensor | None) -> nn.Parameter | None:
    return None if first is None else nn.Parameter(torch.as_tensor(first, dtype=torch.float32))


def initial_metric(kind: str, D: int, rank: int | None = None) -> Tensor | None:
    """The metric's first value, or None; M = (A + A^T)/2 + I with a small random A (Luong et al. 2024, A.1)."""
    if kind == "euclidean":
        return None
    if kind == "diagonal":
        return torch.ones(D)
    if kind == "factored":
        # The identity if the rank allows it; no direction is favoured if it does not.
        rank = rank or D
        return torch.eye(D) if rank >= D else nn.init.orthogonal_(torch.empty(D, rank)) * math.sqrt(D / rank)
    A = torch.randn(D, D) * 0.01
    M = (A + A.T) / 2 + torch.eye(D)
    project_metric(M, kind)
    return M


@torch.no_grad()
def project_metric(metric: Tensor, kind: str) -> None:
    """Bring the metric, in place, to the nearest positive semi-definite one.

    mahalanobis [D, D]: symmetrised, negative eigenvalues set to 0. diagonal [D]: clamped at 0. factored: left alone.
    """
    if kind == "diagonal":
        metric.clamp_(min=0)
    elif kind == "mahalanobis":
        metric.copy_((metric + metric.T) / 2)
        # A factorisation that succeeds shows that no eigenvalue is negative, at a quarter of the cost.
        if int(torch.linalg.cholesky_ex(metric).info) != 0:
            values, vectors = torch.linalg.eigh(metric)
            metric.copy_((vectors * values.clamp(min=0)) @ vectors.T)
            metric.copy_((metric + metric.T) / 2)
    elif kind != "factored":
        raise refuse("metric", kind, "diagonal, mahalanobis or factored")


@torch.no_grad()
def metric_scalars(metric: Tensor, kind: str) -> dict[str, Tensor]:
    """Scalars to log: the smallest eigenvalue of M, and its rank (eigenvalues above 1e-6 of the largest)."""
    if kind == "diagonal":
        values = metric.sort().values
    elif kind == "mahalanobis":
        values = torch.linalg.eigvalsh((metric + metric.T) / 2)
    elif kind == "factored":
        values = torch.linalg.svdvals(metric).square().flip(0)
        values = torch.cat([values.new_zeros(metric.shape[0] - len(values)), values])
    else:
        raise refuse("metric", kind, "diagonal, mahalanobis or factored")
    rank = (values > 1e-6 * values.abs().max()).sum()
    return {"metric_smallest_eigenvalue": values[0], "metric_rank": rank.to(values.dtype)}
