"""What a worker reports, as it travels through Ray to the driver.

Tune keeps statistics of every number that a trial ever reported, which with hundreds of metrics a trial fills the driver
(docs/log.md). So they travel as one text, together with the few numbers that a scheduler compares.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

METRICS = "metrics"
ALWAYS_SHOWN = ("epoch", "is_final")


def packed(metrics: Mapping[str, Any], shown: Iterable[str] = ()) -> dict[str, Any]:
    """The metrics as one text; those in `shown` as numbers too."""
    open_ones = {name: metrics[name] for name in (*ALWAYS_SHOWN, *shown) if name in metrics}
    return {**open_ones, METRICS: json.dumps(dict(metrics))}


def unpacked(result: Mapping[str, Any]) -> dict[str, Any]:
    """What was packed, without all that Tune adds to a result; nothing if a trial reported nothing of its own."""
    return dict(json.loads(result[METRICS])) if METRICS in result else {}
