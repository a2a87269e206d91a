"""The metric's projection, groups of equal captions, and ATRI's diagnostics."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from ray_atr.objectives import Embeddings, caption_groups, metric_scalars, project_metric, same_group
from ray_atr.objectives.schemes import (
    Cacl,
    English,
    Kcl,
    MlClap,
    alignment_direction_error,
    data_distribution_error,
    log10_weight_error_bound,
    weight_distance,
)


def test_projection_is_the_nearest_semi_definite_matrix() -> None:
    generator = torch.Generator().manual_seed(0)
    metric = torch.randn(6, 6, generator=generator, dtype=torch.float64)
    symmetric = (metric + metric.T) / 2
    projected = metric.clone()
    project_metric(projected, "mahalanobis")
    assert torch.linalg.eigvalsh(projected).min() > -1e-12
    values, vectors = torch.linalg.eigh(symmetric)
    expected = sum(
        max(float(value), 0.0) * torch.outer(vector, vector) for value, vector in zip(values, vectors.T, strict=True)
    )
    torch.testing.assert_close(projected, expected)
    # The residual is orthogonal to the cone's face: <P - A, P> = 0, which only the nearest point meets.
    assert abs(float(((projected - symmetric) * projected).sum())) < 1e-10


def test_projection_leaves_a_positive_definite_metric_alone() -> None:
    metric = torch.eye(4) + 0.1
    before = metric.clone()
    project_metric(metric, "mahalanobis")
    assert torch.equal(metric, before)
    factor = torch.randn(4, 2)
    before = factor.clone()
    project_metric(factor, "factored")
    assert torch.equal(factor, before)


def test_projection_works_in_place_on_a_parameter() -> None:
    parameter = nn.Parameter(torch.tensor([1.0, -2.0]))
    project_metric(parameter, "diagonal")
    assert parameter.tolist() == [1.0, 0.0]
    assert parameter.requires_grad


def test_metric_scalars_tell_rank_and_smallest_eigenvalue() -> None:
    factor = torch.randn(6, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for metric, kind in ((factor, "factored"), (factor @ factor.T, "mahalanobis")):
        scalars = metric_scalars(metric, kind)
        assert scalars["metric_rank"].item() == 2
        assert scalars["metric_smallest_eigenvalue"].item() == pytest.approx(0, abs=1e-9)
    assert metric_scalars(torch.tensor([3.0, 0.5]), "diagonal")["metric_smallest_eigenvalue"].item() == 0.5


def test_equal_captions_are_one_group() -> None:
    groups = caption_groups(["A dog barks", "a  DOG barks ", "rain", "Un été", "Un e\u0301te\u0301"])
    assert same_group(groups).int().tolist() == [
        [1, 1, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 0, 1, 1],
        [0, 0, 0, 1, 1],
    ]


def test_data_distribution_error_by_loops_over_the_models_probabilities() -> None:
    generator = torch.Generator().manual_seed(0)
    audio = functional.normalize(torch.randn(5, 8, generator=generator), dim=-1)
    text = functional.normalize(torch.randn(5, 3, 8, generator=generator), dim=-1)
    mask = torch.ones(5, 3, dtype=torch.bool)
    mask[1, 2] = False
    embeddings, tau, ids = Embeddings(audio=audio, text=text, mask=mask), 0.2, [str(i) for i in range(5)]
    for scheme in (English(), MlClap(), Cacl(), Kcl()):
        draw = scheme.draw(0, 0, ids, mask)
        trained = scheme.needed(mask, draw)
        weight = {
            (i, k): math.exp(float(audio[i] @ text[i, k]) / tau) for i in range(5) for k in range(3) if mask[i, k]
        }
        p = {pair: value / sum(weight.values()) for pair, value in weight.items()}
        mine = {pair: value for pair, value in weight.items() if trained[pair]}
        expected = sum(abs(p[pair] - mine.get(pair, 0.0) / sum(mine.values())) for pair in p)
        found = float(data_distribution_error(embeddings, scheme, draw, tau))
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-9)
        assert (found == pytest.approx(0, abs=1e-9)) == (scheme.name == "kcl")


def test_data_distribution_error_is_of_the_model_and_not_of_the_scheme_alone() -> None:
    text = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]]).repeat(2, 1, 1)
    found = [
        float(data_distribution_error(Embeddings(audio=audio.repeat(2, 1), text=text), English(), None))
        for audio in (torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]]))
    ]
    # All of the model's probability is on the English texts, or none of it.
    assert found == pytest.approx([0, 2], abs=1e-5)


@pytest.mark.parametrize(("growth", "earlier", "push"), [(1.2, 0.3, 0.05), (1.0, 0.3, 0.05), (1.5, 0.0, 2.0)])
def test_the_bound_on_the_weights_is_its_recursion(growth: float, earlier: float, push: float) -> None:
    error = earlier
    for _ in range(7):
        error = growth * error + push
    assert log10_weight_error_bound(earlier, growth, 7, push) == pytest.approx(math.log10(error))
    assert math.isfinite(log10_weight_error_bound(earlier, 100.0, 10_000, push))
    assert log10_weight_error_bound(0.0, growth, 7, 0.0) == -math.inf


def test_alignment_direction_error_is_the_angle_to_the_mean_of_languages() -> None:
    text = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    embeddings = Embeddings(audio=torch.tensor([[1.0, 1.0]]), text=text)
    assert alignment_direction_error(embeddings, English(), None).item() == pytest.approx(45, abs=1e-4)
    assert alignment_direction_error(embeddings, Kcl(), None).item() == pytest.approx(0, abs=1e-4)


def test_weight_distance_is_euclidean_and_names_what_differs() -> None:
    first = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([[0.0]]), "steps": torch.tensor(3)}
    second = {"a": torch.tensor([1.0, 5.0]), "b": torch.tensor([[4.0]]), "steps": torch.tensor(9)}
    assert weight_distance(first, second) == pytest.approx(math.hypot(3, 4))
    with pytest.raises(ValueError, match="differ in b"):
        weight_distance(first, {"a": first["a"], "steps": first["steps"]})
