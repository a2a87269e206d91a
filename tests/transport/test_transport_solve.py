"""Plans are feasible and optimal, agree with unrelated solvers, and never pretend to have converged."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import ot
import pytest
import torch
from scipy.optimize import brentq, linear_sum_assignment
from torch import Tensor

from ray_atr.objectives.transport import TransportPlan, balanced, solve
from ray_atr.objectives.transport.balanced import CHECK_EVERY, Marginals, Scalings, kernel_sweeps
from ray_atr.objectives.transport.partial import level_and_scaling
from tests.support.pot_plans import pot_plan
from tests.support.spies import spied
from tests.support.whole_product import IS_WHOLE


def trained_cost(B: int, *, num_wrong: int = 0, seed: int = 0) -> Tensor:
    """Distances of embeddings whose partners are near and whose clusters make hard negatives, float64, maximum 1."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(max(B // 8, 2), 32, generator=generator, dtype=torch.float64)
    latent = centres[torch.randint(len(centres), (B,), generator=generator)]
    latent = 0.8 * latent + torch.randn(B, 32, generator=generator, dtype=torch.float64)
    u, v = (latent + torch.randn(B, 32, generator=generator, dtype=torch.float64) for _ in range(2))
    v[:num_wrong] = v[:num_wrong].roll(1, 0)
    cost = torch.cdist(torch.nn.functional.normalize(u, dim=1), torch.nn.functional.normalize(v, dim=1))
    return cost / cost.max()


def assert_optimal(plan: TransportPlan, cost: Tensor, epsilon: float, mass: float, tolerance: float) -> None:
    """The conditions that only the solution meets, read off the plan itself."""
    N, M = cost.shape
    matrix = plan.matrix
    rows, columns = matrix.sum(1), matrix.sum(0)
    assert abs(float(matrix.sum()) - mass) < tolerance
    assert float((rows - 1 / N).clamp(min=0).sum()) < tolerance
    assert float((columns - 1 / M).clamp(min=0).sum()) < tolerance
    # log pi + c/epsilon is a sum of a row and a column potential ...
    potentials = plan.log_matrix + cost / epsilon
    additive = potentials - potentials[:1] - potentials[:, :1] + potentials[:1, :1]
    assert float(additive.abs().max()) < 1e-4 / epsilon * tolerance + 1e-3
    # ... whose row part is largest, and equal, where the row is not saturated; the same for columns.
    for sums, bound, levels in ((rows, 1 / N, potentials[:, 0]), (columns, 1 / M, potentials[0])):
        slack = sums < bound - 10 * tolerance / len(sums)
        if mass < 1 and bool(slack.any()):
            assert float(levels[slack].max() - levels[slack].min()) < 1e-2
            assert float(levels.max() - levels[slack].max()) < 1e-2


@pytest.mark.parametrize("epsilon", [0.05, 0.1, 0.5])
def test_balanced_equals_pot(epsilon: float) -> None:
    cost = trained_cost(24)
    torch.testing.assert_close(solve(cost, epsilon).matrix, pot_plan(cost, epsilon), rtol=1e-6, atol=1e-9)


def test_where_many_sweeps_are_left_none_is_checked_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    checks, tolerance = list[int](), 1e-5
    spied(
        monkeypatch, balanced, "sweeps_left", lambda _, previous, residual, tolerance, between: checks.append(between)
    )
    scores = trained_cost(24).float() / -0.05
    swept = kernel_sweeps(scores, scores.new_zeros(24), tolerance, 10_000)
    assert swept.residual <= tolerance
    assert swept.sweeps == sum(checks)
    assert len(checks) < swept.sweeps / 8
    # Hardly a sweep too many was made.
    fewer = kernel_sweeps(scores, scores.new_zeros(24), tolerance, swept.sweeps - 2 * CHECK_EVERY)
    assert fewer.residual > tolerance


@pytest.mark.parametrize(("epsilon", "mass"), [(0.1, 0.6), (0.1, 0.95), (0.05, 0.8)])
def test_partial_equals_pot(epsilon: float, mass: float) -> None:
    cost = trained_cost(20, num_wrong=6)
    plan = solve(cost, epsilon, mass=mass).matrix
    torch.testing.assert_close(plan, pot_plan(cost, epsilon, mass), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(40, 40), (15, 40), (40, 15)])
