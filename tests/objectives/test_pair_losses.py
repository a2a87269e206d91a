"""Every pair loss against plain loops from its paper's formula, and what all of them must have in common."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from sklearn.metrics import log_loss
from torch import Tensor
from torch.nn import functional

from ray_atr.objectives import Learned, LearnedParameters
from ray_atr.objectives.pairs import (
    M2M,
    PAIRS,
    CleanShare,
    Comparison,
    Complementary,
    Contrastive,
    ContrastiveEntropic,
    LearningToMatch,
    PairLoss,
    PartialLearningToMatch,
    Sigmoid,
    Triplet,
)
from tests.support.pot_plans import pot_plan
from tests.support.whole_product import ONLY_IN_WHOLE

TAU = 0.2


def unit(N: int, D: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return functional.normalize(torch.randn(N, D, generator=generator, dtype=torch.float64), dim=1)


def comparison(N: int = 6, D: int = 5, **changes: Tensor) -> Comparison:
    return Comparison(u=unit(N, D, 0), v=functional.normalize(unit(N, D, 0) + unit(N, D, 1), dim=1), **changes)


def same(*groups: int) -> Tensor:
    numbers = torch.tensor(groups)
    return numbers[:, None] == numbers[None, :]


CASES: dict[str, list[dict[str, object]]] = {
    "contrastive": [{"temperature": TAU}],
    "contrastive_entropic": [{"temperature": TAU}],
    "complementary": [{"temperature": TAU, "form": form} for form in ("log", "tan", "gce")],
    "triplet": [{"mining": mining} for mining in ("hardest", "all", "weighted")],
    "learning_to_match": [{"epsilon": 0.1, "metric": "euclidean"}],
    "partial_learning_to_match": [
        {"epsilon": 0.1, "metric": "euclidean", "transport_mass": 0.7, "target": target}
        for target in ("identity", "followed")
    ],
}
"""Settings under which a registered loss is tried; one that is not named here is tried with its defaults."""


def all_losses() -> list[PairLoss]:
    return [loss(**settings) for name, loss in PAIRS.items() for settings in CASES.get(name, [{}])]


def differentiable_losses() -> list[PairLoss]:
    """Those whose gradient is the slope of their value: a target that follows the plan is held constant on purpose."""
    return [loss for loss in all_losses() if getattr(loss, "target", None) != "followed"]


def name_of(loss: PairLoss) -> str:
    return "-".join(
        [loss.name, *(str(getattr(loss, name)) for name in ("mining", "form", "target") if hasattr(loss, name))]
    )


def both_ways(similarity: Tensor, positives: Tensor, sample_loss: object) -> float:
    rows = [sample_loss(similarity[i], positives[i], i) for i in range(len(similarity))]
    columns = [sample_loss(similarity[:, i], positives[:, i], i) for i in range(len(similarity))]
    return 0.5 * (sum(rows) + sum(columns)) / len(similarity)


def contrastive_loop(scores: Tensor, positives: Tensor, i: int) -> float:
    negatives = sum(math.exp(float(s) / TAU) for s, positive in zip(scores, positives, strict=True) if not positive)
    terms = [
        -math.log(math.exp(float(s) / TAU) / (math.exp(float(s) / TAU) + negatives))
        for s, positive in zip(scores, positives, strict=True)
        if positive
    ]
    return sum(terms) / len(terms)


def hinge_loop(mining: str) -> object:
    def loss(scores: Tensor, positives: Tensor, i: int) -> float:
        own = float(scores[i])
        negatives = [float(s) for s, positive in zip(scores, positives, strict=True) if not positive]
        if mining == "weighted":
            informative = [s for s in negatives if s + 0.2 > own]
            if not informative:
                return 0.0
            hardest = max(informative)
            return max(0.0, 0.2 * own**2 - 0.7 * own + 0.5) + max(0.0, 0.9 * hardest**2 - 0.4 * hardest + 0.03)
        violations = [max(0.0, 0.2 + s - own) for s in negatives]
        return (max(violations) if mining == "hardest" else sum(violations)) if violations else 0.0

    return loss


@pytest.mark.parametrize("positives", [None, same(0, 0, 1, 2, 2, 2), same(0, 0, 0, 0, 0, 0)])
def test_contrastive_is_the_formula(positives: Tensor | None) -> None:
    case = comparison(positives=positives)
    expected = both_ways(case.cross_similarity(), case.positive_mask(), contrastive_loop)
    assert Contrastive(temperature=TAU)(case).loss.item() == pytest.approx(expected, abs=1e-12)


def test_contrastive_is_torch_cross_entropy() -> None:
    case = comparison()
    logits = case.u @ case.v.T / TAU
    labels = torch.arange(6)
    expected = (functional.cross_entropy(logits, labels) + functional.cross_entropy(logits.T, labels)) / 2
    torch.testing.assert_close(Contrastive(temperature=TAU)(case).loss, expected)
    torch.testing.assert_close(Contrastive()(case, Learned(temperature=torch.tensor(TAU))).loss, expected)


def test_further_negatives_stand_in_the_denominator_of_their_direction() -> None:
    shared, own = unit(4, 5, 7), torch.stack([unit(3, 5, 20 + i) for i in range(6)])
    case = comparison(extra_v=shared, extra_u=own)
    rows = [
        -math.log(
            math.exp(case.u[i] @ case.v[i] / TAU)
            / sum(math.exp(case.u[i] @ other / TAU) for other in [*case.v, *shared])
        )
        for i in range(6)
    ]
    columns = [
        -math.log(
            math.exp(case.v[i] @ case.u[i] / TAU)
            / sum(math.exp(case.v[i] @ other / TAU) for other in [*case.u, *own[i]])
        )
        for i in range(6)
    ]
    expected = 0.5 * (sum(rows) + sum(columns)) / 6
    assert Contrastive(temperature=TAU)(case).loss.item() == pytest.approx(expected, abs=1e-12)
    through_mask = dataclasses.replace(case, positives=torch.eye(6, dtype=torch.bool))
    assert Contrastive(temperature=TAU)(through_mask).loss.item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("loss", [loss for loss in all_losses() if not loss.takes_extra_negatives], ids=name_of)
def test_further_negatives_are_refused_by_name_elsewhere(loss: PairLoss) -> None:
    with pytest.raises(ValueError, match=f"objective.pair: got '{loss.name}'; allowed"):
        loss(comparison(extra_v=unit(3, 5, 9)))


@pytest.mark.parametrize(("entropy", "sign"), [("encourage", 1), ("discourage", -1)])
def test_contrastive_entropic_adds_the_rankings_negative_entropy(entropy: str, sign: int) -> None:
    case = comparison()

    def negative_entropy(scores: Tensor, positives: Tensor, i: int) -> float:
        total = sum(math.exp(float(s) / TAU) for s in scores)
        ranking = [math.exp(float(s) / TAU) / total for s in scores]
        return sum(share * math.log(share) for share in ranking)

    term = both_ways(case.cross_similarity(), case.positive_mask(), negative_entropy)
    expected = Contrastive(temperature=TAU)(case).loss.item() + sign * 0.3 * term
    loss = ContrastiveEntropic(temperature=TAU, epsilon=0.3, entropy=entropy)(case).loss
    assert loss.item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("positives", [None, same(0, 0, 1, 2, 2, 2), same(0, 0, 0, 0, 0, 0)])
@pytest.mark.parametrize("mining", ["hardest", "all", "weighted"])
def test_triplet_is_the_formula(mining: str, positives: Tensor | None) -> None:
    case = comparison(positives=positives)
    expected = both_ways(case.cross_similarity(), case.positive_mask(), hinge_loop(mining))
    assert Triplet(mining=mining)(case).loss.item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("positives", [None, same(0, 0, 1, 2, 2, 2)])
def test_sigmoid_is_the_formula(positives: Tensor | None) -> None:
    case = comparison(positives=positives)
    mask, total = case.positive_mask(), 0.0
    for i in range(6):
        for j in range(6):
            z = 1 if mask[i, j] else -1
            total += math.log(1 + math.exp(-z * (float(case.u[i] @ case.v[j]) / 0.1 - 10)))
    assert Sigmoid()(case).loss.item() == pytest.approx(total / 6, abs=1e-12)


def test_m2m_is_the_released_arithmetic() -> None:
    """Mean squared error over all numbers, 44 times, and that of the two sides' similarities, as torch computes them."""
    case = comparison()
    distance = functional.mse_loss(case.v, case.u)
    structure = functional.mse_loss(case.v @ case.v.T, case.u @ case.u.T)
    torch.testing.assert_close(M2M()(case).loss, 44 * distance + structure)
    total = 0.0
    for i in range(6):
        total += 44 / 5 * sum(float(case.u[i, d] - case.v[i, d]) ** 2 for d in range(5)) / 6
        total += sum(float(case.u[i] @ case.u[j] - case.v[i] @ case.v[j]) ** 2 for j in range(6)) / 36
    assert M2M()(case).loss.item() == pytest.approx(total, abs=1e-12)


