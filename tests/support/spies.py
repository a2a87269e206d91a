"""Calls of a function that nothing else shows: where a file, a callback or a line that is printed tells the same, ask that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def spied(patch: pytest.MonkeyPatch, owner: Any, name: str, note: Callable[..., None]) -> None:
    """Have `note` told the result and the arguments of each call; the function does what it did."""
    called = getattr(owner, name)

    def call(*arguments: Any, **named: Any) -> Any:
        result = called(*arguments, **named)
        note(result, *arguments, **named)
        return result

    patch.setattr(owner, name, call)
