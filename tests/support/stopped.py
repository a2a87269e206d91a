"""A training that ends in the middle, as a killed process does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest

from ray_atr.training.step import StepResult, training_step


class KilledError(Exception):
    """Stands for a process that dies."""


@contextmanager
def killed_after(steps: int) -> Iterator[None]:
    """The training within does so many steps and dies; fails if it ends before."""
    done = 0

    def dying_step(*arguments: Any, **options: Any) -> StepResult:
        nonlocal done
        if done == steps:
            raise KilledError
        done += 1
        return training_step(*arguments, **options)

    with pytest.raises(KilledError), mock.patch("ray_atr.training.loop.training_step", dying_step):
        yield