@pytest.mark.parametrize("form", ["log", "tan", "gce"])
@pytest.mark.parametrize("positives", [None, same(0, 0, 1, 2, 2, 2), same(0, 0, 0, 0, 0, 0)])
def test_complementary_is_the_formula(form: str, positives: Tensor | None) -> None:
    case = comparison(positives=positives)
    penalty = {
        "log": lambda p: -math.log(1 - p),
        "tan": math.tan,
        "gce": lambda p: (1 - (1 - p) ** 0.5) / 0.5,
    }[form]

    def loss(scores: Tensor, positives: Tensor, i: int) -> float:
        total = sum(math.exp(float(s) / TAU) for s in scores)
        return sum(
            penalty(math.exp(float(s) / TAU) / total)
            for s, positive in zip(scores, positives, strict=True)
            if not positive
        )

    expected = both_ways(case.cross_similarity(), case.positive_mask(), loss)
    assert Complementary(temperature=TAU, form=form)(case).loss.item() == pytest.approx(expected, abs=1e-12)


def test_complementary_by_scikit_learns_zero_one_losses() -> None:
    """log_loss of "is no negative" for each negative alone: -log(1 - p), from another library."""
    case = comparison()
    probabilities = functional.softmax(case.cross_similarity() / TAU, dim=1).numpy()
    columns = functional.softmax(case.cross_similarity().T / TAU, dim=1).numpy()
    expected = sum(
        log_loss([0], [matrix[i, j]], labels=[0, 1])
        for matrix in (probabilities, columns)
        for i in range(6)
        for j in range(6)
        if i != j
    )
    assert Complementary(temperature=TAU)(case).loss.item() == pytest.approx(expected / 12, abs=1e-9)


