"""SpecAugment: drawn by clip and epoch alone, within its bounds, never beyond the clip."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from ray_atr.common.override import override
from ray_atr.models.augment import SpecAugment, spec_augment
from ray_atr.models.resnet38 import ResNet38
from ray_atr.training.checks import check_experiment
from ray_atr.training.experiment import Experiment

SETTINGS = SpecAugment(time_bands=2, time_share=0.2, frequency_bands=1, frequency_share=0.25)
IDS = [f"clip {n}" for n in range(40)]


def clips() -> tuple[torch.Tensor, torch.Tensor]:
    frames = torch.randint(10, 60, (40,), generator=torch.Generator().manual_seed(0))
    return torch.randn(40, 60, 16, generator=torch.Generator().manual_seed(1)), frames


def test_a_clip_is_blanked_alike_in_any_batch_and_otherwise_in_another_epoch() -> None:
    features, frames = clips()
    together = spec_augment(features, frames, SETTINGS, IDS, seed=3, epoch=1)[0]
    for row in (0, 7, 39):
        alone = spec_augment(features[row, None], frames[row, None], SETTINGS, [IDS[row]], seed=3, epoch=1)[0]
        torch.testing.assert_close(alone[0], together[row])
    assert not torch.equal(together, spec_augment(features, frames, SETTINGS, IDS, seed=3, epoch=2)[0])
    assert not torch.equal(together, spec_augment(features, frames, SETTINGS, IDS, seed=4, epoch=1)[0])


def test_bands_stay_within_their_share_and_within_the_clip() -> None:
    features, frames = clips()
    augmented = spec_augment(features, frames, SETTINGS, IDS, seed=3, epoch=1)[0]
    changed = augmented != features
    widths = []
    for row, length in enumerate(frames.tolist()):
        assert not changed[row, length:].any()
        blank_times = changed[row, :length].all(dim=1).sum().item()
        blank_channels = changed[row, :length].all(dim=0).sum().item()
        assert blank_times <= 2 * 0.2 * length
        assert blank_channels <= 0.25 * 16
        widths.append(blank_channels)
        mean = features[row, :length].mean()
        torch.testing.assert_close(augmented[row][changed[row]], mean.expand(int(changed[row].sum())))
    assert set(widths) == {0, 1, 2, 3, 4}
    by_channel = spec_augment(features, frames, dataclasses.replace(SETTINGS, time_bands=0), IDS, seed=3, epoch=1)[0]
    # A band may begin with the first channel and end with the last.
    assert (by_channel != features).any(dim=0).any(dim=0)[[0, -1]].all()


def test_a_band_of_time_is_at_most_as_wide_as_is_set() -> None:
    features, frames = clips()
    for share in (0.1, 0.5):
        settings = SpecAugment(time_bands=1, time_share=share)
        changed = spec_augment(features, frames, settings, IDS, seed=3, epoch=1)[0] != features
        widest = max(float(changed[row].any(dim=1).sum()) / int(length) for row, length in enumerate(frames))
        assert 0.9 * share < widest <= share


def test_without_bands_nothing_is_done() -> None:
    features, frames = clips()
    found, blank = spec_augment(features, frames, SpecAugment(), IDS, seed=0, epoch=0)
    assert found is features
    assert blank is None


def test_a_tower_that_blanks_bands_is_told_of_them() -> None:
    features, frames = clips()
    filled = spec_augment(features, frames, SETTINGS, IDS, seed=3, epoch=1)[0]
    itself = dataclasses.replace(SETTINGS, fill="zero_after_norm")
    found, blank = spec_augment(features, frames, itself, IDS, seed=3, epoch=1)
    assert found is features
    assert blank is not None
    torch.testing.assert_close(blank, filled != features)


@pytest.mark.parametrize("trains", [False, True])
def test_bands_are_zero_behind_the_first_norm_as_in_the_released_code(trains: bool) -> None:
    """The released order: bn0 of the whole clips, then zeros, then the first convolution."""
    torch.manual_seed(0)
    tower = ResNet38(width_divisor=16, checkpoint=None, trains_batch_norms=trains).build().train()
    torch.nn.init.normal_(tower.bn0.weight)
    torch.nn.init.normal_(tower.bn0.bias)
    features, frames = torch.randn(3, 64, 64), torch.full((3,), 64)
    blank = spec_augment(features, frames, SpecAugment(time_bands=2, fill="zero_after_norm"), IDS[:3], seed=0, epoch=0)[
        1
    ]
    assert blank is not None
    assert blank.any()
    norm = torch.nn.BatchNorm2d(64).train(trains)
    norm.load_state_dict(tower.bn0.state_dict())
    expected = norm(features.transpose(1, 2)[..., None])[..., 0].transpose(1, 2)
    expected[blank] = 0
    seen: list[torch.Tensor] = []
    tower.conv_block1.conv1.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    tower(features, frames, blank)
    torch.testing.assert_close(seen[0][:, 0], expected, atol=1e-5, rtol=1e-5)


def test_a_tower_without_such_a_place_is_refused() -> None:
    experiment = override(Experiment(), {"model.audio": "small_cnn", "model.augment.fill": "zero_after_norm"})
    with pytest.raises(
        ValueError, match=r"model.augment.fill: got 'zero_after_norm'; allowed clip_mean with model.audio="
    ):
        check_experiment(experiment)
