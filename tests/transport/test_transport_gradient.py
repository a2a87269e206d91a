"""Closed-form gradients against finite differences and against a graph through the iterations."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ray_atr.objectives.transport import log_plan, matching_loss

EXACT = {"tolerance": 1e-12}


def some_cost(B: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    cost = torch.rand(B, B, generator=generator, dtype=torch.float64)
    cost.diagonal().mul_(0.5)
    return (cost / cost.max()).requires_grad_()


def assert_exact(value: Callable[[Tensor], Tensor], B: int) -> None:
    """The gradient of a function of a cost [B, B] is that of finite differences."""
    assert torch.autograd.gradcheck(value, (some_cost(B),), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("epsilon", [0.05, 0.2])
@pytest.mark.parametrize("mass", [1.0, 0.95, 0.8, 0.6])
def test_matching_loss_against_finite_differences(mass: float, epsilon: float) -> None:
    assert_exact(lambda c: matching_loss(c, epsilon, mass=mass, **EXACT)[0], 5)


@pytest.mark.parametrize("mass", [1.0, 0.7])
@pytest.mark.parametrize("matches", [True, False])
def test_a_cost_that_is_not_square_has_a_target_of_its_shape(matches: bool, mass: float) -> None:
    """Without one, the columns beyond the rows would count as matched, and the gradient was another."""
    cost = torch.rand(3, 5, generator=torch.Generator().manual_seed(4), dtype=torch.float64, requires_grad=True)
    target = torch.full_like(cost, 1 / 15) if matches else cost.detach() / 3
    assert torch.autograd.gradcheck(
        lambda c: matching_loss(c, 0.1, mass=mass, target=target, **EXACT)[0], (cost,), atol=1e-5, rtol=1e-5
    )
    for wrong, named in ((None, r"cost: got \(3, 5\)"), (target.T, r"target: got \(5, 3\); allowed a tensor \[3, 5\]")):
        with pytest.raises(ValueError, match=named):
            matching_loss(cost, 0.1, mass=mass, target=wrong)


@pytest.mark.parametrize("mass", [1.0, 0.7])
def test_target_with_other_marginals_against_finite_differences(mass: float) -> None:
    target = torch.rand(6, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    target /= target.sum()
    assert_exact(lambda c: matching_loss(c, 0.1, mass=mass, target=target, **EXACT)[0], 6)


@pytest.mark.parametrize("mass", [1.0, 0.9, 0.5])
def test_log_plan_against_finite_differences(mass: float) -> None:
    outer = torch.randn(6, 6, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    assert_exact(lambda c: (outer * log_plan(c, 0.1, mass=mass, **EXACT)[0]).sum(), 6)


@pytest.mark.parametrize("mass", [1.0, 0.7])
@pytest.mark.parametrize("is_given", [False, True])
def test_unequal_marginals_against_finite_differences(mass: float, is_given: bool) -> None:
    generator = torch.Generator().manual_seed(5)
    rows, columns = (torch.rand(6, generator=generator, dtype=torch.float64) + 0.1 for _ in range(2))
    marginals = {"rows": rows / rows.sum(), "columns": columns / columns.sum()}
    target = torch.outer(marginals["rows"], marginals["columns"]) if is_given else None
    assert_exact(lambda c: matching_loss(c, 0.1, mass=mass, target=target, **marginals, **EXACT)[0], 6)


def test_balanced_gradient_equals_that_of_unrolled_sweeps() -> None:
    cost = some_cost(12)
    matching_loss(cost, 0.1, **EXACT)[0].backward()
    unrolled = cost.detach().clone().requires_grad_()
    row = column = torch.zeros(12, dtype=torch.float64)
    for _ in range(500):
        row = -math.log(12) - torch.logsumexp(-unrolled / 0.1 + column, dim=1)
        column = -math.log(12) - torch.logsumexp(-unrolled / 0.1 + row[:, None], dim=0)
    log_matrix = -unrolled / 0.1 + row[:, None] + column
    (-(log_matrix.diagonal().mean() + math.log(12))).backward()
    torch.testing.assert_close(cost.grad, unrolled.grad, rtol=1e-6, atol=1e-9)


def test_value_is_the_divergence_itself() -> None:
    cost = some_cost(9)
    loss, plan = matching_loss(cost, 0.1)
    expected = sum((1 / 9) * math.log((1 / 9) / float(plan.matrix[i, i])) for i in range(9))
    assert loss.item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("mass", [1.0, 0.8])
def test_float32_gradient_is_near_float64(mass: float) -> None:
    cost = some_cost(64)
    matching_loss(cost, 0.05, mass=mass)[0].backward()
    single = cost.detach().float().requires_grad_()
    matching_loss(single, 0.05, mass=mass)[0].backward()
    assert float((single.grad - cost.grad).norm() / cost.grad.norm()) < 1e-3