def test_gce_lies_between_the_logarithm_and_the_probability() -> None:
    case = comparison()
    near_log = Complementary(temperature=TAU, form="gce", q=1e-6)(case).loss
    torch.testing.assert_close(near_log, Complementary(temperature=TAU)(case).loss, rtol=1e-5, atol=1e-5)
    rows, columns = (functional.softmax(m / TAU, dim=1) for m in (case.cross_similarity(), case.cross_similarity().T))
    left = 1 - 0.5 * (rows.diagonal().mean() + columns.diagonal().mean())
    torch.testing.assert_close(Complementary(temperature=TAU, form="gce", q=1.0)(case).loss, left)


@pytest.mark.parametrize("positives", [None, same(0, 0, 1, 2, 2, 2)])
def test_learning_to_match_is_the_divergence_from_pots_plan(positives: Tensor | None) -> None:
    case = comparison(positives=positives)
    cost = torch.cdist(case.u, case.v)
    plan = pot_plan(cost / cost.max(), 0.1)
    mask, expected = case.positive_mask(), 0.0
    for i in range(6):
        for j in range(6):
            if mask[i, j]:
                target = 1 / 6 / int(mask[i].sum())
                expected += target * math.log(target / float(plan[i, j]))
    assert LearningToMatch(epsilon=0.1, metric="euclidean")(case).loss.item() == pytest.approx(expected, abs=1e-7)


