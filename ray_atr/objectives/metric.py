"""A learned Mahalanobis metric: its first value, its projection to the positive semi-definite ones, and how it fares.

Luong et al. 2024, section 3.2 project M after each optimiser step. A factored metric M = L L^T needs no projection.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ray_atr.settings import refuse

METRICS = ("euclidean", "diagonal", "mahalanobis", "factored")


def initial_metric(kind: str, D: int, rank: int | None = None) -> Tensor | None:
    """The transport metric's first value: None, a diagonal [D], M [D, D], or its factor L [D, rank] with M = L L^T.

    M = (A + A^T)/2 + I with A small and random (Luong et al. 2024, A.1), made positive semi-definite at once.
    """
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

    mahalanobis [D, D]: symmetrised, negative eigenvalues set to 0. A Cholesky factorisation that succeeds shows that there
    are none, at a quarter of the cost. diagonal [D]: clamped at 0. factored [D, rank]: nothing to do.
    Call it after initialisation and after every `project_every` optimiser steps.
    """
    if kind == "diagonal":
        metric.clamp_(min=0)
    elif kind == "mahalanobis":
        metric.copy_((metric + metric.T) / 2)
        if int(torch.linalg.cholesky_ex(metric).info) != 0:
            values, vectors = torch.linalg.eigh(metric)
            metric.copy_((vectors * values.clamp(min=0)) @ vectors.T)
            metric.copy_((metric + metric.T) / 2)
    elif kind != "factored":
        raise refuse("metric", kind, "diagonal, mahalanobis or factored")


@torch.no_grad()
def metric_scalars(metric: Tensor, kind: str) -> dict[str, Tensor]:
    """Smallest eigenvalue of M and its numerical rank (eigenvalues above 1e-6 of the largest), to log now and then.

    Costs a decomposition of the metric: once an epoch, not every step.
    """
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