@pytest.mark.parametrize("epsilon", [0.02, 0.05, 0.3])
@pytest.mark.parametrize("mass", [1.0, 0.95, 0.6, 0.1])
def test_plan_is_feasible_and_optimal(mass: float, epsilon: float, shape: tuple[int, int], dtype: torch.dtype) -> None:
    cost = trained_cost(40, num_wrong=12)[: shape[0], : shape[1]].to(dtype)
    plan = solve(cost, epsilon, mass=mass)
    assert plan.is_converged, (plan.residual, plan.iterations, plan.domain)
    assert_optimal(plan, cost, epsilon, mass, 1e-7 if dtype == torch.float64 else 1e-4)


@pytest.mark.parametrize("mass", [1.0, 0.8])
@pytest.mark.parametrize("epsilon", [0.005, 0.01, 0.02])
def test_float32_equals_float64_at_small_epsilon(epsilon: float, mass: float) -> None:
    cost = trained_cost(64, num_wrong=20)
    single, double = solve(cost.float(), epsilon, mass=mass), solve(cost, epsilon, mass=mass)
    assert bool(torch.isfinite(single.log_matrix).all())
    assert float((single.matrix - double.matrix).abs().sum()) < 1e-3


def test_small_epsilon_finds_the_assignment() -> None:
    cost = trained_cost(32, num_wrong=10)
    rows, columns = linear_sum_assignment(cost.numpy())
    assert rows.tolist() == list(range(32))
    assert solve(cost, 0.002).matrix.argmax(1).tolist() == columns.tolist()


def test_partial_cost_approaches_the_linear_programme() -> None:
    cost = trained_cost(16, num_wrong=6)
    uniform = torch.full((16,), 1 / 16, dtype=torch.float64).numpy()
    best = float((torch.from_numpy(ot.partial.partial_wasserstein(uniform, uniform, cost.numpy(), m=0.5)) * cost).sum())
    found = float((solve(cost, 0.003, mass=0.5).matrix * cost).sum())
    assert best - 1e-9 <= found < best + 0.003


def test_mass_of_one_is_balanced_and_masses_near_one_approach_it() -> None:
    cost = trained_cost(30)
    balanced = solve(cost, 0.1)
    torch.testing.assert_close(solve(cost, 0.1, mass=1.0).matrix, balanced.matrix)
    torch.testing.assert_close(solve(cost, 0.1, mass=1 - 1e-6).matrix, balanced.matrix, atol=1e-5, rtol=1e-3)


def test_newton_takes_over_where_sweeps_crawl() -> None:
    cost = trained_cost(48)
    # Sweeps alone take hundreds, to the same plan.
    expected = pot_plan(cost, 0.03)
    for dtype, near in ((torch.float32, 1e-5), (torch.float64, 1e-7)):
        plan = solve(cost.to(dtype), 0.03)
        assert plan.domain == "newton"
        assert plan.is_converged
        assert plan.iterations < 30
        assert float((plan.matrix - expected).abs().sum()) < near


def nearly_isolated(B: int, D: int) -> torch.Tensor:
    """Distances [B, B] of embeddings [B, D] as training leaves them: a pair is far nearer than what is not one."""
    audio, noise = torch.nn.functional.normalize(
        torch.randn(2, B, D, generator=torch.Generator().manual_seed(0)), dim=2
    )
    return torch.cdist(audio, torch.nn.functional.normalize(noise + 2 * audio, dim=1))


def test_sweeps_that_near_the_end_go_on_to_it() -> None:
    # 127 of Newton's steps, 50 s on one core, were taken here, where another hundred sweeps of .4 ms suffice.
    plan = solve(nearly_isolated(1024, 1024), 0.05, mass=0.95)
    assert plan.domain == "kernel"
    assert plan.is_converged
    assert plan.iterations < 300


def test_newton_ends_where_it_crawls_as_sweeps_do() -> None:
    plan = solve(nearly_isolated(256, 32), 0.05, mass=0.95, max_iterations=600)
    assert plan.iterations == 600
    assert plan.domain == "kernel"
    assert plan.residual < 3e-5


def test_partial_plans_are_left_to_newton_where_sweeps_crawl() -> None:
    plan = solve(trained_cost(64), 0.01, mass=0.8)
    assert plan.domain == "newton"
    assert plan.is_converged
    assert plan.iterations < 100