def test_partial_learning_to_match_is_the_divergence_from_pots_plan() -> None:
    case = comparison()
    cost = torch.cdist(case.u, case.v)
    plan = pot_plan(cost / cost.max(), 0.1, mass=0.7)
    expected = sum(math.log(1 / 6 / plan[i, i]) / 6 for i in range(6))
    loss = PartialLearningToMatch(epsilon=0.1, transport_mass=0.7, metric="euclidean")(case).loss
    assert loss.item() == pytest.approx(expected, abs=1e-6)


def test_a_followed_target_is_the_plans_own_row_mass_held_constant() -> None:
    u, v = unit(6, 5, 0).requires_grad_(), functional.normalize(unit(6, 5, 0) + unit(6, 5, 1), dim=1)
    loss = PartialLearningToMatch(epsilon=0.1, transport_mass=0.6, target="followed", metric="euclidean")
    value = loss(Comparison(u=u, v=v)).loss
    (gradient,) = torch.autograd.grad(value, u)

    def plan_of(u: Tensor) -> Tensor:
        cost = (2 - 2 * u.detach() @ v.T).sqrt()
        return pot_plan(cost / cost.max(), 0.1, mass=0.6)

    mass = plan_of(u).sum(dim=1)

    def held(u: Tensor) -> float:
        plan = plan_of(u)
        return sum(float(mass[i] * torch.log(mass[i] / plan[i, i])) for i in range(6))

    assert value.item() == pytest.approx(held(u), abs=1e-6)
    for i, d in ((0, 0), (2, 3), (5, 4)):
        step = torch.zeros_like(u)
        step[i, d] = 1e-4
        assert float(gradient[i, d]) == pytest.approx((held(u + step) - held(u - step)) / 2e-4, abs=1e-5)


def test_a_pair_that_the_plan_discards_is_pulled_by_the_papers_target_and_not_by_the_followed_one() -> None:
    u = unit(24, 16, 0)
    v = functional.normalize(u + 0.4 * unit(24, 16, 1), dim=1)
    v[0] = -u[0]
    pulls = {}
    for target in ("identity", "followed"):
        similarity = (u @ v.T).requires_grad_()
        loss = PartialLearningToMatch(transport_mass=0.8, target=target, detach_maximum=True, metric="euclidean")
        (gradient,) = torch.autograd.grad(loss(Comparison(u=u, v=v, similarity=similarity)).loss, similarity)
        pulls[target] = -float(gradient[0, 0])
    assert pulls["identity"] > 100 * abs(pulls["followed"])


def test_partial_at_full_mass_is_learning_to_match() -> None:
    case = comparison()
    partial = PartialLearningToMatch(epsilon=0.1, transport_mass=1.0, metric="euclidean")(case).loss
    torch.testing.assert_close(partial, LearningToMatch(epsilon=0.1, metric="euclidean")(case).loss)


@pytest.mark.parametrize("loss", differentiable_losses(), ids=name_of)
def test_second_derivatives_are_right_or_refused(loss: PairLoss) -> None:
    """As of a gradient penalty. Those of a plan would be another linear solve; they were silently left out."""

    def value(u: Tensor, v: Tensor) -> Tensor:
        return loss(dataclasses.replace(case, u=u, v=v)).loss

    case = comparison(4)
    inputs = [rows.clone().requires_grad_() for rows in (case.u, case.v)]
    if isinstance(loss, LearningToMatch):
        with pytest.raises(RuntimeError, match="has no second derivatives"):
            torch.autograd.gradgradcheck(value, inputs)
    else:
        assert torch.autograd.gradgradcheck(value, inputs, atol=1e-4, rtol=1e-3, fast_mode=True)


