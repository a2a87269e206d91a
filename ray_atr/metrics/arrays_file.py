"""Query scores as named arrays, so that two checkpoints evaluated at different times can be compared pair by pair."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ray_atr.metrics.samples import Sample, Samples
from ray_atr.settings import refuse

KINDS = ("query", "unit", "mean", "median")


def to_arrays(samples: Samples) -> dict[str, np.ndarray]:
    """`{"text_to_audio/fra:mean:recall_at_1": [Q], ...}`, for `numpy.savez`; `from_arrays` is its inverse."""
    result: dict[str, np.ndarray] = {}
    for key, sample in samples.items():
        result |= {f"{key}:query": sample.query, f"{key}:unit": sample.unit}
        result |= {f"{key}:mean:{name}": values for name, values in sample.means.items()}
        result |= {f"{key}:median:{name}": values for name, values in sample.medians.items()}
    return result


def from_arrays(arrays: Mapping[str, np.ndarray]) -> dict[str, Sample]:
    """The samples of `to_arrays` (or of the file that `numpy.load` opens), in their order."""
    found: dict[str, dict[str, dict[str, np.ndarray]]] = {}
    for name in arrays:
        key, _, rest = name.partition(":")
        kind, _, metric = rest.partition(":")
        if kind not in KINDS:
            raise refuse("arrays", name, "the arrays that to_arrays makes")
        found.setdefault(key, {kind: {} for kind in KINDS})[kind][metric] = arrays[name]
    absent = [f"{key}:{kind}" for key, parts in found.items() for kind in ("query", "unit") if not parts[kind]]
    if absent or not found:
        raise refuse("arrays", f"no {', '.join(absent[:3]) or 'arrays'}", "the arrays that to_arrays makes")
    return {
        key: Sample(parts["query"][""], parts["unit"][""], parts["mean"], parts["median"])
        for key, parts in found.items()
    }
