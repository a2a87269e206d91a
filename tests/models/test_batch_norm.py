"""Batch norms that train: torch's own on whole clips, padding aside, and those of one process on any number of workers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ray_atr.common.override import override
from ray_atr.models.batch_norm import BatchNorm2d, synchronise_batch_norms
from ray_atr.models.resnet38 import ResNet38, ResNet38Tower
from ray_atr.training.checks import check_experiment
from ray_atr.training.experiment import Experiment
from tests.support.processes import run_processes

SMALL = ResNet38(width_divisor=32, trains_batch_norms=True)
N, T, SHORT = 6, 64, 40


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    frames = torch.tensor([T, SHORT, T, SHORT, T, T])
    features = torch.randn(N, T, 64, generator=generator)
    return features.masked_fill(torch.arange(T)[None, :, None] >= frames[:, None, None], 0.0), frames


def tower() -> ResNet38Tower:
    torch.manual_seed(0)
    return SMALL.build().train()


def test_it_is_torchs_batch_norm_where_no_frame_is_padding() -> None:
    mine, torchs = BatchNorm2d(4), nn.BatchNorm2d(4)
    x = torch.randn(3, 4, 5, 2, generator=torch.Generator().manual_seed(1)) * 3 + 1
    for norm in (mine, torchs):
        with torch.no_grad():
            norm.weight.copy_(torch.arange(1.0, 5))
    gradients = []
    for norm in (mine, torchs):
        own = x.clone().requires_grad_()
        norm(own).pow(3).sum().backward()
        assert norm.weight.grad is not None
        gradients.append((own.grad, norm.weight.grad))
    torch.testing.assert_close(mine(x), torchs(x))
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(mine.state_dict(), torchs.state_dict())
    torch.testing.assert_close(mine.eval()(x), torchs.eval()(x))


def test_padding_enters_no_statistics() -> None:
    mine = BatchNorm2d(4)
    x, lengths = torch.randn(2, 4, 5, 3, generator=torch.Generator().manual_seed(2)), torch.tensor([5, 2])
    inside = torch.cat([x[0].flatten(1), x[1, :, :2].flatten(1)], dim=1)
    expected = (inside - inside.mean(dim=1, keepdim=True)) / (
        inside.var(dim=1, unbiased=False, keepdim=True) + 1e-5
    ).sqrt()
    torch.testing.assert_close(mine(x, lengths)[0].flatten(1), expected[:, :15])
    assert mine.running_var is not None
    torch.testing.assert_close(mine.running_var, 0.9 + 0.1 * inside.var(dim=1))
    longer = nn.functional.pad(x, (0, 0, 0, 4), value=9.0)
    torch.testing.assert_close(mine(longer, lengths)[:, :, :5], mine(x, lengths))


def test_a_tower_trains_its_norms_only_if_its_settings_say_so() -> None:
    features, frames = batch()
    trained, fixed = tower(), ResNet38(width_divisor=32).build().train()
    before = [
        {name: value.clone() for name, value in one.state_dict().items() if "running" in name}
        for one in (trained, fixed)
    ]
    for one in (trained, fixed):
        one(features, frames)
    assert any(not torch.equal(value, trained.state_dict()[name]) for name, value in before[0].items())
    assert all(torch.equal(value, fixed.state_dict()[name]) for name, value in before[1].items())
    # In evaluation no clip depends on its batch.
    trained.eval()
    with torch.no_grad():
        both, alone = trained(features, frames).pooled[:1], trained(features[:1], frames[:1]).pooled
    torch.testing.assert_close(both, alone, rtol=1e-4, atol=1e-5)


def test_what_would_change_a_batchs_statistics_is_refused() -> None:
    with pytest.raises(ValueError, match=r"adapt.activation_checkpointing: got True; allowed False with trains_batch"):
        override(SMALL, {"adapt.activation_checkpointing": True})
    experiment = override(
        Experiment(),
        {"model.audio": "resnet38", "model.audio.trains_batch_norms": True, "train.embedding_chunk": 8},
    )
    with pytest.raises(
        ValueError, match=r"train.embedding_chunk: got 8; allowed 0 with model.audio.trains_batch_norms"
    ):
        check_experiment(experiment)


def _share(rank: int, size: int, folder: Path) -> dict[str, dict[str, Tensor | None]]:
    """One worker's third, or two, of the batch: with its gradients averaged as a run does."""
    one = tower()
    synchronise_batch_norms(one, size)
    features, frames = batch()
    mine = slice(0, 2) if rank == 0 else slice(2, N)
    pooled = one(features[mine], frames[mine]).pooled
    # The gather of a step gives each worker its slice of the gradient, times the number of workers.
    (pooled * weights()[mine] * size).sum().backward()
    state = {name: value for name, value in one.state_dict().items() if "running" in name}
    grads = {name: parameter.grad for name, parameter in one.named_parameters()}
    return {"state": state, "grads": grads}


def weights() -> Tensor:
    return torch.randn(N, SMALL.build().width, generator=torch.Generator().manual_seed(3))


@pytest.mark.slow
def test_two_workers_have_the_statistics_and_gradients_of_one(tmp_path: Path) -> None:
    found = run_processes(_share, 2, tmp_path)
    one = tower()
    features, frames = batch()
    (one(features, frames).pooled * weights()).sum().backward()
    for name, value in one.state_dict().items():
        if "running" in name:
            for own in found:
                torch.testing.assert_close(own["state"][name], value, rtol=1e-4, atol=1e-5)
    for name, parameter in one.named_parameters():
        mean = (found[0]["grads"][name] + found[1]["grads"][name]) / 2
        assert parameter.grad is not None
        scale = float(parameter.grad.abs().max()) + 1e-6
        assert float((mean - parameter.grad).abs().max()) < 2e-3 * scale, name
