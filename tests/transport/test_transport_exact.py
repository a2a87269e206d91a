"""The exact plan against scipy's assignment and linear programme, and as the limit of the entropic one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment, linprog

from ray_atr.objectives.transport import exact_plan, solve


def costs(N: int, M: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(N, M, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_square_and_balanced_it_is_the_best_assignment() -> None:
    cost = costs(12, 12)
    rows, columns = linear_sum_assignment(cost.numpy())
    expected = torch.zeros(12, 12, dtype=torch.float64)
    expected[rows, columns] = 1 / 12
    torch.testing.assert_close(exact_plan(cost), expected)


@pytest.mark.parametrize("mass", [0.3, 0.75, 1.0])
def test_it_costs_what_the_linear_programme_costs(mass: float) -> None:
    N, M = 6, 9
    cost = costs(N, M, seed=3) - 0.5  # costs below zero too
    sums = np.vstack([np.kron(np.eye(N), np.ones(M)), np.kron(np.ones(N), np.eye(M))])
    most = np.concatenate([np.full(N, 1 / N), np.full(M, 1 / M)])
    programme = linprog(cost.numpy().ravel(), A_ub=sums, b_ub=most, A_eq=np.ones((1, N * M)), b_eq=[mass])
    plan = exact_plan(cost, mass=mass)
    assert float((plan * cost).sum()) == pytest.approx(programme.fun, abs=1e-10)
    assert float(plan.sum()) == pytest.approx(mass)
    assert bool((plan.sum(1) <= 1 / N + 1e-12).all())
    assert bool((plan.sum(0) <= 1 / M + 1e-12).all())


@pytest.mark.parametrize("mass", [0.5, 1.0])
@pytest.mark.parametrize(("N", "M"), [(1, 1), (1, 7), (5, 2), (6, 9)])
def test_a_constant_changes_no_plan(N: int, M: int, mass: float) -> None:
    """Costs are often minus a similarity."""
    cost = costs(N, M, seed=3)
    plan = exact_plan(cost, mass=mass)
    for constant in (3.0, -3.0):
        torch.testing.assert_close(exact_plan(cost + constant, mass=mass), plan)


def test_pairs_that_cost_nothing_take_no_more_than_the_mass() -> None:
    assert float(exact_plan(torch.zeros(4, 4), mass=0.5).sum()) == pytest.approx(0.5)


@pytest.mark.parametrize("mass", [0.6, 1.0])
def test_it_is_where_the_entropic_plan_goes(mass: float) -> None:
    cost = costs(8, 8, seed=5)
    exact = exact_plan(cost, mass=mass)
    epsilons = (0.1, 0.01, 0.001)
    plans = [solve(cost, epsilon, mass=mass).matrix for epsilon in epsilons]
    errors = [float((plan - exact).abs().sum()) for plan in plans]
    assert errors == sorted(errors, reverse=True)
    for plan, epsilon in zip(plans, epsilons, strict=True):
        # The entropies of two plans differ by at most log(NM), so the costs do by at most epsilon times that.
        assert -1e-9 <= float(((plan - exact) * cost).sum()) <= epsilon * math.log(cost.numel())


def test_type_is_kept_and_bad_input_refused() -> None:
    assert exact_plan(costs(3, 3).float()).dtype == torch.float32
    assert float(exact_plan(costs(3, 3).float(), mass=1e-8).sum()) == pytest.approx(1e-8)
    with pytest.raises(ValueError, match=r"transport_mass: got 1\.5; allowed"):
        exact_plan(costs(3, 3), mass=1.5)
    with pytest.raises(ValueError, match="finite costs"):
        exact_plan(torch.tensor([[float("nan")]]))
