"""A plan whose rows are on two or four ranks is the plan of one process, and so is its gradient and the loss on it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed
from torch.nn import functional

from ray_atr.common.ranks import Ranks
from ray_atr.objectives.pairs import Comparison, LearningToMatch, PartialLearningToMatch
from ray_atr.objectives.pairs.learned import Learned
from ray_atr.objectives.pairs.pair_loss import CleanShare
from ray_atr.objectives.transport import log_plan, log_plan_across_ranks, partial
from ray_atr.objectives.transport.partial import Pace, shared_blocks
from ray_atr.objectives.transport.problem import Solution
from ray_atr.objectives.transport.row_blocks import KernelRows, LogRows, TiledRows, tiles_of
from tests.support.processes import run_processes
from tests.support.threads import run_threads

N, D = 13, 6
EXACT: dict[str, Any] = {"tolerance": 1e-12, "max_iterations": 20_000}
PLANS: dict[str, dict[str, Any]] = {
    "balanced": {"epsilon": 0.1},
    "beyond the kernel's range": {"epsilon": 0.012},
    "unequal marginals": {"epsilon": 0.1, "rows": True, "columns": True},
    "partial": {"epsilon": 0.1, "mass": 0.7},
    "partial with unequal marginals": {"epsilon": 0.1, "mass": 0.6, "rows": True, "columns": True},
    "partial beyond the kernel's range": {"epsilon": 0.012, "mass": 0.7},
}
SHARED = [(4, name, outer) for name in PLANS for outer in ("any", "matched")]
SHARED += [(2, "balanced", "any"), (2, "partial", "matched"), (2, "partial beyond the kernel's range", "any")]
"""The ranks that share a plan: all four, or two pairs, each a group of its own; the plan; and what its gradient is of."""
SOFT: dict[str, Any] = {"epsilon": 0.1, "metric": "euclidean"}
"""Half of the usual epsilon takes six times as many sums."""
LOSSES = {
    "balanced": LearningToMatch(metric="euclidean"),
    "maximum held": LearningToMatch(detach_maximum=True, metric="euclidean"),
    "mahalanobis": LearningToMatch(metric="mahalanobis"),
    "factored": LearningToMatch(metric="factored"),
    "partial": PartialLearningToMatch(transport_mass=0.7, **SOFT),
    "followed": PartialLearningToMatch(transport_mass=0.7, target="followed", **SOFT),
    "estimated mass": PartialLearningToMatch(transport_mass="auto", **SOFT),
}
WITH_EVERY_CHANGE = ("balanced", "partial")
CHANGES = ("plain", "positives", "sample_weight", "weights", "targets")
CASES = [(name, change) for name in LOSSES for change in CHANGES if change == "plain" or name in WITH_EVERY_CHANGE]


def numbers(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def some_cost() -> Tensor:
    cost = numbers(0, N, N).abs() + 0.5 - 0.4 * torch.eye(N, dtype=torch.float64)
    return cost / cost.max()


def wide_cost() -> Tensor:
    """A cost beyond the kernel's range that takes few sweeps: mostly a sum of a row's and a column's."""
    cost = numbers(11, N, 1).abs() + numbers(12, 1, N).abs() + 0.1 * numbers(0, N, N).abs()
    return cost / cost.max()


def outer_of(kind: str, rows: Tensor | None, columns: Tensor | None) -> Tensor:
    """dL/d(log pi): anything, or minus twice a matrix that has the plan's marginals, as a matching has."""
    uniform = torch.full((N,), 1 / N, dtype=torch.float64)
    a, b = (uniform if given is None else given for given in (rows, columns))
    return numbers(1, N, N) if kind == "any" else -2 * a[:, None] * b


def given(options: dict[str, Any]) -> dict[str, Any]:
    marginals = {name: functional.softmax(numbers(seed, N), 0) for seed, name in ((2, "rows"), (3, "columns"))}
    return {name: marginals.get(name, value) for name, value in options.items()}


def plan_of(name: str, outer: str, ranks: Ranks | None) -> tuple[Tensor, Tensor]:
    """(log pi, dL/dcost): the whole by one process, or the rows of a rank."""
    options = given(PLANS[name])
    epsilon, gradient_of_log = options.pop("epsilon"), outer_of(outer, options.get("rows"), options.get("columns"))
    own = slice(None) if ranks is None else ranks.own(N)
    cost = (wide_cost() if "beyond" in name else some_cost())[own].requires_grad_()
    if ranks is None:
        found, _ = log_plan(cost, epsilon, **options, **EXACT)
    else:
        found, _ = log_plan_across_ranks(cost, epsilon, N, ranks, **options, **EXACT)
    found.backward(gradient_of_log[own])
    assert cost.grad is not None
    return found.detach(), cost.grad


