"""Adds settings with unusual values to errors that they may have caused."""

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
"""The usual range of a setting by name. Any other number is unusual at `FAR` times its default, or a `FAR`th of it."""
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
"""Errors that unusual numbers can cause. Subclasses that are not listed are raised unchanged."""


@contextmanager
def naming_settings(experiment: Experiment) -> Iterator[None]:
    """Adds the experiment's settings with unusual values to an error within the block: they often are its cause."""
    try:
        yield
    except BLAMED_FOR as error:
        far = [f"{path}={value:g}" for path, value in unusual_settings(experiment) if path not in str(error)]
        if not far or type(error) not in BLAMED_FOR:
            raise
        raise type(error)(f"{error}; far from what is usual: {', '.join(far)}") from error


def unusual_settings(experiment: Experiment) -> list[tuple[str, float]]:
    """(path, value) of the experiment's numbers outside of `USUAL`, or far from their defaults."""
    rows = ((path, value, default) for path, value, default in _numbers(experiment) if not path.startswith(NOT_BLAMED))
    return [(path, value) for path, value, default in rows if _is_far(path.rpartition(".")[2], value, default)]


def _is_far(name: str, value: float, default: Any) -> bool:
    if name in USUAL:
        low, high = USUAL[name]
        return not low <= value <= high
    size = abs(default) if isinstance(default, int | float) and default else 1.0
    return abs(value) >= FAR * size or 0 < abs(value) <= size / FAR


def _numbers(tree: Any, prefix: str = "") -> Iterator[tuple[str, float, Any]]:
    """(path, value, default) of each number in a tree of settings."""
    for field in dataclasses.fields(tree):
        value, path = getattr(tree, field.name), prefix + field.name
        if dataclasses.is_dataclass(value):
            yield from _numbers(value, f"{path}.")
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            yield path, float(value), field.default
