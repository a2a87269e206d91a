"""What tells whether knowledge from outside the batch matters, is fresh, and is of use.

Shapes: N base entries, P prototypes, Q probes, D embedding width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ray_atr.objectives import Embeddings, Objective
from ray_atr.objectives.knowledge.retrieved import Granularity, Neighbours, Queued, Retrieved


def out_of_batch_influence(
    objective: Objective,
    embeddings: Embeddings,
    retrieved: Retrieved | Queued | None,
    *,
    metric: Tensor | None = None,
    temperature: Tensor | None = None,
    draw: Tensor | None = None,
) -> float:
    """Norm of the loss's gradient with respect to what was retrieved (Fu et al. 2025, Eq. 2); 0 where nothing is used.

    A multiplier counts only where its gradient is not detached.
    """
    leaves: list[Tensor] = []
    with torch.enable_grad():
        leafed = _with_leaves(retrieved, leaves)
        batch = dataclasses.replace(embeddings, audio=embeddings.audio.detach(), text=embeddings.text.detach())
        terms = objective(batch, metric=metric, temperature=temperature, draw=draw, retrieved=leafed)
        if not leaves or not terms.loss.requires_grad:
            return 0.0
        gradients = torch.autograd.grad(terms.loss, leaves, allow_unused=True)
    squares = [gradient.double().square().sum() for gradient in gradients if gradient is not None]
    return float(torch.stack(squares).sum().sqrt()) if squares else 0.0


def _with_leaves(value: Any, leaves: list[Tensor]) -> Any:
    if isinstance(value, Tensor):
        if not value.is_floating_point():
            return value
        leaf = value.detach().clone().requires_grad_()
        leaves.append(leaf)
        return leaf
    if isinstance(value, Retrieved | Granularity | Neighbours | Queued):
        changed = {field.name: _with_leaves(getattr(value, field.name), leaves) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **changed)
    return value


def representation_drift_mismatch(stale: Tensor, current: Tensor, temperature: float = 0.07) -> float:
    """Mean KL(p_i || q_i) in nats of a probe set's neighbour distributions, stale against current (Fu et al. 2025, Eq. 4).

    stale, current [Q, D]: the probes as the snapshot holds them and as the encoders embed them now. p_i(j) is the softmax over
    the other probes of <e_i, e_j>/temperature. 0 where nothing but a rotation has happened; infinite never.
    """
    if len(stale) != len(current) or len(stale) < 3:
        raise ValueError(f"probes: got {len(stale)} stale and {len(current)} current; allowed equal numbers, 3 or more")
    others = ~torch.eye(len(stale), dtype=torch.bool, device=stale.device)

    def log_distribution(rows: Tensor) -> Tensor:
        rows = torch.nn.functional.normalize(rows.double(), dim=-1)
        return (rows @ rows.T)[others].view(len(rows), -1).div(temperature).log_softmax(dim=1)

    p, q = log_distribution(stale), log_distribution(current.to(stale.device))
    return float((p.exp() * (p - q)).sum(dim=1).mean().clamp(min=0))


def prototype_collapse(prototypes: Tensor) -> float:
    """Mean pairwise cosine of prototypes [P, D]: 1 where all are the same, near 0 where they spread; 0 for one alone."""
    P = len(prototypes)
    if P < 2:
        return 0.0
    rows = torch.nn.functional.normalize(prototypes.double(), dim=-1)
    return float((rows.sum(dim=0).square().sum() - P) / (P * (P - 1)))


def neighbour_label_share(
    positions: Tensor, query_labels: Sequence[Sequence[str]], entry_labels: Sequence[Sequence[str]]
) -> float:
    """Share of neighbours that have a label in common with their query; NaN where no pair of labelled ones was found.

    positions [B, ..., Kn] int64 into the base's entries, -1 where there is none. Entries without labels are not counted.
    """
    shared, counted = 0, 0
    for labels, found in zip(query_labels, positions.reshape(len(positions), -1).tolist(), strict=True):
        wanted = set(labels)
        for position in found:
            if position >= 0 and wanted and entry_labels[position]:
                counted += 1
                shared += bool(wanted & set(entry_labels[position]))
    return shared / counted if counted else float("nan")
