"""What is said of a failure that a setting beyond reason may have caused: it names the setting, and not only the clips."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ray_atr.training.experiment import Experiment
from ray_atr.training.step import NonFiniteError

USUAL = {
    "temperature": (1e-3, 10.0),
    "initial_temperature": (1e-3, 10.0),
    "transport_mass": (1e-2, 1.0),
    "epsilon": (1e-4, 100.0),
    "learning_rate": (0.0, 1.0),
    "margin": (-1.0, 10.0),
}
"""Name of a setting -> the values beyond which a failure is blamed on it. Of any other number: `FAR` times its default."""
FAR = 1e4
NOT_BLAMED = ("seed", "tracking.", "scaling.")
BLAMED_FOR = (
    NonFiniteError,
    ValueError,
    MemoryError,
    OverflowError,
    ZeroDivisionError,
    RuntimeError,
    torch.OutOfMemoryError,
)
"""What numbers without measure lead to; of subclasses that are not listed, only what their own code says is said."""


@contextmanager
def naming_settings(experiment: Experiment) -> Iterator[None]:
    """Adds the settings that are far from all that is usual to an error within: they are its cause more often than clips."""
    try:
        yield
    except BLAMED_FOR as error:
        far = [f"{path}={value:g}" for path, value in unusual_settings(experiment) if path not in str(error)]
        if not far or type(error) not in BLAMED_FOR:
            raise
        raise type(error)(f"{error}; far from what is usual: {', '.join(far)}") from error


def unusual_settings(experiment: Experiment) -> list[tuple[str, float]]:
    """(path, value) of the numbers of the experiment that lie beyond `USUAL`, or far from their defaults."""
    rows = ((path, value, default) for path, value, default in _numbers(experiment) if not path.startswith(NOT_BLAMED))
    return [(path, value) for path, value, default in rows if _is_far(path.rpartition(".")[2], value, default)]


def _is_far(name: str, value: float, default: Any) -> bool:
    if name in USUAL:
        low, high = USUAL[name]
        return not low <= value <= high
    size = abs(default) if isinstance(default, int | float) and default else 1.0
    return abs(value) >= FAR * size or 0 < abs(value) <= size / FAR


def _numbers(tree: Any, prefix: str = "") -> Iterator[tuple[str, float, Any]]:
    """(Path, value, the default that its class declares) of each number of a tree of settings."""
    for field in dataclasses.fields(tree):
        value, path = getattr(tree, field.name), prefix + field.name
        if dataclasses.is_dataclass(value):
            yield from _numbers(value, f"{path}.")
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            yield path, float(value), field.default
