"""The entropic transport problem, checked when it is made; and its plan, with the solver's residual and iterations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from ray_atr.common.settings import refuse

# The largest range of cost / epsilon whose exponential float32 holds with room for the scalings (exp(-87) is its smallest
# normal number). float64 holds 700; the same bound is kept so that both take the same way.
KERNEL_RANGE = 60.0


@dataclass(frozen=True, eq=False)
class Problem:
    """minimise <pi, c> - epsilon H(pi) over pi >= 0 with total mass `mass`.

    mass = 1 (balanced): row i sums to a_i and column j to b_j.
    mass < 1 (partial): row i sums to at most a_i and column j to at most b_j (Luong et al. 2024, Eq. 13).

    rows [N], columns [M]: the marginals a and b, positive, each summing to 1; None: 1/N and 1/M.
    log_range: (max c - min c) / epsilon, the range of the kernel's logarithms. Given if the cost holds only some rows of a
    checked one, else computed.

    Raises ValueError if cost holds NaN or infinity, epsilon <= 0, mass is outside (0, 1] or would be lost in the rounding of the
    cost's number type, or marginals are not as above.
    """

    cost: Tensor
    epsilon: float
    mass: float = 1.0
    rows: Tensor | None = None
    columns: Tensor | None = None
    log_range: float = math.nan

    def __post_init__(self) -> None:
        if self.cost.ndim != 2 or 0 in self.cost.shape:
            raise refuse("cost", tuple(self.cost.shape), "a tensor [N, M]")
        if not self.epsilon > 0:
            raise refuse("epsilon", self.epsilon, "(0, inf)")
        if not 0 < self.mass <= 1:
            raise refuse("transport_mass", self.mass, "(0, 1]")
        if self.mass < 1 and self.mass < (least_mass := torch.finfo(self.cost.dtype).eps):
            number = str(self.cost.dtype).removeprefix("torch.")
            raise refuse(
                "transport_mass", self.mass, f"at least {least_mass:.2g} in {number}: less is lost in rounding"
            )
        for name, marginal, size in zip(("rows", "columns"), (self.rows, self.columns), self.cost.shape, strict=True):
            if marginal is not None:
                require_marginal(name, marginal, size)
        if math.isnan(self.log_range):
            least, most = torch.stack(torch.aminmax(self.cost)).tolist()
            if not math.isfinite(most - least):
                raise refuse("cost", f"values between {least} and {most}", "finite costs")
            object.__setattr__(self, "log_range", (most - least) / self.epsilon)

    @property
    def is_kernel_safe(self) -> bool:
        """Whether exp(-c/epsilon) neither underflows nor overflows."""
        return self.log_range <= KERNEL_RANGE

    @property
    def row_marginal(self) -> Tensor:
        """a, [N], without gradient."""
        return marginal_of(self.rows, self.cost.shape[0], self.cost)

    @property
    def column_marginal(self) -> Tensor:
        """b, [M], without gradient."""
        return marginal_of(self.columns, self.cost.shape[1], self.cost)


def default_tolerance(dtype: torch.dtype, log_range: float) -> float:
    """The residual to reach where none is asked for.

    1e-9 in float64; in float32 1e-5, or the rounding error of potentials of size `log_range` if that is larger.
    """
    return 1e-9 if dtype == torch.float64 else max(1e-5, torch.finfo(dtype).eps * log_range)


def marginal_of(marginal: Tensor | None, size: int, cost: Tensor) -> Tensor:
    """The given marginal [size], or the uniform one, in the cost's number type and on its device."""
    return cost.new_full((size,), 1 / size) if marginal is None else marginal.detach().to(cost)


def require_marginal(name: str, marginal: Tensor, size: int) -> None:
    """Raise ValueError unless the marginal [size] is positive and sums to 1."""
    if tuple(marginal.shape) != (size,):
        raise refuse(name, tuple(marginal.shape), f"a tensor [{size}]")
    least, total = float(marginal.min()), float(marginal.double().sum())
    if not least > 0 or not abs(total - 1) < 1e-4:
        raise refuse(name, f"marginals of at least {least:g} that sum to {total:g}", "positive ones that sum to 1")


def violation(sums: Any, pushes: Any, bounds: Any) -> float:
    """Mass by which rows exceed their bounds [N], or fall short of them although their potential is below 0 (`pushes` [N])."""
    excess = sums - bounds
    return float((excess.clip(min=0) - pushes * excess.clip(max=0)).sum())


class Solution(NamedTuple):
    """Potentials u [N] and v [M], the log level of a partial plan (None: balanced), the residual, and the iterations."""

    u: Tensor
    v: Tensor
    level: Tensor | None
    residual: float
    iterations: int


@dataclass(frozen=True, eq=False)
class SolvedPlan:
    """A plan log pi_ij = -c_ij / epsilon + row_i + column_j between N rows and M columns, as potentials, and how it was solved.

    row_potential      [N]: scaled potentials (f / epsilon); of a partial plan they include the log level.
    column_potential   [M].
    row_active         [N] bool: rows whose sum is at its bound, with a potential below 0; all True for a balanced plan.
    column_active      [M] bool.
    residual           by how much the optimality conditions fail: the largest of the summed violations of the row and the
                       column constraints and of complementary slackness, in units of mass.
    iterations         sweeps, a Newton step counting as one.
    tolerance          the residual that was asked for.
    """

    row_potential: Tensor
    column_potential: Tensor
    row_active: Tensor
    column_active: Tensor
    residual: float
    iterations: int
    tolerance: float

    @classmethod
    def from_solution(cls, solution: Solution, tolerance: float, **more: Any) -> Self:
        """The plan of a solution: a balanced one has no level, a partial one has u, v <= 0. `more` are the subclass's fields."""
        u, v, level, residual, iterations = solution
        if level is None:
            everywhere = torch.ones(1, dtype=torch.bool, device=u.device)
            active = everywhere.expand(len(u)), everywhere.expand(len(v))
            return cls(u, v, *active, residual, iterations, tolerance, **more)
        return cls(u + level, v, u < 0, v < 0, residual, iterations, tolerance, **more)

    @property
    def is_converged(self) -> bool:
        """Whether the residual met the tolerance before the cap on iterations."""
        return self.residual <= self.tolerance


@dataclass(frozen=True, eq=False)
class TransportPlan(SolvedPlan):
    """A plan with its matrix in memory.

    log_matrix   [N, M]: log pi, finite where pi itself would underflow.
    domain       `kernel`, `log` or `newton`: the method of the last step.
    """

    log_matrix: Tensor
    domain: str

    @classmethod
    def of_scores(cls, scores: Tensor, solution: Solution, tolerance: float, domain: str) -> TransportPlan:
        """exp(scores_ij + u_i + v_j + level), in the scores' memory."""
        log_matrix = scores.add_(solution.u[:, None]).add_(solution.v)
        if solution.level is not None:
            log_matrix.add_(solution.level)
        return cls.from_solution(solution, tolerance, log_matrix=log_matrix, domain=domain)

    @property
    def matrix(self) -> Tensor:
        """pi, [N, M]."""
        return self.log_matrix.exp()
