"""What a benchmark compares, recorded as a row of the table that `run.py` makes. Imports nothing that takes a moment."""

from __future__ import annotations

import json
import os
from pathlib import Path

ROWS = "RAY_ATR_BENCHMARK_ROWS"
"""Environment variable: the file to which `compared` appends its rows (`benchmarks/run.py` sets it)."""


def compared(
    what: str, ours: float, peer: float, peer_name: str, *, unit: str = "ms", at_most: float | None = None
) -> float:
    """The ratio ours / peer, recorded as a row if `benchmarks/run.py` asked for rows. `at_most` is its goal; None: no goal."""
    ratio = ours / peer
    if ROWS in os.environ:
        row = {"what": what, "ours": ours, "peer": peer, "peer_name": peer_name, "unit": unit, "ratio": ratio}
        with Path(os.environ[ROWS]).open("a") as file:
            file.write(json.dumps({**row, "goal": at_most}) + "\n")
    return ratio
