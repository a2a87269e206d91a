"""Every pair loss under beliefs and soft targets: what they mean, whatever the loss."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from test_pair_losses import TAU, all_losses, comparison, differentiable_losses, name_of, same, unit
from torch import Tensor
from torch.nn import functional

from ray_atr.common.ranks import Ranks
from ray_atr.objectives.pairs import (
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

TRANSPORT = (LearningToMatch, PartialLearningToMatch)


def soft(N: int, seed: int = 3) -> Tensor:
    """Targets [N, N]: most of each row on the own partner."""
    drawn = torch.rand(N, N, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return functional.normalize(drawn + N * torch.eye(N), p=1, dim=1)


SAMPLE_WEIGHT = torch.tensor([1.0, 0.4, 0.8, 0.1, 0.6, 0.9], dtype=torch.float64)


@pytest.mark.parametrize("loss", all_losses(), ids=name_of)
def test_full_belief_and_hard_targets_change_nothing(loss: PairLoss) -> None:
    for positives in (None, same(0, 0, 1, 2, 3, 3)):
        case = comparison(positives=positives)
        expected = loss(case).loss
        for changes in (
            {"sample_weight": torch.ones(6, dtype=torch.float64)},
            {"targets": torch.eye(6, dtype=torch.float64)},
        ):
            found = loss(dataclasses.replace(case, **changes)).loss
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("loss", all_losses(), ids=name_of)
def test_a_pair_that_is_not_believed_is_not_pulled_together(loss: PairLoss) -> None:
    case = comparison()
    believed = torch.ones(6, dtype=torch.float64)
    pulls = []
    for sample_weight in (believed, believed.index_fill(0, torch.tensor([2]), 0.0)):
        similarity = case.cross_similarity().requires_grad_()
        value = loss(dataclasses.replace(case, similarity=similarity, sample_weight=sample_weight)).loss
        pulls.append(float(torch.autograd.grad(value, similarity)[0][2, 2]))
    assert pulls[1] == 0
    if loss.name != "triplet":
        assert pulls[0] != 0


def test_beliefs_are_in_loops_what_the_docstrings_say() -> None:
    same_text = same(0, 0, 1, 2, 3, 3)
    case, y = comparison(positives=same_text), [float(one) for one in SAMPLE_WEIGHT]
    contrastive = sigmoid = triplet = complementary = 0.0
    for similarity in (case.cross_similarity(), case.cross_similarity().T):
        s = [[float(value) for value in row] for row in similarity]
        for i in range(6):
            partners = [j for j in range(6) if same_text[i, j]]
            negatives = [j for j in range(6) if not same_text[i, j]]
            pushed = sum(y[k] * math.exp(s[i][k] / TAU) for k in negatives)
            of_positives = [y[j] * math.log(1 + pushed / math.exp(s[i][j] / TAU)) for j in partners]
            contrastive += y[i] * sum(of_positives) / sum(y[j] for j in partners)
            triplet += y[i] * sum(max(0.0, 0.2 + s[i][j] - (1 - y[j]) * 2.2 - s[i][i]) for j in negatives)
            weight = [1.0 if j == i else y[j] for j in range(6)]
            total = sum(w * math.exp(value / TAU) for w, value in zip(weight, s[i], strict=True))
            complementary -= y[i] * sum(y[j] * math.log(1 - y[j] * math.exp(s[i][j] / TAU) / total) for j in negatives)
            for j in range(6):
                logit = s[i][j] / 0.1 - 10
                sigmoid += y[i] * weight[j] * math.log(1 + math.exp(-logit if same_text[i, j] else logit))
    for loss, expected in (
        (Contrastive(temperature=TAU), contrastive),
        (Sigmoid(), sigmoid),
        (Triplet(mining="all"), triplet),
        (Complementary(temperature=TAU), complementary),
    ):
        for at_least in (0, 2):
            with Ranks().share(at_least=at_least):
                found = loss(dataclasses.replace(case, sample_weight=SAMPLE_WEIGHT)).loss.item()
            assert found == pytest.approx(expected / 12, abs=1e-9)


@pytest.mark.parametrize(("mass", "loss"), [(1.0, LearningToMatch), (0.7, PartialLearningToMatch)])
def test_belief_is_the_marginal_of_a_transport_plan(mass: float, loss: type[LearningToMatch]) -> None:
    case = comparison()
    marginal = SAMPLE_WEIGHT / SAMPLE_WEIGHT.sum()
    cost = torch.cdist(case.u, case.v)
    plan = pot_plan(cost / cost.max(), 0.1, mass, marginal, marginal)
    expected = sum(marginal[i] * math.log(marginal[i] / plan[i, i]) for i in range(6)) * float(SAMPLE_WEIGHT.mean())
    settings = {"epsilon": 0.1, "metric": "euclidean", **({} if mass == 1 else {"transport_mass": mass})}
    assert loss(**settings)(dataclasses.replace(case, sample_weight=SAMPLE_WEIGHT)).loss.item() == pytest.approx(
        expected, abs=1e-6
    )


@pytest.mark.parametrize("loss", all_losses(), ids=name_of)
@pytest.mark.parametrize("has_twins", [False, True])
def test_no_gradient_of_a_pair_of_weight_0_is_a_subnormal_number(loss: PairLoss, has_twins: bool) -> None:
    u, v = (one.float().requires_grad_() for one in (unit(64, 16, 0), unit(64, 16, 1)))
    believed = torch.arange(64) % 5 == 0
    twins = torch.arange(64) % 8
    positives = twins[:, None] == twins if has_twins else None
    loss(Comparison(u, v, sample_weight=believed.float(), positives=positives)).loss.backward()
    for gradient in (u.grad, v.grad):
        assert gradient is not None
        size = gradient.abs()
        assert not bool(((size > 0) & (size < torch.finfo(torch.float32).tiny)).any())
        assert bool(size.any()), "the believed pairs"


@pytest.mark.parametrize("loss", [Contrastive, ContrastiveEntropic])
def test_a_pair_of_weight_0_is_no_negative_at_a_low_temperature(loss: type[Contrastive]) -> None:
    u, v = unit(2, 5, 0), unit(2, 5, 1)
    # The third clip and text are nearer to the second text and clip than these are to each other.
    case = Comparison(
        torch.cat([u, v[1:]]), torch.cat([v, u[1:]]), sample_weight=torch.tensor([1.0, 1.0, 0.0]).double()
    )
    alone, weighted = (loss(temperature=0.002)(one).loss for one in (Comparison(u, v), case))
    torch.testing.assert_close(weighted * 3, alone * 2, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("loss", [loss for loss in all_losses() if isinstance(loss, TRANSPORT)], ids=name_of)
def test_transport_is_between_the_believed_pairs_alone(loss: PairLoss) -> None:
    case = comparison(positives=same(0, 0, 1, 2, 3, 3))
    sample_weight = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0, 1.0], dtype=torch.float64)
    kept = torch.tensor([0, 1, 3, 5])
    part = Comparison(u=case.u[kept], v=case.v[kept], positives=case.positive_mask()[kept][:, kept])
    found = loss(dataclasses.replace(case, sample_weight=sample_weight)).loss
    torch.testing.assert_close(found, loss(part).loss * 4 / 6, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("loss", all_losses(), ids=name_of)
def test_a_batch_in_which_nothing_is_believed_is_finite_and_pulls_nothing(loss: PairLoss) -> None:
    u, v = unit(5, 4, 0).requires_grad_(), unit(5, 4, 1).requires_grad_()
    loss(Comparison(u=u, v=v, sample_weight=torch.zeros(5, dtype=torch.float64))).loss.backward()
    assert float(u.grad.abs().max()) == 0
    assert float(v.grad.abs().max()) == 0


@pytest.mark.parametrize("loss", differentiable_losses(), ids=name_of)
@pytest.mark.parametrize("positives", [None, same(0, 0, 1, 2, 3, 3)])
def test_gradients_under_beliefs_and_targets_against_finite_differences(
    loss: PairLoss, positives: Tensor | None
) -> None:
    u, v = unit(6, 4, 0).requires_grad_(), unit(6, 4, 1).requires_grad_()

    def value(u: Tensor, v: Tensor) -> Tensor:
        return loss(Comparison(u=u, v=v, positives=positives, sample_weight=SAMPLE_WEIGHT, targets=soft(6))).loss

    assert torch.autograd.gradcheck(value, (u, v), eps=1e-6, atol=1e-5, rtol=1e-4, fast_mode=True)


@pytest.mark.parametrize("loss", all_losses(), ids=name_of)
def test_order_of_the_batch_does_not_matter_to_beliefs_and_targets(loss: PairLoss) -> None:
    case = dataclasses.replace(
        comparison(positives=same(0, 0, 1, 2, 3, 3)), sample_weight=SAMPLE_WEIGHT, targets=soft(6)
    )
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    permuted = Comparison(
        u=case.u[order],
        v=case.v[order],
        positives=case.positive_mask()[order][:, order],
        sample_weight=SAMPLE_WEIGHT[order],
        targets=soft(6)[order][:, order],
    )
    torch.testing.assert_close(loss(permuted).loss, loss(case).loss, rtol=1e-6, atol=1e-8)


def directions(case: Comparison) -> list[tuple[Tensor, Tensor]]:
    """(similarity, targets) of each direction, the columns' targets brought to sum to 1."""
    similarity, targets = case.cross_similarity(), soft(6)
    return [(similarity, targets), (similarity.T, functional.normalize(targets.T, p=1, dim=1))]


