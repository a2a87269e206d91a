"""How numbers are written: recall in percent with its deviation over seeds, everything else in short."""

from __future__ import annotations

import math
from typing import Any

MISSING = "–"


def percent(mean: float | None, deviation: float | None = None) -> str:
    """A share in [0, 1] as percent, `31.4 ±0.8`; a dash if there is none."""
    if mean is None or math.isnan(mean):
        return MISSING
    if deviation is None or math.isnan(deviation):
        return f"{100 * mean:.1f}"
    return f"{100 * mean:.1f} ±{100 * deviation:.1f}"


def number(mean: float | None, deviation: float | None = None) -> str:
    """A number in three or four figures, with its deviation."""
    if mean is None or math.isnan(mean):
        return MISSING
    text = f"{mean:,.0f}" if abs(mean) >= 100 else f"{mean:.2f}"
    return text if deviation is None or math.isnan(deviation) else f"{text} ±{deviation:.2g}"


def value(setting: Any) -> str:
    """A setting's value as a person writes it."""
    if isinstance(setting, float):
        return MISSING if math.isnan(setting) else f"{setting:g}"
    return MISSING if setting is None else str(setting)


def minutes(seconds: float | None) -> str:
    """`4:05` for 245 seconds; hours in front if there are some."""
    if seconds is None or math.isnan(seconds):
        return MISSING
    whole = int(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"
