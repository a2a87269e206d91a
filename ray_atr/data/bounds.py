"""What an audio file may be. Nothing heavy is imported here: commands' help reads it."""

from __future__ import annotations

from dataclasses import dataclass

from ray_atr.settings import Settings, setting


@dataclass(frozen=True, kw_only=True)
class AudioBounds(Settings):
    """What an audio file may be: a small file can promise hours, or a rate of 1 Hz that is resampled to gigabytes."""

    lowest_rate: int = setting(1_000, "lowest sample rate of an audio file (Hz)", at_least=1)
    highest_rate: int = setting(1_000_000, "highest sample rate of an audio file (Hz)", at_least=1)
    most_channels: int = setting(64, "most channels of an audio file", at_least=1)
    longest_seconds: float = setting(24 * 3600.0, "longest audio file (s)", above=0)
    largest_sample: float = setting(2.0**31, "largest sample of a float file, where full scale is 1", above=0)


IMPORTED = AudioBounds(lowest_rate=1, highest_rate=10**9, most_channels=1024, longest_seconds=7 * 24 * 3600.0)
"""For the clips of a data set, which its import checked within bounds of its own."""
