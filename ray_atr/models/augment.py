"""SpecAugment (Park et al. 2019): bands of time and frequency of the log-mel frames are blanked out in training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ray_atr.common.sampling import uniform
from ray_atr.common.settings import Settings, setting
from ray_atr.models.tower import length_mask

CLIP_MEAN, ZERO_AFTER_NORM = "clip_mean", "zero_after_norm"


@dataclass(frozen=True, kw_only=True)
class SpecAugment(Settings):
    """Number and largest width of the bands that are blanked out. Without bands nothing changes."""

    time_bands: int = setting(0, "bands of time blanked out in each clip", at_least=0, at_most=1_000)
    time_share: float = setting(
        0.1, "greatest width of a time band, as a share of the clip's frames", above=0, at_most=1
    )
    frequency_bands: int = setting(0, "bands of mel channels blanked out in each clip", at_least=0, at_most=1_000)
    frequency_share: float = setting(
        0.15, "greatest width of a frequency band, as a share of the mel bands", above=0, at_most=1
    )
    fill: str = setting(
        CLIP_MEAN,
        "what bands are set to: clip_mean, the mean of the clip's frames, for any tower; zero_after_norm, 0 after the tower's "
        "first batch norm, as in the released code of m-LTM (resnet38)",
        choices=(CLIP_MEAN, ZERO_AFTER_NORM),
    )

    @property
    def is_active(self) -> bool:
        """Whether anything is blanked out."""
        return self.time_bands + self.frequency_bands > 0


def spec_augment(
    features: Tensor, frames: Tensor, settings: SpecAugment, clip_ids: Sequence[str], seed: int, epoch: int
) -> tuple[Tensor, Tensor | None]:
    """(features [N, T, F], None) with bands set to the mean of the clip's `frames`; or, if the tower fills the bands (`fill`),
    (the unchanged features, which of them are in a band, bool [N, T, F]). Bands are drawn from (seed, epoch, clip_id) alone.
    """
    if not settings.is_active:
        return features, None
    _, T, F = features.shape
    inside = length_mask(frames, T)
    blank = torch.zeros(features.shape, dtype=torch.bool, device=features.device)
    times = torch.arange(T, device=features.device)[None, :]
    for band in range(settings.time_bands):
        start, end = _band(clip_ids, frames, settings.time_share, seed, epoch, f"time {band}")
        blank |= ((times >= start[:, None]) & (times < end[:, None]))[:, :, None]
    channels = torch.arange(F, device=features.device)[None, :]
    for band in range(settings.frequency_bands):
        sizes = torch.full_like(frames, F)
        start, end = _band(clip_ids, sizes, settings.frequency_share, seed, epoch, f"frequency {band}")
        blank |= ((channels >= start[:, None]) & (channels < end[:, None]))[:, None, :]
    blank &= inside[..., None]
    if settings.fill == ZERO_AFTER_NORM:
        return features, blank
    mean = torch.where(inside[..., None], features, 0).sum(dim=(1, 2)) / (frames.clamp(min=1) * F)
    return torch.where(blank, mean[:, None, None].to(features.dtype), features), None


def _band(
    clip_ids: Sequence[str], sizes: Tensor, share: float, seed: int, epoch: int, what: str
) -> tuple[Tensor, Tensor]:
    """(first position, end) of one band for each clip. Whole widths up to the share are equally likely, as are places."""
    width_draw, place_draw = (
        torch.from_numpy(uniform(clip_ids, seed, "spec_augment", what, part, epoch)).to(sizes.device)
        for part in ("width", "place")
    )
    widest = torch.floor(share * sizes)
    width = torch.floor(width_draw * (widest + 1)).clamp(max=widest)
    start = torch.floor(place_draw * (sizes - width + 1))
    return start, start + width
