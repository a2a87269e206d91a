"""Types of callbacks that long work calls: with a line of text, or with the amount done."""

from __future__ import annotations

from collections.abc import Callable

Echo = Callable[[str], None]
"""Takes a line to print."""
CountProgress = Callable[[int, int], None]
"""Takes the number done and the total."""
NamedProgress = Callable[[str, int, int], None]
"""Takes a name of what is counted, the number done and the total."""


def silent(*arguments: object) -> None:
    """Any of these callbacks, doing nothing."""
