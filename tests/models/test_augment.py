"""SpecAugment: drawn by clip and epoch alone, within its bounds, never beyond the clip."""

from __future__ import annotations

import torch

from ray_atr.models.augment import SpecAugment, spec_augment

SETTINGS = SpecAugment(time_bands=2, time_share=0.2, frequency_bands=1, frequency_share=0.25)
IDS = [f"clip {n}" for n in range(40)]


def clips() -> tuple[torch.Tensor, torch.Tensor]:
    frames = torch.randint(10, 60, (40,), generator=torch.Generator().manual_seed(0))
    return torch.randn(40, 60, 16, generator=torch.Generator().manual_seed(1)), frames


def test_a_clip_is_blanked_alike_in_any_batch_and_otherwise_in_another_epoch() -> None:
    features, frames = clips()
    together = spec_augment(features, frames, SETTINGS, IDS, seed=3, epoch=1)
    for row in (0, 7, 39):
        alone = spec_augment(features[row, None], frames[row, None], SETTINGS, [IDS[row]], seed=3, epoch=1)
        torch.testing.assert_close(alone[0], together[row])
    assert not torch.equal(together, spec_augment(features, frames, SETTINGS, IDS, seed=3, epoch=2))
    assert not torch.equal(together, spec_augment(features, frames, SETTINGS, IDS, seed=4, epoch=1))


def test_bands_stay_within_their_share_and_within_the_clip() -> None:
    features, frames = clips()
    augmented = spec_augment(features, frames, SETTINGS, IDS, seed=3, epoch=1)
    changed = augmented != features
    widths = []
    for row, length in enumerate(frames.tolist()):
        assert not changed[row, length:].any()
        blank_times = changed[row, :length].all(dim=1).sum().item()
        blank_channels = changed[row, :length].all(dim=0).sum().item()
        assert blank_times <= 2 * (0.2 * length + 1)
        assert blank_channels <= 0.25 * 16
        widths.append(blank_channels)
        mean = features[row, :length].mean()
        torch.testing.assert_close(augmented[row][changed[row]], mean.expand(int(changed[row].sum())))
    assert set(widths) == {0, 1, 2, 3, 4}


def test_without_bands_nothing_is_done() -> None:
    features, frames = clips()
    assert spec_augment(features, frames, SpecAugment(), IDS, seed=0, epoch=0) is features
