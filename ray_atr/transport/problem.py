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

    mass = 1 (balanced): row i sums to a_i and column j to b_j.
    mass < 1 (partial): row i sums to at most a_i and column j to at most b_j (Luong et al. 2024, Eq. 13).

    rows [N], columns [M]: the marginals a and b, positive, each summing to 1; None: 1/N and 1/M.

    Raises ValueError if cost holds NaN or infinity, epsilon <= 0, mass is outside (0, 1], or marginals are not as above.
    """

    cost: Tensor
    epsilon: float
    mass: float = 1.0
    rows: Tensor | None = None
    columns: Tensor | None = None
    # (max(c) - min(c)) / epsilon: how many powers of e the kernel exp(-c/epsilon) spans.
    log_range: float = field(init=False)

    def __post_init__(self) -> None:
        if self.cost.ndim != 2 or 0 in self.cost.shape:
            raise refuse("cost", tuple(self.cost.shape), "a tensor [N, M]")
        if not self.epsilon > 0:
            raise refuse("epsilon", self.epsilon, "(0, inf)")
        if not 0 < self.mass <= 1:
            raise refuse("transport_mass", self.mass, "(0, 1]")
        for name, marginal, size in (
            ("rows", self.rows, self.cost.shape[0]),
            ("columns", self.columns, self.cost.shape[1]),
        ):
            if marginal is not None:
                require_marginal(name, marginal, size)
        least, most = torch.stack(torch.aminmax(self.cost)).tolist()
        if not math.isfinite(most - least):
            raise refuse("cost", f"values between {least} and {most}", "finite costs")
        object.__setattr__(self, "log_range", (most - least) / self.epsilon)

    @property
    def is_balanced(self) -> bool:
        """Whether all of the mass is transported."""
        return self.mass == 1

    @property
    def row_marginal(self) -> Tensor:
        """a, [N]."""
        N = self.cost.shape[0]
        return self.cost.new_full((N,), 1 / N) if self.rows is None else self.rows.to(self.cost)

    @property
    def column_marginal(self) -> Tensor:
        """b, [M]."""
        M = self.cost.shape[1]
        return self.cost.new_full((M,), 1 / M) if self.columns is None else self.columns.to(self.cost)

    @property
    def default_tolerance(self) -> float:
        """1e-9 in float64; 1e-5 in float32, or what potentials of the size max|c|/epsilon can be resolved to, if more."""
        if self.cost.dtype == torch.float64:
            return 1e-9
        return max(1e-5, torch.finfo(torch.float32).eps * self.log_range)


def require_marginal(name: str, marginal: Tensor, size: int) -> None:
    """Raise ValueError unless the marginal [size] is positive and sums to 1."""
    if tuple(marginal.shape) != (size,):
        raise refuse(name, tuple(marginal.shape), f"a tensor [{size}]")
    least, total = float(marginal.min()), float(marginal.double().sum())
    if not least > 0 or not abs(total - 1) < 1e-4:
        raise refuse(name, f"marginals of at least {least:g} that sum to {total:g}", "positive ones that sum to 1")
