"""Types of callbacks that long work calls: with a line of text, or with the amount done."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

Echo = Callable[[str], None]
"""Takes a line to print."""
CountProgress = Callable[[int, int], None]
"""Takes the number done and the total."""
NamedProgress = Callable[[str, int, int], None]
"""Takes a name of what is counted, the number done and the total."""

SPACE = 5.0
"""Seconds between two lines of `spaced`: less than the silence after which a command says that it is still running."""


def spaced(echo: Echo) -> Callable[[str, int, int], None]:
    """A function of a line, the number done and the total. It prints the first line, the last, and one every `SPACE` seconds."""
    last = -math.inf

    def say(line: str, done: int, total: int) -> None:
        nonlocal last
        if done >= total or time.monotonic() - last >= SPACE:
            echo(line)
            last = time.monotonic()

    return say


def silent(*arguments: object) -> None:
    """Any of these callbacks, doing nothing."""
