"""What a pair loss declares is what a retriever learns, and what it learns takes the place of the setting."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from ray_atr.common.override import override
from ray_atr.objectives import PAIRS, Embeddings, Learned, LearnedParameters, Objective
from ray_atr.objectives.pairs import Comparison, Sigmoid
from ray_atr.training.experiment import Experiment

N, D = 5, 4


def sides() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    u, v = torch.randn(2, N, D, generator=generator, dtype=torch.float64)
    return torch.nn.functional.normalize(u, dim=-1), torch.nn.functional.normalize(v, dim=-1)


def by_loops(u: Tensor, v: Tensor, t: float, b: float) -> float:
    """Zhai et al. 2023, Eq. 1: -1/N sum_ij log 1 / (1 + exp(z_ij (-t x_i y_j - b)))."""
    total = 0.0
    for i in range(N):
        for j in range(N):
            z = 1 if i == j else -1
            total -= math.log(1 / (1 + math.exp(z * (-t * float(u[i] @ v[j]) - b))))
    return total / N


def test_the_sigmoid_loss_starts_where_the_paper_does_and_learns_both() -> None:
    learned = LearnedParameters(Sigmoid().learns(), D)
    assert learned.log_temperature is not None
    # t' = log 10 = log(1 / tau), b = -10.
    assert -float(learned.log_temperature.detach()) == pytest.approx(math.log(10))
    assert float(learned.bias.detach()) == -10.0
    u, v = sides()
    loss = Sigmoid()(Comparison(u.float(), v.float()), learned.values()).loss
    assert float(loss.detach()) == pytest.approx(by_loops(u, v, 10.0, -10.0), rel=1e-5)
    loss.backward()
    assert learned.bias.grad.abs() > 0
    assert learned.log_temperature.grad.abs() > 0


def test_a_learned_bias_takes_the_settings_place_with_the_right_gradient() -> None:
    u, v = sides()
    for b in (-3.0, 0.5):
        found = Sigmoid(learn_scale=False)(Comparison(u, v), Learned(bias=torch.tensor(b))).loss
        assert float(found) == pytest.approx(by_loops(u, v, 10.0, b), rel=1e-6)
    values = torch.tensor([0.3, -1.0], dtype=torch.float64, requires_grad=True)

    def loss(values: Tensor) -> Tensor:
        return Sigmoid()(Comparison(u, v), Learned(temperature=values[0], bias=values[1])).loss

    assert torch.autograd.gradcheck(loss, (values,))


@pytest.mark.parametrize(
    ("settings", "learned"),
    [
        ({"objective.pair": "contrastive"}, set()),
        ({"objective.pair": "contrastive", "model.learn_temperature": True}, {"log_temperature"}),
        ({"objective.pair": "sigmoid"}, {"log_temperature", "bias"}),
        ({"objective.pair": "sigmoid", "objective.pair.learn_scale": False}, set()),
        ({"objective.pair": "learning_to_match", "objective.pair.metric": "diagonal"}, {"metric"}),
    ],
)
def test_a_retriever_learns_what_the_pair_loss_declares(settings: dict[str, Any], learned: set[str]) -> None:
    from ray_atr.models.retriever import _with_temperature

    experiment = override(Experiment(), settings)
    parameters = LearnedParameters(_with_temperature(experiment.learned, experiment.model), D)
    assert {name for name, _ in parameters.named_parameters()} == learned


@pytest.mark.parametrize(("pair", "first"), [({"temperature": 0.2}, 0.2), ({}, 0.07)])
def test_a_temperature_that_is_learned_starts_from_the_pair_losses_own(pair: dict[str, float], first: float) -> None:
    settings = override(Objective(), {f"pair.{name}": value for name, value in pair.items()}).pair.learns()
    assert settings.temperature == first


@pytest.mark.parametrize("pair", list(PAIRS))
def test_every_pair_loss_takes_what_it_declares(pair: str) -> None:
    objective = override(Objective(), {"pair": pair})
    learned = LearnedParameters(objective.pair.learns(), D)
    u, v = (side.float() for side in sides())
    assert torch.isfinite(objective(Embeddings(audio=u, text=v[:, None]), learned=learned.values()).loss)
