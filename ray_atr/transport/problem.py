"""The entropic transport problem, checked once, at the door."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ray_atr.settings import refuse

# The largest range of cost / epsilon whose exponential float32 holds with room for the scalings (exp(-87) is its smallest
# normal number). float64 holds 700; the same bound is kept so that both take the same way.
KERNEL_RANGE = 60.0


@dataclass(frozen=True, eq=False)
class Problem:
    """minimise <pi, c> - epsilon H(pi) over pi >= 0 with total mass `mass`.

    mass = 1 (balanced): every row sums to 1/N and every column to 1/M.
    mass < 1 (partial): every row sums to at most 1/N and every column to at most 1/M (Luong et al. 2024, Eq. 13).

    Raises ValueError where cost holds NaN or infinity, epsilon <= 0, or mass is outside (0, 1].
    """

    cost: Tensor
    epsilon: float
    mass: float = 1.0
    # (max(c) - min(c)) / epsilon: how many powers of e the kernel exp(-c/epsilon) spans.
    log_range: float = field(init=False)

    def __post_init__(self) -> None:
        if self.cost.ndim != 2 or 0 in self.cost.shape:
            raise refuse("cost", tuple(self.cost.shape), "a tensor [N, M]")
        if not self.epsilon > 0:
            raise refuse("epsilon", self.epsilon, "(0, inf)")
        if not 0 < self.mass <= 1:
            raise refuse("transport_mass", self.mass, "(0, 1]")
        least, most = torch.stack(torch.aminmax(self.cost)).tolist()
        if not math.isfinite(most - least):
            raise refuse("cost", f"values between {least} and {most}", "finite costs")
        object.__setattr__(self, "log_range", (most - least) / self.epsilon)

    @property
    def is_balanced(self) -> bool:
        """Whether all of the mass is transported."""
        return self.mass == 1

    @property
    def default_tolerance(self) -> float:
        """1e-9 in float64; 1e-5 in float32, or what potentials of the size max|c|/epsilon can be resolved to, if more."""
        if self.cost.dtype == torch.float64:
            return 1e-9
        return max(1e-5, torch.finfo(torch.float32).eps * self.log_range)
