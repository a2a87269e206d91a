"""A transport plan with the evidence of how it was found."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class TransportPlan:
    """The plan pi between N rows and M columns, log pi_ij = -c_ij / epsilon + row_i + column_j, and its evidence.

    log_matrix         [N, M]: log pi, finite where pi itself would underflow.
    row_potential      [N]: scaled potentials (f / epsilon); for a partial plan they hold the mass multiplier too.
    column_potential   [M].
    row_active         [N] bool: rows whose constraint holds with equality and pushes; all True for a balanced plan.
    column_active      [M] bool.
    residual           by how much the optimality conditions fail: the largest of the summed violations of the row and the
                       column constraints and of complementary slackness, in units of mass.
    iterations         sweeps, a Newton step counting as one.
    tolerance          the residual that was asked for.
    domain             `kernel`, `log` or `newton`: where the last step was made.
    """

    log_matrix: Tensor
    row_potential: Tensor
    column_potential: Tensor
    row_active: Tensor
    column_active: Tensor
    residual: float
    iterations: int
    tolerance: float
    domain: str

    @property
    def matrix(self) -> Tensor:
        """pi, [N, M]."""
        return self.log_matrix.exp()

    @property
    def is_converged(self) -> bool:
        """Whether the residual met the tolerance before the cap on iterations."""
        return self.residual <= self.tolerance