def comparison_of(change: str, u: Tensor, v: Tensor) -> Comparison:
    generator = torch.Generator().manual_seed(4)
    more: dict[str, Any] = {"clean_share": CleanShare(0.6, found_share=1.0)}
    if change == "positives":
        groups = torch.randint(0, N // 2, (N,), generator=generator)
        more["positives"] = groups[:, None] == groups
    if change == "sample_weight":
        # One pair is not believed at all: it takes no part, and twelve rows are shared.
        more["sample_weight"] = torch.rand(N, generator=generator, dtype=torch.float64).index_fill(
            0, torch.tensor([5]), 0
        )
    if change == "weights":
        more["row_weight"], more["column_weight"] = torch.rand(2, N, generator=generator, dtype=torch.float64)
    if change == "targets":
        more["targets"] = functional.softmax(numbers(5, N, N), dim=1)
    return Comparison(u, v, **more)


def unit_pairs() -> tuple[Tensor, Tensor]:
    return functional.normalize(numbers(6, N, D), dim=1), functional.normalize(numbers(7, N, D), dim=1)


def loss_of(name: str, change: str, shared_from: int) -> dict[str, Tensor]:
    owned = {
        "u": numbers(6, N, D),
        "v": numbers(7, N, D),
        "metric": numbers(8, D, D),
        "temperature": numbers(9, 1).abs()[0],
    }
    owned = {key: value.requires_grad_() for key, value in owned.items()}
    u, v = (functional.normalize(owned[side], dim=1) for side in ("u", "v"))
    with Ranks.here().share(at_least=shared_from):
        terms = LOSSES[name](
            comparison_of(change, u, v), Learned(metric=owned["metric"], temperature=owned["temperature"])
        )
    (3 * terms.loss).backward()
    gradients = {key: torch.zeros_like(value) if value.grad is None else value.grad for key, value in owned.items()}
    logged = {key: value for key, value in terms.scalars.items() if not key.startswith("transport_")}
    return {"loss": terms.loss.detach(), **logged, **gradients}


def work(rank: int, size: int) -> dict[Any, Any]:
    """Four ranks share plans, as four and as two pairs, and one loss; two share every loss."""
    found: dict[Any, Any] = {
        (name, change): loss_of(name, change, shared_from=2) for name, change in CASES[: 1 if size == 4 else None]
    }
    if size == 4:
        pairs = [distributed.new_group([0, 1]), distributed.new_group([2, 3])]
        for shared, name, outer in SHARED:
            ranks = Ranks.here() if shared == size else Ranks.here(pairs[rank // 2])
            found[shared, name, outer] = plan_of(name, outer, ranks)
    if rank == 0:
        # By itself, without `share`: a loss is a function of its pairs, whatever processes there are.
        found["alone"] = LearningToMatch(metric="euclidean")(Comparison(*unit_pairs())).loss
    found["tiled"] = tiled_sums(Ranks.here())
    cost = some_cost()[Ranks.here().own(N)]
    try:
        log_plan_across_ranks(cost * (float("nan") if rank == size - 1 else 1), 0.1, N, Ranks.here())
    except ValueError as error:
        found["error"] = str(error)
    return found


def tiled_sums(ranks: Ranks) -> dict[str, tuple[Tensor, ...]]:
    scores, own = -some_cost() / 0.1, ranks.own(N)
    column, row, log_mass = numbers(9, N), numbers(10, N)[own], torch.full((N,), 1 / N, dtype=torch.float64).log()[own]
    length = own.stop - own.start
    blocks = {
        "held": LogRows(scores[own], ranks),
        "kernel": KernelRows(scores[own], ranks),
        "tiled": TiledRows(lambda rows: scores[own][rows].clone(), tiles_of(length, 2), ranks),
        "tiled kernel": TiledRows(lambda rows: scores[own][rows].clone(), tiles_of(length, 2), ranks, scores.max()),
    }
    return {
        name: (ranks.joined(block.row_sums(column), N), block.column_sums(row), block.sweep(column, log_mass)[1])
        for name, block in blocks.items()
    }


@pytest.fixture(scope="module")
def by_four() -> list[dict[Any, Any]]:
    return run_threads(work, 4)


@pytest.fixture(scope="module")
def by_two() -> list[dict[Any, Any]]:
    return run_threads(work, 2)


@pytest.mark.parametrize(("size", "name", "outer"), SHARED)
def test_the_plan_and_its_gradient_are_those_of_one_process(size: int, name: str, outer: str, by_four: Any) -> None:
    log_matrix, gradient = plan_of(name, outer, None)
    parts = [worker[size, name, outer] for worker in by_four[:size]]
    torch.testing.assert_close(torch.cat([part[0] for part in parts]), log_matrix, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(torch.cat([part[1] for part in parts]), gradient, rtol=1e-6, atol=1e-6)
    assert {len(part[0]) for part in parts} == {N // size, N // size + 1}


@pytest.mark.parametrize(("name", "change"), CASES)
def test_every_worker_has_the_loss_and_gradients_of_one_that_holds_the_plan(
    name: str, change: str, by_two: Any, by_four: Any
) -> None:
    whole = loss_of(name, change, shared_from=0)
    for worker in by_two + [worker for worker in by_four if (name, change) in worker]:
        torch.testing.assert_close(worker[name, change], whole, rtol=1e-6, atol=1e-8)


def of_processes(rank: int, size: int, folder: Path) -> tuple[Tensor, Tensor]:
    pairs = [distributed.new_group([0, 1]), distributed.new_group([2, 3])]
    return plan_of("balanced", "any", Ranks.here(pairs[rank // 2]))


def test_two_of_four_processes_have_a_plan_of_their_own(tmp_path: Path) -> None:
    parts = run_processes(of_processes, 4, tmp_path)
    for pair in (parts[:2], parts[2:]):
        for *found, expected in zip(*pair, plan_of("balanced", "any", None), strict=True):
            torch.testing.assert_close(torch.cat(found), expected, rtol=1e-6, atol=1e-6)


def test_a_loss_asks_no_other_process_unless_it_is_told_to(by_two: Any) -> None:
    torch.testing.assert_close(by_two[0]["alone"], LearningToMatch(metric="euclidean")(Comparison(*unit_pairs())).loss)


def test_rows_held_as_a_kernel_as_they_are_or_not_at_all_have_the_same_sums(by_four: Any) -> None:
    alone = tiled_sums(Ranks())
    for sums in (*alone.values(), *(found for worker in by_four for found in worker["tiled"].values())):
        torch.testing.assert_close(sums[0], alone["held"][0])
    for worker in by_four:
        torch.testing.assert_close(worker["tiled"]["kernel"], worker["tiled"]["held"])
        torch.testing.assert_close(worker["tiled"]["tiled"], worker["tiled"]["held"])
        torch.testing.assert_close(worker["tiled"]["tiled kernel"], worker["tiled"]["held"])


def test_a_cost_that_is_not_finite_on_one_process_is_refused_on_all(by_four: Any) -> None:
    assert all("cost: got" in worker["error"] and "finite" in worker["error"] for worker in by_four)


def test_an_epsilon_that_is_not_positive_is_refused() -> None:
    with pytest.raises(ValueError, match="epsilon: got 0"):
        log_plan_across_ranks(torch.rand(4, 4), 0.0, 4, Ranks())


@pytest.mark.parametrize("mass", [1.0, 0.5])
def test_a_plan_without_a_sweep_is_refused(mass: float) -> None:
    with pytest.raises(ValueError, match=r"max_iterations: got 0; allowed \[1, inf\)"):
        log_plan_across_ranks(torch.rand(4, 4), 0.1, 4, Ranks(), mass=mass, max_iterations=0)


def test_a_plan_is_shared_from_a_size_on() -> None:
    pairs = Comparison(numbers(6, N, D), numbers(7, N, D))
    with Ranks(0, N + 1).share(at_least=2):
        assert not LearningToMatch().is_shared(pairs), "a worker would have no row"
    for at_least, is_shared in ((N, True), (N + 1, False), (0, False), (None, False)):
        with Ranks(0, 2).share(at_least=at_least):
            assert LearningToMatch().is_shared(pairs) is is_shared
    # Alone too: the result must not depend on the number of workers.
    with Ranks().share(at_least=2):
        assert LearningToMatch().is_shared(pairs)
        assert PartialLearningToMatch(transport_mass="auto").is_shared(pairs), "its mass is the same on all workers"
        assert not LearningToMatch().is_shared(dataclasses.replace(pairs, gain=pairs.u @ pairs.v.T))


def test_a_large_plan_is_shared_without_being_told_to() -> None:
    for size in (4095, 4096):
        side = torch.ones(size, 1)
        assert LearningToMatch().is_shared(Comparison(side, side)) is (size == 4096)


def rounded_otherwise(rank: int, size: int) -> tuple[int, list[Tensor]]:
    """Sweeps that end just when the residual is the tolerance, and the potentials of all columns and rows."""
    ranks, uniform = Ranks.here(), torch.full((N,), 1 / N, dtype=torch.float64)

    def solved(pace: Pace, most: int) -> Solution:
        block = LogRows(some_cost()[ranks.own(N)] / -0.1, ranks)
        return shared_blocks(block, torch.zeros_like(uniform), 0.7, pace, most, uniform, uniform)

    first = Pace(0.0)
    solved(first, 20)
    tolerances = [dict(first.checks)[10]]
    distributed.broadcast_object_list(tolerances)
    solution = solved(Pace(tolerances[0]), 1000)
    assert solution.level is not None
    return solution.iterations, [solution.u, solution.v, solution.level]


def test_ranks_that_round_differently_make_as_many_sweeps_and_have_one_active_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As GPUs, whose cumulative sums differ in the last bits from one to the next."""

    def rounding(function: Any) -> Any:
        def of_rank(*given: Any) -> Any:
            exact = function(*given)
            factor = 1 + 1e-12 * distributed.get_rank()
            return exact * factor if isinstance(exact, float) else tuple(part * factor for part in exact)

        return of_rank

    for name in ("violation", "fill"):
        monkeypatch.setattr(partial, name, rounding(getattr(partial, name)))
    (sweeps, potentials), (other_sweeps, other_potentials) = run_threads(rounded_otherwise, 2)
    assert sweeps == other_sweeps
    assert all(map(torch.equal, potentials, other_potentials))
