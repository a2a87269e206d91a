"""What long work calls meanwhile: with a line for people, or with how much of it is done."""

from __future__ import annotations

from collections.abc import Callable

Say = Callable[[str], None]
"""Takes a line to print."""
CountProgress = Callable[[int, int], None]
"""Takes what is done and what there is in all."""
NamedProgress = Callable[[str, int, int], None]
"""Takes what is counted, what of it is done and what there is in all."""


def silent(*told: object) -> None:
    """Takes what any of them takes, and does nothing."""