def test_hard_problems_of_any_shape_converge() -> None:
    generator = torch.Generator().manual_seed(7)
    for _ in range(150 if IS_WHOLE else 60):
        N, M = (int(size) for size in torch.randint(5, 180, (2,), generator=generator))
        u, v = (torch.nn.functional.normalize(torch.randn(size, 8, generator=generator), dim=1) for size in (N, M))
        cost = torch.cdist(u, v)
        epsilon = 0.005 + 0.005 * float(torch.rand(1, generator=generator))
        plan = solve(cost / cost.max(), epsilon)
        assert plan.is_converged, (N, M, epsilon, plan.residual, plan.iterations, plan.domain)


@pytest.mark.parametrize("mass", [1.0, 0.8])
def test_reaching_the_cap_is_reported(mass: float) -> None:
    plan = solve(trained_cost(40, num_wrong=10), 0.03, mass=mass, max_iterations=2)
    assert plan.iterations <= 2
    assert not plan.is_converged
    assert plan.residual > plan.tolerance


@pytest.mark.parametrize("mass", [1.0, 0.6])
def test_a_tolerance_of_zero_is_sought_up_to_the_cap(mass: float) -> None:
    plan = solve(trained_cost(40, num_wrong=10), 0.01, mass=mass, tolerance=0.0)
    assert plan.residual < 1e-4
    assert not plan.is_converged or plan.residual == 0


@pytest.mark.parametrize("mass", [1.0, 0.9])
def test_warm_start_takes_fewer_iterations_to_the_same_plan(mass: float) -> None:
    cost = trained_cost(64)
    near = cost + 1e-4 * torch.rand(64, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    first = solve(cost, 0.05, mass=mass)
    warm, cold = solve(near, 0.05, mass=mass, start=first, tolerance=1e-4), solve(near, 0.05, mass=mass, tolerance=1e-4)
    assert warm.iterations < cold.iterations
    assert float((warm.matrix - cold.matrix).abs().sum()) < 1e-3


@pytest.mark.parametrize("near", [0.0, 1e-6, 1.0, 1e6, float("inf"), float("nan")])
@pytest.mark.parametrize("mass", [0.05, 0.5, 0.999])
@pytest.mark.parametrize("seed", range(4))
def test_the_level_of_a_block_is_where_the_mass_is_met(seed: int, mass: float, near: float) -> None:
    generator = np.random.default_rng(seed)
    size = [1, 2, 7, 64][seed]
    inflow, bounds = np.exp(3 * generator.standard_normal(size)), generator.random(size) + 0.01
    bounds /= bounds.sum()
    expected = brentq(lambda log: np.minimum(np.exp(log) * inflow, bounds).sum() - mass, -60, 60, xtol=1e-14)
    with np.errstate(divide="ignore", invalid="ignore"):
        found, level = level_and_scaling(inflow, mass, bounds, near)
    assert math.log(level) == pytest.approx(expected, abs=1e-10)
    np.testing.assert_allclose(level * found * inflow, np.minimum(level * inflow, bounds), rtol=1e-12)
    # As where NumPy has no view of the numbers: on a GPU, or compiled.
    of_tensors = level_and_scaling(torch.from_numpy(inflow), mass, torch.from_numpy(bounds), near)
    torch.testing.assert_close(of_tensors[0], torch.from_numpy(found), rtol=1e-10, atol=0)
    assert float(of_tensors[1]) == pytest.approx(level, rel=1e-10)


@pytest.mark.parametrize("is_uniform", [True, False])
@pytest.mark.parametrize("shape", [(8, 8), (7, 12), (1, 3)])
def test_a_sweep_makes_the_columns_sums_exact(shape: tuple[int, int], is_uniform: bool) -> None:
    scores = -10 * torch.rand(shape, generator=torch.Generator().manual_seed(1)).double()
    column = torch.linspace(-1, 1, shape[1]).double()
    marginals = None if is_uniform else Marginals(*(some_marginal(size, size).double() for size in shape))
    scalings = Scalings(scores, column, marginals)
    a, b = (torch.full((size,), 1 / size, dtype=torch.float64) for size in shape) if marginals is None else marginals
    for _ in range(3):
        scalings.sweep()
        row, column_potential = scalings.potentials()
        plan = (scores + row[:, None] + column_potential).exp()
        torch.testing.assert_close(plan.sum(dim=0), b)
        error = float((plan.sum(dim=1) - a).abs().sum())
        assert scalings.residual_and_range()[0] == pytest.approx(error, rel=1e-9, abs=1e-14)
        scalings.fit_rows()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1, 2, 64])
