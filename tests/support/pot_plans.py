"""Entropic plans by POT, which ours are compared with."""

from __future__ import annotations

import numpy as np
import ot
import torch
from torch import Tensor


def pot_plan(
    cost: Tensor, epsilon: float, mass: float = 1.0, rows: Tensor | None = None, columns: Tensor | None = None
) -> Tensor:
    """The plan [N, M] of a cost [N, M], balanced at mass 1 and partial below, float64; marginals are uniform unless given."""
    sides = zip(cost.shape, (rows, columns), strict=True)
    a, b = (np.full(size, 1 / size) if given is None else given.numpy() for size, given in sides)
    costs = cost.detach().double().numpy()
    if mass == 1:
        options = {"method": "sinkhorn_log", "stopThr": 1e-12, "numItermax": 100_000, "warn": False}
        return torch.from_numpy(ot.sinkhorn(a, b, costs, epsilon, **options))
    plan = ot.partial.entropic_partial_wasserstein(a, b, costs, epsilon, mass, stopThr=1e-14, numItermax=20_000)
    return torch.from_numpy(plan)
