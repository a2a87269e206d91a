"""What a command calls to do its work, replaced in one place: tests of options ask what arrives there, and do no work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest.mock import Mock

import pytest


class CalledError(Exception):
    """Ends a command where its work would begin."""


def replace_work(monkeypatch: pytest.MonkeyPatch, work: Mapping[str, Callable[..., Any]]) -> None:
    """Replace functions of the package, by their dotted names in it, until the test ends."""
    for name, instead in work.items():
        monkeypatch.setattr(f"ray_atr.{name}", instead)


def called(monkeypatch: pytest.MonkeyPatch, function: str, command: Any, arguments: Sequence[str]) -> Any:
    """What a command calls the function with (`args`, `kwargs`)."""
    work = Mock(side_effect=CalledError)
    replace_work(monkeypatch, {function: work})
    with pytest.raises(CalledError):
        command.run(arguments, "command")
    return work.call_args
