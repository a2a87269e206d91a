"""The gradient of every weight of a tower is that of finite differences, for clips of unequal length, in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from ray_atr.models.audio import SmallCnn
from ray_atr.models.batch_norm import BatchNorm2d
from ray_atr.models.ced import Ced
from ray_atr.models.resnet38 import ResNet38
from ray_atr.models.tower import AudioSettings
from tests.support.tiny import short_resnets

TOWERS: dict[str, AudioSettings] = {
    "small_cnn": SmallCnn(width=16),
    "ced": Ced(size="tiny", num_blocks=1, checkpoint=None),
    "resnet38": ResNet38(width_divisor=16, checkpoint=None),
}
FRAMES = (96, 75, 40)
STEP = 1e-6
ROUNDED = 0.03
"""A step may cross the edge of a ReLU."""


@pytest.mark.parametrize("name", TOWERS)
def test_the_gradient_of_every_weight_is_that_of_finite_differences(name: str) -> None:
    torch.manual_seed(0)
    with short_resnets():
        tower = TOWERS[name].build().double().train()
    features = torch.randn(len(FRAMES), max(FRAMES), tower.front_end.num_mels, dtype=torch.float64)
    frames = torch.tensor(FRAMES)
    for row, count in enumerate(FRAMES):
        features[row, count:] = 0
    weighted = torch.randn(len(FRAMES), tower.width, dtype=torch.float64)

    def loss() -> Tensor:
        return (tower(features, frames).pooled * weighted).sum()

    loss().backward()
    for path, parameter in tower.named_parameters():
        assert parameter.grad is not None, path
        direction = nn.functional.normalize(torch.randn_like(parameter).flatten(), dim=0).view_as(parameter)
        along = float((parameter.grad * direction).sum())
        assert along == pytest.approx(slope(loss, parameter, direction), rel=ROUNDED, abs=1e-6), path


@torch.no_grad()
def slope(loss: Callable[[], Tensor], parameter: nn.Parameter, direction: Tensor) -> float:
    """The slope of the loss along a direction of a parameter, which is left as it was."""
    first, losses = parameter.clone(), []
    for step in (STEP, -STEP):
        parameter.copy_(first + step * direction)
        losses.append(float(loss()))
    parameter.copy_(first)
    return (losses[0] - losses[1]) / (2 * STEP)


@pytest.mark.parametrize("clips", [1, 2])
def test_fixed_statistics_have_their_gradients_for_rows_that_were_transposed(clips: int) -> None:
    """Of one frequency, as those of the first batch norm of ResNet38: torch's own are wrong on a CPU."""
    generator = torch.Generator().manual_seed(0)
    norm = BatchNorm2d(5).double().eval()
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.running_mean.normal_(generator=generator)
    norm.running_var.uniform_(0.5, 2, generator=generator)
    rows = torch.randn(clips, 7, 5, dtype=torch.float64, generator=generator, requires_grad=True)
    x = rows.transpose(1, 2)[..., None]
    given = torch.randn(x.shape, dtype=torch.float64, generator=generator)
    norm(x).backward(given)
    scale = (norm.running_var + norm.eps).rsqrt()[:, None, None]
    centred = (x.detach() - norm.running_mean[:, None, None]) * scale
    torch.testing.assert_close(norm.weight.grad, (given * centred).sum(dim=(0, 2, 3)))
    torch.testing.assert_close(norm.bias.grad, given.sum(dim=(0, 2, 3)))
    torch.testing.assert_close(rows.grad, (given * scale)[..., 0].transpose(1, 2))
