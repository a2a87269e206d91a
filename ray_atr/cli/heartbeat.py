"""A sign of life while nothing else is printed."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

Say = Callable[[str], None]
SECONDS = 10.0
"""The longest silence."""


@contextlib.contextmanager
def heartbeat(what: str, *, seconds: float = SECONDS, write: Say = print) -> Iterator[Say]:
    """A `say` that prints; whenever it has said nothing for `seconds`, a line with the time gone is printed.

    Says `what` at once: the imports alone may take seconds.
    """
    started = last = time.monotonic()
    lock, stop = threading.Lock(), threading.Event()

    def say(message: str) -> None:
        nonlocal last
        with lock:
            write(message)
            last = time.monotonic()

    def watch() -> None:
        # A tenth early, so that a busy machine does not make the silence longer.
        while not stop.wait(seconds / 20):
            if time.monotonic() - last >= 0.9 * seconds:
                gone = int(time.monotonic() - started)
                say(f"... {gone // 60}:{gone % 60:02d} elapsed")

    say(what)
    thread = threading.Thread(target=watch, daemon=True, name="heartbeat")
    thread.start()
    try:
        yield say
    finally:
        stop.set()
        thread.join()