@pytest.mark.parametrize("kind", ["diagonal", "mahalanobis", "factored"])
def test_metrics_are_the_mahalanobis_distance(kind: str) -> None:
    case = comparison()
    generator = torch.Generator().manual_seed(5)
    factor = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    full = {"diagonal": torch.diag(factor[:, 0] ** 2), "mahalanobis": factor @ factor.T, "factored": factor @ factor.T}
    given = {"diagonal": factor[:, 0] ** 2, "mahalanobis": factor @ factor.T, "factored": factor}[kind]
    cost = torch.tensor([[float((a - b) @ full[kind] @ (a - b)) ** 0.5 for b in case.v] for a in case.u])
    by_hand = dataclasses.replace(case, similarity=1 - cost.double() ** 2 / 2)
    expected = LearningToMatch(epsilon=0.1, metric="euclidean")(by_hand).loss
    torch.testing.assert_close(
        LearningToMatch(epsilon=0.1, metric=kind)(case, Learned(metric=given)).loss, expected, rtol=1e-5, atol=1e-6
    )


def test_a_metric_that_is_missing_or_does_not_fit_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="metric: got None; allowed a tensor \\[D\\] with D = 5"):
        LearningToMatch(metric="diagonal")(comparison())
    with pytest.raises(ValueError, match="metric: got \\(4,\\)"):
        LearningToMatch(metric="diagonal")(comparison(), Learned(metric=torch.ones(4)))


@pytest.mark.parametrize("loss", differentiable_losses(), ids=name_of)
@pytest.mark.parametrize("positives", [None, same(0, 0, 1, 2, 2)])
def test_gradients_against_finite_differences(loss: PairLoss, positives: Tensor | None) -> None:
    u, v = unit(5, 4, 0).requires_grad_(), unit(5, 4, 1).requires_grad_()

    def value(u: Tensor, v: Tensor) -> Tensor:
        return loss(Comparison(u=u, v=v, positives=positives)).loss

    assert torch.autograd.gradcheck(value, (u, v), eps=1e-6, atol=1e-5, rtol=1e-4, fast_mode=True)