def test_soft_contrastive_is_torchs_cross_entropy_with_probabilities() -> None:
    case = comparison()
    expected = sum(functional.cross_entropy(s / TAU, t) for s, t in directions(case)) / 2
    torch.testing.assert_close(Contrastive(temperature=TAU)(dataclasses.replace(case, targets=soft(6))).loss, expected)


def test_soft_losses_are_loops_over_their_definitions() -> None:
    case = comparison()
    triplet = sigmoid = complementary = 0.0
    for similarity, targets in directions(case):
        probability = functional.softmax(similarity / TAU, dim=1)
        for i in range(6):
            own = sum(float(targets[i, j] * similarity[i, j]) for j in range(6))
            others = [j for j in range(6) if j != i]
            triplet += sum(max(0.0, 0.2 * (1 - float(targets[i, j])) + float(similarity[i, j]) - own) for j in others)
            complementary -= sum((1 - float(targets[i, j])) * math.log(1 - float(probability[i, j])) for j in others)
            for j in range(6):
                logit = float(similarity[i, j]) / 0.1 - 10
                share = float(targets[i, j])
                sigmoid += share * math.log(1 + math.exp(-logit)) + (1 - share) * math.log(1 + math.exp(logit))
    for loss, expected in (
        (Triplet(mining="all"), triplet),
        (Sigmoid(), sigmoid),
        (Complementary(temperature=TAU), complementary),
    ):
        assert loss(dataclasses.replace(case, targets=soft(6))).loss.item() == pytest.approx(expected / 12, abs=1e-10)


def test_soft_learning_to_match_aims_at_the_targets() -> None:
    case = comparison()
    cost = torch.cdist(case.u, case.v)
    plan = pot_plan(cost / cost.max(), 0.1)
    target = soft(6) / 6
    expected = float((target * torch.log(target / plan)).sum())
    found = LearningToMatch(epsilon=0.1, metric="euclidean")(dataclasses.replace(case, targets=soft(6))).loss
    assert found.item() == pytest.approx(expected, abs=1e-7)
