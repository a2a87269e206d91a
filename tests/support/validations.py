"""Validations and the test of a training that measure what a test says: real ones of a few clips hardly differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from ray_atr.training import epoch_validation, loop


def measure_by(monkeypatch: pytest.MonkeyPatch, measure: Callable[..., Mapping[str, Any]]) -> None:
    """Each validation, and the test at the end, is `measure(retriever, texts, features, ...)`."""
    for module in (loop, epoch_validation):
        monkeypatch.setattr(module, "evaluate_split", measure)