@pytest.mark.parametrize("kind", ["diagonal", "mahalanobis", "factored"])
def test_gradients_of_metrics_against_finite_differences(kind: str) -> None:
    case = comparison(4, 3)
    factor = torch.randn(3, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    given = {"diagonal": factor[:, 0].abs() + 0.5, "mahalanobis": factor @ factor.T + torch.eye(3), "factored": factor}
    loss = LearningToMatch(epsilon=0.1, metric=kind)
    metric = given[kind].detach().requires_grad_()
    assert torch.autograd.gradcheck(lambda m: loss(case, Learned(metric=m)).loss, (metric,), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("loss", differentiable_losses(), ids=name_of)
def test_gain_and_weights_against_finite_differences(loss: PairLoss) -> None:
    case = comparison(4, 3)
    generator = torch.Generator().manual_seed(6)
    gain = (0.5 + 0.5 * torch.rand(4, 4, generator=generator, dtype=torch.float64)).requires_grad_()
    row, column = (torch.rand(4, generator=generator, dtype=torch.float64).add(0.5).requires_grad_() for _ in range(2))

    def value(gain: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return loss(dataclasses.replace(case, gain=gain, row_weight=row, column_weight=column)).loss

    assert torch.autograd.gradcheck(value, (gain, row, column), atol=1e-5, rtol=1e-4, fast_mode=True)


@pytest.mark.parametrize("loss", all_losses(), ids=name_of)
def test_unit_gain_and_weights_change_nothing_and_a_given_similarity_takes_the_products_place(loss: PairLoss) -> None:
    case = comparison()
    ones = torch.ones(6, dtype=torch.float64)
    expected = loss(case).loss
    for changes in (
        {"gain": torch.ones(6, 6, dtype=torch.float64)},
        {"row_weight": ones, "column_weight": ones},
        {"similarity": case.u @ case.v.T},
        {"positives": torch.eye(6, dtype=torch.bool)},
    ):
        torch.testing.assert_close(loss(dataclasses.replace(case, **changes)).loss, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("loss", all_losses(), ids=name_of)
def test_order_of_the_batch_does_not_matter(loss: PairLoss) -> None:
    case = comparison(positives=same(0, 0, 1, 2, 3, 3))
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    permuted = Comparison(u=case.u[order], v=case.v[order], positives=case.positive_mask()[order][:, order])
    torch.testing.assert_close(loss(permuted).loss, loss(case).loss, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("loss", all_losses(), ids=name_of)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_collapsed_embeddings_stay_finite(loss: PairLoss, dtype: torch.dtype) -> None:
    row = torch.nn.functional.normalize(torch.arange(1.0, 6.0, dtype=dtype), dim=0)
    u, v = (row.expand(8, 5).clone().requires_grad_() for _ in range(2))
    terms = loss(Comparison(u=u, v=v))
    terms.loss.backward()
    assert torch.isfinite(terms.loss)
    assert torch.isfinite(u.grad).all()


@pytest.mark.parametrize(
    ("name", "epsilon"),
    [
        *(("learning_to_match", epsilon) for epsilon in (0.005, 0.01, 0.02)),
        # Seconds each; `test_transport_solve.py` has such plans.
        *(pytest.param("partial_learning_to_match", epsilon, marks=ONLY_IN_WHOLE) for epsilon in (0.005, 0.01)),
        ("partial_learning_to_match", 0.02),
    ],
)
def test_small_epsilon_in_float32_is_finite_and_near_float64(name: str, epsilon: float) -> None:
    u = unit(48, 16, 0)
    v = functional.normalize(u + 0.8 * unit(48, 16, 1), dim=1)
    kind: type[Any] = PAIRS[name]
    loss = kind(epsilon=epsilon, metric="euclidean")
    single, double = loss(Comparison(u=u.float(), v=v.float())).loss, loss(Comparison(u=u, v=v)).loss
    assert single.item() == pytest.approx(double.item(), abs=1e-3)


def test_detached_maximum_leaves_the_value_and_changes_the_gradient() -> None:
    case = comparison()
    gradients = []
    for detach in (False, True):
        u = case.u.clone().requires_grad_()
        loss = LearningToMatch(epsilon=0.1, detach_maximum=detach, metric="euclidean")(
            dataclasses.replace(case, u=u)
        ).loss
        loss.backward()
        gradients.append((loss.item(), u.grad))
    assert gradients[0][0] == gradients[1][0]
    assert not torch.allclose(gradients[0][1], gradients[1][1])


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"transport_mass": 0.0}, "transport_mass: got 0.0; allowed"),
        ({"transport_mass": 1.5}, "transport_mass: got 1.5; allowed"),
        ({"transport_mass": "all"}, "transport_mass: got 'all'; allowed \\(0, 1\\] or auto"),
        ({"epsilon": 0.0}, "epsilon: got 0.0; allowed \\(0, inf\\)"),
        ({"metric": "mahalonobis"}, "did you mean mahalanobis"),
    ],
)
def test_settings_outside_their_range_are_refused_by_name(settings: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        PartialLearningToMatch(**settings)


def test_automatic_mass_is_the_estimated_share_of_true_pairs_with_a_floor() -> None:
    u = unit(64, 16, 0)
    comparison = Comparison(u=u, v=functional.normalize(u + 0.3 * unit(64, 16, 1), dim=1))

    def mass(estimate: CleanShare | None, least: float) -> float:
        loss = PartialLearningToMatch(transport_mass="auto", smallest_mass=least, metric="euclidean")
        return loss(dataclasses.replace(comparison, clean_share=estimate)).scalars["transport_mass"].item()

    assert mass(None, 0.1) == pytest.approx(1.0)
    assert mass(CleanShare(0.6, found_share=0.9), 0.1) == pytest.approx(0.6)
    assert mass(CleanShare(0.6, found_share=0.9), 0.7) == pytest.approx(0.7)
    # Little is found: nearly all is transported, however small the share seems.
    assert mass(CleanShare(0.1, found_share=0.05), 0.1) == pytest.approx(1 - 0.05 * 0.9)


OTHER_VALUES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("triplet", {}, {"margin": 0.9}),
    ("triplet", {"margin": 0.9}, {"mining": "all"}),
    ("contrastive", {}, {"temperature": TAU}),
    ("contrastive_entropic", {}, {"temperature": TAU, "epsilon": 0.5, "entropy": "discourage"}),
    ("complementary", {}, {"temperature": TAU, "form": "tan"}),
    ("complementary", {"form": "gce"}, {"q": 0.9}),
    ("sigmoid", {}, {"temperature": TAU, "bias": -3.0, "learn_scale": False}),
    ("sigmoid", {"learn_scale": False}, {"temperature": TAU, "bias": -3.0}),
    ("learning_to_match", {}, {"epsilon": 0.2, "metric": "diagonal", "detach_maximum": True, "max_iterations": 2}),
    ("learning_to_match", {}, {"project_every": 2}),
    ("learning_to_match", {"metric": "diagonal"}, {"project_every": 2}),
    ("learning_to_match", {"metric": "factored"}, {"metric_rank": 2}),
    ("partial_learning_to_match", {}, {"transport_mass": 0.5, "target": "followed", "max_iterations": 2}),
    ("partial_learning_to_match", {}, {"epsilon": 0.2, "metric": "diagonal", "detach_maximum": True}),
    ("partial_learning_to_match", {}, {"project_every": 2}),
    ("partial_learning_to_match", {"metric": "factored"}, {"metric_rank": 2}),
    ("partial_learning_to_match", {"transport_mass": "auto"}, {"smallest_mass": 0.9}),
    ("m2m", {}, {"distance_weight": 3.0}),
]
"""A loss, settings under which it is tried, and other values of some of its settings than their defaults."""


@pytest.mark.parametrize(("name", "settings", "others"), OTHER_VALUES)
def test_each_setting_changes_the_loss_its_gradient_or_what_is_learned(
    name: str, settings: dict[str, Any], others: dict[str, Any]
) -> None:
    def found(**changes: Any) -> list[Tensor]:
        loss = PAIRS[name](**settings, **changes)
        torch.manual_seed(0)
        learned = LearnedParameters(loss.learns(), 5).double()
        case = comparison(clean_share=CleanShare(0.4, 1.0))
        u, v = case.u.requires_grad_(), case.v.requires_grad_()
        value = loss(dataclasses.replace(case, u=u, v=v), learned.values()).loss
        gradients = torch.autograd.grad(value, [u, v])
        if learned.metric is not None:
            # As a step of the optimiser may: no longer a metric.
            learned.metric.data -= 3
            learned.after_step()
        return [value.detach(), *gradients, *(parameter.detach() for parameter in learned.parameters())]

    plain = found()
    for setting, other in others.items():
        changed = found(**{setting: other})
        assert [one.shape for one in plain] != [one.shape for one in changed] or any(
            not torch.allclose(*both, rtol=1e-3) for both in zip(plain, changed, strict=True)
        ), setting


def test_no_pair_loss_has_a_setting_that_is_not_tried() -> None:
    fields = {(name, entry.name) for name, kind in PAIRS.items() for entry in dataclasses.fields(kind)}
    assert fields == {(name, setting) for name, _, others in OTHER_VALUES for setting in others}