def test_a_level_that_saturates_all_but_rounding_is_positive(size: int, dtype: type) -> None:
    inflow: Any = np.linspace(1, 2, size, dtype=dtype)
    bounds: Any = np.full(size, 1 / size, dtype)
    with np.errstate(divide="ignore", invalid="ignore"):
        for mass in (1 - 1e-9, 1 - 1e-7):
            for near in (0.0, 1.0, 100.0):
                scaling, level = level_and_scaling(inflow, mass, bounds, near)
                assert (level * scaling * inflow).sum() == pytest.approx(1, abs=1e-5)


def some_marginal(size: int, seed: int) -> Tensor:
    """Positive, sums to 1, some entries a hundred times others."""
    drawn = torch.rand(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) ** 3 + 0.01
    return drawn / drawn.sum()


@pytest.mark.parametrize("shape", [(9, 9), (30, 17), (150, 150)])
@pytest.mark.parametrize("epsilon", [0.3, 0.05, 0.02])
def test_unequal_marginals_give_pots_plan(epsilon: float, shape: tuple[int, int]) -> None:
    cost = trained_cost(150, num_wrong=40)[: shape[0], : shape[1]]
    rows, columns = some_marginal(shape[0], 1), some_marginal(shape[1], 2)
    for mass in (1.0, 0.6):
        plan = solve(cost, epsilon, mass=mass, rows=rows, columns=columns)
        assert plan.is_converged
        assert float((plan.matrix - pot_plan(cost, epsilon, mass, rows, columns)).abs().sum()) < 1e-6


@pytest.mark.parametrize("mass", [1.0, 0.7])
@pytest.mark.parametrize("epsilon", [0.1, 0.004])
def test_equal_marginals_that_are_given_change_nothing(mass: float, epsilon: float) -> None:
    cost = trained_cost(30, num_wrong=5)
    even = torch.full((30,), 1 / 30, dtype=torch.float64)
    given, plain = (solve(cost, epsilon, mass=mass, **both) for both in ({"rows": even, "columns": even}, {}))
    assert float((given.matrix - plain.matrix).abs().sum()) < 1e-8


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        (torch.full((5,), 0.2), "rows: got \\(5,\\); allowed a tensor \\[4\\]"),
        (torch.tensor([0.5, 0.5, 0.0, 0.0]), "rows: got 'marginals of at least 0"),
        (torch.full((4,), 0.5), "rows: got 'marginals of at least 0.5 that sum to 2'"),
    ],
)
def test_marginals_that_are_none_are_refused_by_name(rows: Tensor, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        solve(torch.rand(4, 4), 0.1, rows=rows)


@pytest.mark.parametrize("mass", [1.0, 0.7])
def test_equal_costs_give_an_even_plan(mass: float) -> None:
    plan = solve(torch.ones(10, 10), 0.05, mass=mass)
    torch.testing.assert_close(plan.matrix, torch.full((10, 10), mass / 100))


@pytest.mark.parametrize("mass", [1.0, 0.8])
def test_order_of_rows_and_columns_does_not_matter(mass: float) -> None:
    cost = trained_cost(20)
    rows, columns = torch.randperm(20), torch.randperm(20)
    permuted = solve(cost[rows][:, columns], 0.05, mass=mass).matrix
    torch.testing.assert_close(permuted, solve(cost, 0.05, mass=mass).matrix[rows][:, columns], atol=1e-8, rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"mass": 0.0}, "transport_mass: got 0.0; allowed"),
        ({"mass": 1.2}, "transport_mass: got 1.2; allowed"),
        ({"mass": float("nan")}, "transport_mass"),
        ({"mass": 1e-8}, r"transport_mass: got 1e-08; allowed at least 1\.2e-07 in float32: less is lost in rounding"),
        ({"epsilon": 0.0}, "epsilon: got 0.0; allowed"),
        ({"epsilon": -0.1}, "epsilon"),
        ({"max_iterations": 0}, r"max_iterations: got 0; allowed \[1, inf\)"),
    ],
)
def test_impossible_problems_are_refused_by_name(changes: dict[str, Any], named: str) -> None:
    arguments: dict[str, Any] = {"epsilon": 0.05, "mass": 0.9, **changes}
    with pytest.raises(ValueError, match=named):
        solve(torch.rand(4, 4), **arguments)


def test_costs_that_are_not_finite_are_refused() -> None:
    cost = torch.rand(4, 4)
    cost[1, 2] = torch.nan
    with pytest.raises(ValueError, match="cost"):
        solve(cost, 0.05)
