"""What an objective returns: the scalar to minimise, and named numbers to log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

# A batch is as badly converged as the worst of its pairs; every other scalar is averaged.
_WORST = ("_residual", "_iterations", "_is_capped")


class Terms(NamedTuple):
    """`loss`: scalar with gradient. `scalars`: detached float tensors by name."""

    loss: Tensor
    scalars: Mapping[str, Tensor]


def weighted_sum(terms: Sequence[Terms], weights: Sequence[float]) -> Terms:
    """The weighted sum of losses; scalars of one name are averaged by weight, residuals and iterations take the largest."""
    loss = torch.stack([weight * one.loss for one, weight in zip(terms, weights, strict=True)]).sum()
    scalars: dict[str, Tensor] = {}
    for name in {name: None for one in terms for name in one.scalars}:
        found = [(one.scalars[name], weight) for one, weight in zip(terms, weights, strict=True) if name in one.scalars]
        if name.endswith(_WORST):
            scalars[name] = torch.stack([value for value, _ in found]).max()
        else:
            total = sum(weight for _, weight in found)
            scalars[name] = torch.stack([value * (weight / total) for value, weight in found]).sum()
    return Terms(loss, scalars)
